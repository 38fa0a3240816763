COMMON = dict(optimizer='adamw', batch_size=64)
PRESETS = {
    'small': {**COMMON, 'model': 'schnet', 'steps': 100_000},
    'medium': {**COMMON, 'model': 'painn', 'steps': 250_000, 'batch_size': 48},
    'large': {**COMMON, 'model': 'painn', 'steps': 500_000, 'optimizer': 'sgd'},
}
