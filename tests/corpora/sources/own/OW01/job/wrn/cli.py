import os
import click
import torch
import torch.distributed as dist
from torchvision import datasets, transforms
from torch.nn.parallel import DistributedDataParallel as DDP
from wrn.net import WideResNet


@click.group()
def main():
    pass


@main.command()
@click.option('--depth', type=int, default=16)
@click.option('--widen', type=int, default=4)
@click.option('--batch', default=128, show_default=True, help='per process')
@click.option('--epochs', default=200)
@click.option('--lr', default=0.1)
@click.option('--workers', default=4)
@click.option('--amp/--no-amp', default=False)
@click.option('--out', required=True)
def fit(depth, widen, batch, epochs, lr, workers, amp, out):
    dist.init_process_group('nccl')
    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    train = datasets.CIFAR100('/data', train=True, transform=transforms.ToTensor())
    sampler = torch.utils.data.distributed.DistributedSampler(train)
    loader = torch.utils.data.DataLoader(train, batch, sampler=sampler, num_workers=workers)
    net = DDP(WideResNet(depth, widen, 100).cuda())
    opt = torch.optim.SGD(net.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    scaler = torch.cuda.amp.GradScaler(enabled=amp)
    for epoch in range(epochs):
        for x, y in loader:
            with torch.cuda.amp.autocast(enabled=amp):
                loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
            opt.zero_grad(); scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
        click.echo(f'epoch {epoch} loss {loss.item():.4f}')
        if dist.get_rank() == 0:
            torch.save(net.state_dict(), f'{out}/last.pt')


if __name__ == '__main__':
    main()
