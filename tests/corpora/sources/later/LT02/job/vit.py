import flax.linen as nn


class MaskedAutoencoder(nn.Module):
    width: int
    depth: int
    patch: int
    dtype: object = None

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(self.width, (self.patch, self.patch), strides=(self.patch, self.patch), dtype=self.dtype)(x)
        for _ in range(self.depth):
            x = x + nn.SelfAttention(12, dtype=self.dtype)(nn.LayerNorm()(x))
        return x
