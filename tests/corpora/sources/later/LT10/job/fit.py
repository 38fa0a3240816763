import argparse
import tensorflow as tf
from tensorflow import keras


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--size", type=int, default=50000)
    p.add_argument("--warmup", type=int, default=0)
    return p.parse_args()


def main():
    o = options()
    strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])
    (x, y), test = keras.datasets.cifar10.load_data()
    x, y = x[: o.size] / 255.0, y[: o.size]
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10000).repeat().batch(o.batch)
    per_epoch = o.size // o.batch
    keras.mixed_precision.set_global_policy("mixed_float16")
    with strategy.scope():
        net = keras.applications.MobileNetV2(input_shape=(32, 32, 3), weights=None, classes=10)
        rate = keras.optimizers.schedules.CosineDecay(1e-3, per_epoch * o.epochs)
        net.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    net.fit(data, epochs=o.epochs, steps_per_epoch=per_epoch, callbacks=[
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.BackupAndRestore("/tmp/bk"),
    ])


if __name__ == "__main__":
    main()
