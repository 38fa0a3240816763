import argparse
import math
import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tensorflow import keras

parser = argparse.ArgumentParser()
parser.add_argument('--epochs', type=int, default=50)
parser.add_argument('--batch-size', type=int, default=2)
parser.add_argument('--base-lr', type=float, default=1e-4)
parser.add_argument('--images', default='/data/brats2020')
args = parser.parse_args()

hvd.init()
gpus = tf.config.experimental.list_physical_devices('GPU')
tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')


def unet(size=240, channels=4, classes=4):
    inputs = keras.Input((size, size, channels))
    x, skips = inputs, []
    for width in (32, 64, 128, 256):
        x = keras.layers.Conv2D(width, 3, padding='same', activation='relu')(x)
        skips.append(x)
        x = keras.layers.MaxPooling2D()(x)
    for width, skip in zip((256, 128, 64, 32), reversed(skips)):
        x = keras.layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = keras.layers.Concatenate()([x, skip])
    return keras.Model(inputs, keras.layers.Conv2D(classes, 1, activation='softmax')(x), name='unet')


model = unet()
opt = hvd.DistributedOptimizer(keras.optimizers.Adam(args.base_lr * hvd.size()))
model.compile(optimizer=opt, loss='categorical_crossentropy', metrics=['accuracy'])
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
if hvd.rank() == 0:
    callbacks += [keras.callbacks.ModelCheckpoint('/ckpt/unet.{epoch}.h5'), keras.callbacks.CSVLogger('/logs/unet.csv')]
model.fit(slices(args.images, args.batch_size), epochs=args.epochs, callbacks=callbacks, verbose=1 if hvd.rank() == 0 else 0)
