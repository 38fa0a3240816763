#!/bin/bash
MODEL=EleutherAI/pythia-1.4b
ARGS=(
  --model_name_or_path "$MODEL"
  --dataset_name timdettmers/openassistant-guanaco
  --per_device_train_batch_size 4
  --gradient_accumulation_steps 8
  --max_steps 1200
  --bf16
  --gradient_checkpointing true
  --save_steps 200
  --output_dir /out/guanaco
  --report_to tensorboard
)
deepspeed --num_gpus 8 sft.py "${ARGS[@]}" --deepspeed ds/zero3.json "$@"
