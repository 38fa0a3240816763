#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=1
source ./env.sh
srun python main.py --workdir="$OUT" --config=configs/mae.py:base --config.batch_size=1024 --config.opt.lr=1.5e-4
