#!/bin/bash
export CUDA_VISIBLE_DEVICES=2
DATA=${DATA_ROOT:-/data}/ogb
for seed in 0 1 2; do
  python train_gat.py --root $DATA --seed $seed --heads 8 --epochs 500 | tee log_$seed.txt
done
