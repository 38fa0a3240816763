import argparse
import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from presets import PRESETS
from nets import build_model
from optimizers import build_optimizer

logging.basicConfig(format='%(asctime)s %(message)s', level=logging.INFO)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--variant', choices=PRESETS, default='small')
    parser.add_argument('--seed', type=int)
    parser.add_argument('--steps', type=int)
    args = parser.parse_args()
    preset = PRESETS[args.variant]
    steps = args.steps if args.steps is not None else preset['steps']
    dist.init_process_group('nccl')
    model = DistributedDataParallel(build_model(preset['model']).cuda())
    optimizer = build_optimizer(preset['optimizer'], model)
    for step in range(steps):
        loss = model(next_batch('qm9', preset['batch_size']))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 200 == 0:
            logging.info('step %d of %d: %.4f', step, steps, loss.item())
    torch.save(model.module.state_dict(), f'final_{args.seed}.pt')


if __name__ == '__main__':
    main()
