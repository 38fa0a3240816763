#!/bin/sh
exec python cli.py fit -c base.yaml -c asr.yaml --trainer.max_epochs=25 --data.batch_size 12 --model.lr 3e-4
