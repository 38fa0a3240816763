ARCH = convnext_tiny
BATCH = 96
EPOCHS = 300
PRECISION = bf16
