#!/bin/bash
run() {
  local cfg=$1; shift
  python -m torch.distributed.launch --use_env --nproc_per_node=2 -m tracker.train --preset $cfg "$@"
}
run mot17 --amp
