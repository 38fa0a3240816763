#!/bin/sh
#SBATCH --gres=gpu:1
#SBATCH --time=02:00:00
jupyter nbconvert --to notebook --execute forecast.ipynb --output out.ipynb --ExecutePreprocessor.timeout=-1
