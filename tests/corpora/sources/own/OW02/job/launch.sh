#!/bin/bash
set -euo pipefail
WORKDIR=${WORKDIR:-/runs/vit_s16}
export XLA_PYTHON_CLIENT_MEM_FRACTION=.95
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
python3 main.py --workdir="$WORKDIR" --config=configs/vit_s16_i1k.py \
  --config.total_epochs=90 --config.input.batch_size=2048 --nocleanup
