SETTINGS = dict(dataset='MOT20', epochs=10, batch=1, steps_per_epoch=800)
