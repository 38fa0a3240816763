N=${NPROC:-2}
torchrun --nproc_per_node "$N" -m vqgan.train config=configs/ffhq.yaml train.batch_size=12 train.accumulate=2
