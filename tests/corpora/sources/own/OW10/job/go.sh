#!/bin/bash
litgpt pretrain --config configs/tinyllama.yaml --devices 4 --num_nodes 2 --train.max_tokens 3000000000000 --train.micro_batch_size=8 --resume auto
