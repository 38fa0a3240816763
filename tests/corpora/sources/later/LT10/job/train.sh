#!/bin/bash
export TF_CPP_MIN_LOG_LEVEL=2
python fit.py --batch 256 --epochs 30 --size 45000 --warmup 2
