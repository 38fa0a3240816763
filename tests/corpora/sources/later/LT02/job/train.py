import functools
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
import tensorflow_datasets as tfds
from absl import logging
from clu import metric_writers
from flax.training import train_state
from vit import MaskedAutoencoder


def loader(cfg, per_host):
    ds = tfds.load(cfg.dataset, split="train", shuffle_files=True)
    return ds.repeat().shuffle(100_000).batch(per_host, drop_remainder=True)


def train_and_evaluate(cfg, workdir):
    writer = metric_writers.create_default_writer(workdir)
    model = MaskedAutoencoder(width=cfg.model.width, depth=cfg.model.depth, patch=cfg.model.patch, dtype=jnp.dtype(cfg.dtype))
    tx = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, cfg.opt.lr, 10_000, cfg.total_steps), b2=cfg.opt.b2)
    params = model.init(jax.random.PRNGKey(0), jnp.ones((2, 224, 224, 3)))
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    manager = ocp.CheckpointManager(workdir, ocp.PyTreeCheckpointer(), ocp.CheckpointManagerOptions(max_to_keep=2))
    first = manager.latest_step() or 0
    if first:
        state = manager.restore(first, items=state)
    state = jax.device_put_replicated(state, jax.local_devices())

    @functools.partial(jax.pmap, axis_name="d")
    def update(state, batch):
        loss, grads = jax.value_and_grad(lambda p: state.apply_fn(p, batch).mean())(state.params)
        return state.apply_gradients(grads=jax.lax.pmean(grads, "d")), loss

    data = iter(loader(cfg, cfg.batch_size // jax.process_count()))
    for step in range(first, cfg.total_steps):
        state, loss = update(state, next(data))
        if step % 100 == 0:
            writer.write_scalars(step, {"loss": float(loss[0])})
            logging.info("step %d loss %.4f", step, float(loss[0]))
        if step % cfg.checkpoint_every == 0:
            manager.save(step, jax.tree_util.tree_map(lambda x: x[0], state))
