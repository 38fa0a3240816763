CUDA_VISIBLE_DEVICES="1,3" python scripts/train.py --cfg experiments/ct/large.yaml --opts trainer.max_steps=40000 data.batch_size=3
