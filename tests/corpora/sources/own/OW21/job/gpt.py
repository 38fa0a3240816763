from dataclasses import dataclass
import flax.linen as nn


@dataclass
class GPTConfig:
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    vocab_size: int = 50304
    dtype: str = 'float32'
    remat: bool = True


class GPT(nn.Module):
    config: GPTConfig
