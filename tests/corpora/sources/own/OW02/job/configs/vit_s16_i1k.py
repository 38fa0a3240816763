import ml_collections


def get_config():
    config = ml_collections.ConfigDict()
    config.seed = 0
    config.total_epochs = 300
    config.num_classes = 1000
    config.input = ml_collections.ConfigDict()
    config.input.data = dict(name='imagenet2012', split='train[:99%]')
    config.input.batch_size = 1024
    config.input.cache_raw = True
    config.model_name = 'vit'
    config.model = dict(variant='S/16', rep_size=True, pool_type='gap')
    config.optax_name = 'scale_by_adam'
    config.optax = dict(mu_dtype='bfloat16')
    config.grad_clip_norm = 1.0
    config.lr = 0.001
    config.wd = 0.0001
    config.log_training_steps = 50
    config.ckpt_steps = 1000
    return config
