from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import wandb
from omegaconf import OmegaConf
from vqgan.model import VQGAN


def load(path):
    conf = OmegaConf.load(path)
    if 'base' in conf:
        parent = load(Path(path).parent / conf.pop('base'))
        conf = OmegaConf.merge(parent, conf)
    return conf


def main():
    cli = OmegaConf.from_cli()
    cfg = OmegaConf.merge(load(cli.pop('config')), cli)
    dist.init_process_group('nccl')
    model = torch.nn.parallel.DistributedDataParallel(VQGAN(**cfg.model).cuda())
    opt = {'adam': torch.optim.Adam, 'adamw': torch.optim.AdamW}[cfg.train.optimizer](model.parameters(), lr=4.5e-6, betas=(0.5, 0.9))
    if cfg.logger == 'wandb' and dist.get_rank() == 0:
        wandb.init(project='vqgan', config=OmegaConf.to_container(cfg))
    step = 0
    last = Path('ckpt/last.pt')
    if last.exists():
        state = torch.load(last)
        model.load_state_dict(state['model']); step = state['step']
    while step < cfg.train.max_steps:
        for micro in range(cfg.train.accumulate):
            with torch.autocast('cuda', dtype=torch.bfloat16, enabled=cfg.train.mixed_precision == 'bf16'):
                loss = model(next_batch(cfg.data.root, cfg.train.batch_size)) / cfg.train.accumulate
            loss.backward()
        opt.step(); opt.zero_grad(); step += 1
        if step % cfg.train.save_every == 0:
            torch.save({'model': model.state_dict(), 'step': step}, last)


if __name__ == '__main__':
    main()
