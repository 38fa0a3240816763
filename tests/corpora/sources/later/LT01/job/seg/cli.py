import os
import click, torch, yaml
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.models.segmentation import deeplabv3_resnet50
from .data import Cityscapes


def put(cfg, dotted, value):
    *path, last = dotted.split(".")
    for part in path:
        cfg = cfg[part]
    cfg[last] = yaml.safe_load(value)


@click.group()
def cli():
    pass


@cli.command()
@click.argument("config", type=click.Path(exists=True))
@click.option("--amp/--no-amp", default=False)
@click.option("--set", "sets", multiple=True)
@click.option("--resume", default=None)
def fit(config, amp, sets, resume):
    cfg = yaml.safe_load(open(config))
    for one in sets:
        key, _, value = one.partition("=")
        put(cfg, key, value)
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    net = deeplabv3_resnet50(num_classes=19).cuda()
    net = DDP(net, device_ids=[rank])
    data = Cityscapes(cfg["data"]["root"], cfg["data"]["crop"])
    loader = DataLoader(data, batch_size=cfg["data"]["batch"], sampler=DistributedSampler(data), num_workers=cfg["data"]["workers"])
    opt = torch.optim.SGD(net.parameters(), lr=cfg["optim"]["lr"], momentum=cfg["optim"]["momentum"])
    scaler = torch.cuda.amp.GradScaler(enabled=amp)
    first = 0
    if resume:
        state = torch.load(resume)
        net.module.load_state_dict(state["net"])
        first = state["epoch"] + 1
    every = cfg["schedule"]["accumulate"]
    for epoch in range(first, cfg["schedule"]["max_epochs"]):
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                loss = torch.nn.functional.cross_entropy(net(x.cuda())["out"], y.cuda(), ignore_index=255)
            scaler.scale(loss / every).backward()
            if (i + 1) % every == 0:
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
            torch.save({"net": net.module.state_dict(), "epoch": epoch}, "last.pt")


if __name__ == "__main__":
    cli()
