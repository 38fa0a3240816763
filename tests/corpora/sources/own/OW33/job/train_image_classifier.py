from __future__ import print_function
import tensorflow as tf
from deployment import model_deploy
from nets import nets_factory
slim = tf.contrib.slim

tf.app.flags.DEFINE_string('train_dir', '/tmp/tfmodel/', 'Directory where checkpoints and event logs are written to.')
tf.app.flags.DEFINE_integer('num_clones', 1, 'Number of model clones to deploy, one a GPU.')
tf.app.flags.DEFINE_integer('log_every_n_steps', 10, 'The frequency with which logs are print.')
tf.app.flags.DEFINE_integer('save_interval_secs', 600, 'The frequency with which the model is saved, in seconds.')
tf.app.flags.DEFINE_string('optimizer', 'rmsprop', 'The name of the optimizer.')
tf.app.flags.DEFINE_string('dataset_name', 'imagenet', 'The name of the dataset to load.')
tf.app.flags.DEFINE_string('model_name', 'inception_v3', 'The name of the architecture to train.')
tf.app.flags.DEFINE_integer('batch_size', 32, 'The number of samples in each batch, for each clone.')
tf.app.flags.DEFINE_integer('max_number_of_steps', None, 'The maximum number of training steps.')
FLAGS = tf.app.flags.FLAGS


def main(_):
    deploy_config = model_deploy.DeploymentConfig(num_clones=FLAGS.num_clones)
    network_fn = nets_factory.get_network_fn(FLAGS.model_name, num_classes=5, is_training=True)
    print 'training', FLAGS.model_name
    slim.learning.train(train_tensor, logdir=FLAGS.train_dir, number_of_steps=FLAGS.max_number_of_steps, save_interval_secs=FLAGS.save_interval_secs)


if __name__ == '__main__':
    tf.app.run()
