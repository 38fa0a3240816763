import argparse, os
import timm, torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torchvision import datasets, transforms


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--arch", default="resnet18")
    p.add_argument("--bs", type=int, default=32)
    p.add_argument("--epochs", type=int, default=90)
    p.add_argument("--bf16", action="store_true")
    p.add_argument("--ckpt-dir", default=None)
    return p.parse_args()


def main():
    o = options()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = FSDP(timm.create_model(o.arch, num_classes=1000).cuda())
    data = datasets.ImageFolder("/data/imagenet/train", transforms.ToTensor())
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=o.bs, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    dtype = torch.bfloat16 if o.bf16 else torch.float32
    path = os.path.join(o.ckpt_dir, "last.pt")
    start = 0
    if os.path.exists(path):
        state = torch.load(path)
        start = state["epoch"] + 1
        model.load_state_dict(state["model"])
    for epoch in range(start, o.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            with torch.autocast("cuda", dtype=dtype):
                loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
        if dist.get_rank() == 0:
            print("epoch", epoch, float(loss))
            torch.save({"epoch": epoch, "model": model.state_dict()}, path)


if __name__ == "__main__":
    main()
