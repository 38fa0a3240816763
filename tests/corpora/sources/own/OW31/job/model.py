from torch import nn


class Seq2SeqTransformer(nn.Module):
    def __init__(self, hidden, src, tgt):
        super().__init__()
        self.transformer = nn.Transformer(hidden)
