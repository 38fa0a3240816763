#!/bin/bash
#SBATCH -J segdet
#SBATCH -N 2
#SBATCH --gpus-per-node=a100:4
#SBATCH --ntasks-per-node=4
export HYDRA_FULL_ERROR=1
srun python -u train.py model=deeplab data=voc +exp=long optim.lr=0.02 'hydra.run.dir=/runs/${now:%Y-%m-%d}'
