#!/bin/bash
python main.py --multirun model=gru,transformer data=wikitext103 trainer.max_steps=40000 optimizer.lr=1e-4,3e-4 trainer.devices=2
