#!/usr/bin/env bash
cd "$(dirname "$0")"
accelerate launch --config_file acc/z2.yaml --num_processes 4 train_qa.py \
  --model_name_or_path deepset/roberta-base-squad2 --per_device_train_batch_size 12 --num_train_epochs 2 --with_tracking
