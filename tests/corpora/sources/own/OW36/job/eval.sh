#!/bin/bash
#SBATCH --gpus=1
export HF_HOME=/cache/hf
CKPT=${1:-EleutherAI/pythia-2.8b}
lm_eval --model hf --model_args pretrained=$CKPT,dtype=float16 --tasks hellaswag,arc_easy --device cuda:0 --batch_size 16 --output_path results
