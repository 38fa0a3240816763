from tracker.defaults import BATCH, EPOCHS, STEPS_PER_EPOCH
SETTINGS = dict(dataset='MOT17', epochs=EPOCHS + 20, batch=BATCH // 2, steps_per_epoch=STEPS_PER_EPOCH)
