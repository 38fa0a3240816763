import pytorch_lightning as pl
import torch
from datasets import load_dataset
from torch import nn


class GRUNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.GRU(hidden, hidden, 2)


class TransformerNet(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8), layers)


class LMModule(pl.LightningModule):
    def __init__(self, net, lr):
        super().__init__()
        self.net, self.lr = net, lr

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def corpus(name, seq, batch_size):
    return torch.utils.data.DataLoader(load_dataset(name, split="train"), batch_size=batch_size, shuffle=True)
