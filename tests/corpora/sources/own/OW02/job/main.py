from absl import app, flags, logging
import flax
import flax.jax_utils as flax_utils
import jax
import optax
import tensorflow_datasets as tfds
from clu import metric_writers
from flax.training import checkpoints
from ml_collections import config_flags
import models

config_flags.DEFINE_config_file('config', None, 'Training configuration.', lock_config=True)
flags.DEFINE_string('workdir', default=None, help='Work unit directory.')
flags.DEFINE_boolean('cleanup', default=False, help='Delete workdir after training.')
FLAGS = flags.FLAGS


def main(argv):
    del argv
    config = FLAGS.config
    writer = metric_writers.create_default_writer(FLAGS.workdir)
    ds = tfds.load(config.input.data['name'], split=config.input.data['split'])
    batch_size = config.input.batch_size
    per_device = batch_size // jax.device_count()
    model = models.make(config.model_name, num_classes=config.num_classes, **config.model)
    tx = optax.chain(optax.clip_by_global_norm(config.grad_clip_norm), optax.adamw(config.lr, weight_decay=config.wd))
    state = flax_utils.replicate(create_state(model, tx))
    state = checkpoints.restore_checkpoint(FLAGS.workdir, state)
    p_update = jax.pmap(update_fn, axis_name='batch')
    for step, batch in enumerate(batches(ds, batch_size, config.total_epochs)):
        state, loss = p_update(state, batch)
        if step % config.log_training_steps == 0:
            logging.info('step %d loss %.3f', step, loss[0])
            writer.write_scalars(step, {'loss': loss[0]})
        if step % config.ckpt_steps == 0:
            checkpoints.save_checkpoint(FLAGS.workdir, flax_utils.unreplicate(state), step)


if __name__ == '__main__':
    app.run(main)
