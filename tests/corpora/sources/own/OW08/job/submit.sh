ray job submit --address http://head:8265 --working-dir . --runtime-env runtime.yaml -- python train_ray.py --workers 16 --per-worker-batch 48
