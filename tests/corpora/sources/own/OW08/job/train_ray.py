import argparse
import os
import tempfile

import torch
import torch.nn as nn
import ray.train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader
from torchvision.datasets import FashionMNIST
from torchvision.models import resnet18
from torchvision.transforms import ToTensor


def train_loop_per_worker(config):
    train = FashionMNIST('/data', train=True, download=True, transform=ToTensor())
    loader = prepare_data_loader(DataLoader(train, batch_size=config['batch_size'], shuffle=True))
    model = prepare_model(resnet18(num_classes=10))
    optimizer = torch.optim.Adam(model.parameters(), lr=config['lr'])
    start = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as d:
            start = torch.load(os.path.join(d, 'state.pt'))['epoch'] + 1
    for epoch in range(start, config['epochs']):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        with tempfile.TemporaryDirectory() as d:
            torch.save({'epoch': epoch, 'model': model.state_dict()}, os.path.join(d, 'state.pt'))
            ray.train.report({'loss': loss.item()}, checkpoint=Checkpoint.from_directory(d))


if __name__ == '__main__':
    p = argparse.ArgumentParser()
    p.add_argument('--workers', type=int, default=4)
    p.add_argument('--per-worker-batch', type=int, default=32)
    a = p.parse_args()
    config = {'lr': 1e-3, 'batch_size': a.per_worker_batch, 'epochs': int(os.environ.get('EPOCHS', '5'))}
    trainer = TorchTrainer(
        train_loop_per_worker, train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=a.workers, use_gpu=True, resources_per_worker={'GPU': 1}),
        run_config=RunConfig(name='fmnist', checkpoint_config=CheckpointConfig(num_to_keep=2), failure_config=FailureConfig(max_failures=2)),
    )
    print(trainer.fit().metrics)
