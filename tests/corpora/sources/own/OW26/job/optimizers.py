import torch


def build_optimizer(name, model):
    if name == 'adamw':
        return torch.optim.AdamW(model.parameters(), lr=5e-4)
    if name == 'sgd':
        return torch.optim.SGD(model.parameters(), lr=1e-2)
    raise ValueError(name)
