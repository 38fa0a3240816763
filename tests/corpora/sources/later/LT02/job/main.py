from absl import app, flags, logging
from ml_collections import config_flags
import jax
import tensorflow as tf
from train import train_and_evaluate

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", None, "where to write")
config_flags.DEFINE_config_file("config", None, "experiment", lock_config=True)


def main(argv):
    tf.config.experimental.set_visible_devices([], "GPU")
    logging.info("devices: %s", jax.local_devices())
    train_and_evaluate(FLAGS.config, FLAGS.workdir)


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main)
