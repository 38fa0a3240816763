export WANDB_PROJECT=mpt
composer --nproc 8 --world_size 16 --node_rank ${NODE_RANK} --master_addr ${MASTER_ADDR} train/train.py yamls/mpt-1b.yaml \
  data_local=/data/c4 train_loader.dataset.split=train_small max_duration=4800ba eval_interval=0 save_folder=/ckpt/mpt-1b
