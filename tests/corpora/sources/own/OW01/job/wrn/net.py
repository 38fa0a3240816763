import torch.nn as nn


class WideResNet(nn.Module):
    def __init__(self, depth, widen, classes, drop=0.3):
        super().__init__()
        n = (depth - 4) // 6
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.blocks = nn.ModuleList(make_stage(widths[i], widths[i + 1], n, drop) for i in range(3))
        self.head = nn.Linear(widths[-1], classes)
