#!/usr/bin/env bash
MICRO=4
ACC=8
STAGE=${1:-2}
cat > /tmp/ds.json <<EOF
{
  "train_micro_batch_size_per_gpu": ${MICRO},
  "gradient_accumulation_steps": ${ACC},
  "zero_optimization": {"stage": ${STAGE}, "offload_optimizer": {"device": "cpu"}},
  "fp16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}
}
EOF
deepspeed --num_gpus=4 run_summarization.py \
  --model_name_or_path google/flan-t5-large --dataset_name cnn_dailymail --dataset_config 3.0.0 \
  --source_prefix "summarize: " --do_train \
  --per_device_train_batch_size $MICRO --gradient_accumulation_steps $ACC --num_train_epochs 2 \
  --fp16 --deepspeed /tmp/ds.json --save_strategy epoch --report_to none --output_dir /ckpt/flan
