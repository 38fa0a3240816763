#!/usr/bin/env bash
cd "$(dirname "$0")"
python charlm.py train --corpus=data/shakespeare.txt --hidden=512 --layers 3 --bs=128 --iters=20000 --opt=rmsprop
