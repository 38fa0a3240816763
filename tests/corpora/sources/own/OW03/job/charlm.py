"""A character LSTM; `python charlm.py train --help`."""
import fire
import torch
from torch import nn


class CharLSTM(nn.Module):
    def __init__(self, vocab, hidden, layers):
        super().__init__()
        self.emb = nn.Embedding(vocab, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, vocab)


OPTIMIZERS = {'adam': torch.optim.Adam, 'rmsprop': torch.optim.RMSprop, 'sgd': torch.optim.SGD}


def train(corpus, hidden=256, layers=2, bs=64, seq=256, iters=5000, lr=2e-3, opt='adam', save='char.pt'):
    text = open(corpus).read()
    chars = sorted(set(text))
    model = CharLSTM(len(chars), hidden, layers).cuda()
    optimizer = OPTIMIZERS[opt](model.parameters(), lr=lr)
    for it in range(iters):
        x, y = sample(text, bs, seq)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if it % 100 == 0:
            print(f'{it:6d} {loss.item():.4f}')
    torch.save(model.state_dict(), save)


def generate(checkpoint, length=1000, temperature=0.8):
    model = torch.load(checkpoint)
    print(model.sample(length, temperature))


if __name__ == '__main__':
    fire.Fire({'train': train, 'generate': generate})
