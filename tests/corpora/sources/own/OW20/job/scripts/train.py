import argparse
from pathlib import Path

import lightning as L
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from monai.networks.nets import SwinUNETR
from segm.module import SegmentationModule, CTData


def merge(a, b):
    out = dict(a)
    for key, value in b.items():
        out[key] = merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def load(path):
    cfg = yaml.safe_load(Path(path).read_text())
    parents = cfg.pop('inherit', [])
    base = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        base = merge(base, load(Path(path).parent / parent))
    return merge(base, cfg)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--cfg', required=True)
    ap.add_argument('--opts', nargs='*', default=[])
    ap.add_argument('--ckpt', default=None)
    args = ap.parse_args()
    cfg = load(args.cfg)
    for item in args.opts:
        key, value = item.split('=')
        node = cfg
        *parents, leaf = key.split('.')
        for p in parents:
            node = node[p]
        node[leaf] = yaml.safe_load(value)
    net = SwinUNETR(img_size=96, in_channels=1, out_channels=14, feature_size=cfg['model']['feature_size'], use_checkpoint=cfg['model']['checkpointing'])
    logger = WandbLogger(project='ct') if cfg['wandb'] else CSVLogger('logs')
    trainer = L.Trainer(**cfg['trainer'], logger=logger, callbacks=[ModelCheckpoint(every_n_train_steps=500)])
    trainer.fit(SegmentationModule(net, **cfg['optim']), CTData(**cfg['data']), ckpt_path=args.ckpt)


if __name__ == '__main__':
    main()
