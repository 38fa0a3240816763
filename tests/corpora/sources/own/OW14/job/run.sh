#!/bin/bash
# two boxes with four cards each
HOSTS="gpu-a:4,gpu-b:4"
horovodrun -np 8 -H $HOSTS --fusion-threshold-mb 32 python unet_keras.py --epochs=75 --batch-size=4
