#!/bin/bash
set -eu
export CUDA_VISIBLE_DEVICES=0,1
EXP=${EXP:-wide}
python -m torch.distributed.run --standalone --nproc-per-node=2 -m seg.cli fit conf/$EXP.yml --amp --set optim.lr=0.02
