#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
MODEL=meta-llama/Llama-3.1-70B-Instruct
PORT=${PORT:-8000}
apptainer exec --nv vllm.sif vllm serve "$MODEL" \
  --tensor-parallel-size 4 --dtype bfloat16 --max-model-len 16384 --gpu-memory-utilization 0.92 --port $PORT
