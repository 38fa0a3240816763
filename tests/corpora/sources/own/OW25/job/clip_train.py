from argparse import ArgumentParser

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import FSDPStrategy
from transformers import CLIPModel

PRETRAINED = 'openai/clip-vit-large-patch14'
CC12M_PAIRS = 10_000_000


class ContrastiveModule(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.clip = CLIPModel.from_pretrained(PRETRAINED)
        self.clip.gradient_checkpointing_enable()

    def training_step(self, batch, _):
        out = self.clip(**batch, return_loss=True)
        self.log('loss', out.loss)
        return out.loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.2)


def build_parser():
    p = ArgumentParser()
    p.add_argument('--devices', type=int, default=1)
    p.add_argument('--nodes', type=int, default=1)
    p.add_argument('--bs', type=int, default=64)
    p.add_argument('--lr', type=float, default=1e-5)
    p.add_argument('--max_epochs', type=int, default=8)
    p.add_argument('--fsdp', action='store_true')
    return p


def main():
    args = build_parser().parse_args()
    strategy = FSDPStrategy(sharding_strategy='FULL_SHARD') if args.fsdp else 'ddp'
    trainer = pl.Trainer(
        accelerator='gpu', devices=args.devices, num_nodes=args.nodes, strategy=strategy, precision='16-mixed',
        max_epochs=args.max_epochs, accumulate_grad_batches=2, logger=TensorBoardLogger('/tb', name='clip'),
        callbacks=[ModelCheckpoint(dirpath='/ckpt/clip', save_last=True), LearningRateMonitor('step')],
    )
    from data import shards
    trainer.fit(ContrastiveModule(args.lr), shards('/data/cc12m', batch_size=args.bs), ckpt_path='last')


if __name__ == '__main__':
    main()
