"""GPT-2 small on OpenWebText in plain JAX: python train.py"""
import os
from dataclasses import dataclass

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from gpt import GPT, GPTConfig

os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0,1,2,3')

DATASET = 'openwebtext'
BATCH_PER_DEVICE = 16
GRAD_ACCUM = 5
MAX_STEPS = 150_000
EVAL_EVERY = 1_000
LR = 6e-4


@dataclass
class Schedule:
    warmup: int = 2_000
    decay: int = MAX_STEPS


def main():
    mesh = Mesh(np.array(jax.devices()), ('data',))
    sharding = NamedSharding(mesh, P('data'))
    config = GPTConfig(n_layer=12, n_head=12, n_embd=768, dtype='bfloat16', remat=False)
    model = GPT(config)
    schedule = optax.warmup_cosine_decay_schedule(0.0, LR, Schedule().warmup, Schedule().decay)
    tx = optax.MultiSteps(optax.adamw(schedule, b2=0.95, weight_decay=0.1), every_k_schedule=GRAD_ACCUM)
    manager = ocp.CheckpointManager('/ckpt/gpt2', options=ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=EVAL_EVERY))
    state = init(model, tx)
    start = manager.latest_step() or 0
    if start:
        state = manager.restore(start)
    total = BATCH_PER_DEVICE * jax.device_count()
    for step in range(start, MAX_STEPS):
        tokens = jax.device_put(sample(DATASET, total), sharding)
        state, loss = train_step(state, tokens)
        manager.save(step, args=ocp.args.StandardSave(state))
        if step % 100 == 0:
            print(f'step {step} loss {float(loss):.4f}')


if __name__ == '__main__':
    main()
