#!/bin/bash
set -a
source ./common.env
. envs/sdxl.env
set +a
EXTRA=""
if [ "${LOW_MEM:-0}" = "1" ]; then
  EXTRA="--gradient_checkpointing --use_8bit_adam"
fi
accelerate launch --num_processes ${GPUS:-8} --num_machines 1 --mixed_precision "$PRECISION" train_text_to_image_sdxl.py \
  --pretrained_model_name_or_path="$BASE" --dataset_name="$DATASET" \
  --train_batch_size=$BATCH --gradient_accumulation_steps=${ACCUM:-4} --num_train_epochs=$EPOCHS \
  --checkpointing_steps=2500 --report_to=${TRACKER:-tensorboard} --output_dir=/ckpt/$RUN $EXTRA
