import hydra
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from pytorch_lightning import Trainer
from lm import LMModule, corpus


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg: DictConfig):
    net = instantiate(cfg.model)
    module = LMModule(net, lr=cfg.optimizer.lr)
    loader = corpus(cfg.data.name, cfg.data.seq, batch_size=cfg.data.batch_size)
    trainer = Trainer(max_steps=cfg.trainer.max_steps, devices=cfg.trainer.devices, accelerator="gpu", strategy=cfg.trainer.strategy, precision=cfg.trainer.precision, logger=instantiate(cfg.logger))
    trainer.fit(module, loader)


if __name__ == "__main__":
    main()
