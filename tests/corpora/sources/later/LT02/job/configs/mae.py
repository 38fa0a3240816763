import ml_collections as mlc


def get_config(variant="base"):
    c = mlc.ConfigDict()
    c.variant = variant
    c.dataset = "imagenet2012"
    c.batch_size = 4096
    c.total_steps = 250_000
    c.dtype = "bfloat16"
    c.model = mlc.ConfigDict(dict(width={"base": 768, "large": 1024}[variant], depth={"base": 12, "large": 24}[variant], patch=16))
    c.opt = mlc.ConfigDict()
    c.opt.name = "adamw"
    c.opt.lr = 1e-4
    c.opt.b2 = 0.95
    c.checkpoint_every = 5000
    return c
