#!/bin/sh
RECIPE=lora_finetune_distributed
CFG="./llama3_8b_lora.yaml"
uv run tune run --nnodes 1 --nproc_per_node 4 $RECIPE --config $CFG batch_size=4 epochs=2 metric_logger._component_=torchtune.training.metric_logging.WandBLogger
