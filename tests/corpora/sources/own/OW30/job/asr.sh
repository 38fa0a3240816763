#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8 --ntasks-per-node=8
CONFIG=conformer_ctc_bpe
srun --container-image=nvcr.io/nvidia/nemo:24.07 python examples/asr/speech_to_text_ctc_bpe.py \
  --config-path=../../conf --config-name=$CONFIG \
  model.train_ds.manifest_filepath=/data/mls_de/train.json model.train_ds.batch_size=24 \
  trainer.num_nodes=2 trainer.devices=8 trainer.precision=bf16 ++trainer.max_steps=100000 \
  exp_manager.create_wandb_logger=True exp_manager.resume_if_exists=true
