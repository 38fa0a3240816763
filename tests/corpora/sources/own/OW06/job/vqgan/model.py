import torch


class VQGAN(torch.nn.Module):
    def __init__(self, arch, codebook, ema):
        super().__init__()
        self.codebook = torch.nn.Embedding(codebook, 256)
