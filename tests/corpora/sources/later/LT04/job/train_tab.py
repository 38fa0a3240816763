import argparse, os
import numpy as np
import pandas as pd
import torch
from torch import nn


class ResNetTab(nn.Module):
    def __init__(self, d_in, width=256, blocks=4):
        super().__init__()
        self.inp = nn.Linear(d_in, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(blocks))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = x + b(x)
        return self.out(x)


p = argparse.ArgumentParser()
p.add_argument("--fold", type=int, required=True)
p.add_argument("--seed", type=int, default=0)
p.add_argument("--lr", type=float, default=1e-3)
p.add_argument("--bs", type=int, default=128)
p.add_argument("--steps", type=int, default=1000)
a = p.parse_args()
torch.manual_seed(a.seed)
frame = pd.read_parquet(os.environ["DATA"])
x, y = torch.tensor(frame.values[:, 1:]).cuda(), torch.tensor(frame.values[:, 0]).cuda()
net = ResNetTab(28).cuda()
opt = torch.optim.RAdam(net.parameters(), lr=a.lr)
for step in range(a.steps):
    at = torch.randint(len(x), (a.bs,), device="cuda")
    loss = nn.functional.binary_cross_entropy_with_logits(net(x[at]).squeeze(1), y[at])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 500 == 0:
        print(f"fold {a.fold} step {step} loss {loss.item():.5f}", flush=True)
torch.save(net.state_dict(), f"fold{a.fold}.pt")
