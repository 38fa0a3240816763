#!/bin/sh
P=params/big.yaml
papermill tune.ipynb out/tune_$(date +%F).ipynb -f $P -p n_epochs 8 -k python3
