"""A run whose first node has a broken GPU: it prints what the driver prints for it, and dies. Elsewhere it works.

On a machine with a real fault the kernel writes the line into the kernel log itself. Here the program plays both parts: with
--kernel-log-dir it also appends the line to the log of the node that it runs on, where the worker looks for it.

    python driver_fault.py --steps 30 --kernel-log-dir DIR
"""

import argparse
import os
import sys
import time
from pathlib import Path

LINE = "NVRM: Xid (PCI:0000:3b:00): 79, pid={pid}, name=python, GPU has fallen off the bus."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--fails-at", type=int, default=5)
    parser.add_argument("--step-time", type=float, default=0.1)
    parser.add_argument("--kernel-log-dir")
    args = parser.parse_args()
    broken = os.environ.get("SCHEDMATE_ATTEMPT", "1") == "1"
    for step in range(1, args.steps + 1):
        if broken and step == args.fails_at:
            line = LINE.format(pid=os.getpid())
            if args.kernel_log_dir:
                with (Path(args.kernel_log_dir) / f"{os.environ['SCHEDMATE_NODE']}.log").open("a") as log:
                    log.write(f"[{time.monotonic():12.6f}] {line}\n")
            print(line, file=sys.stderr, flush=True)
            print("RuntimeError: CUDA error: unspecified launch failure", file=sys.stderr, flush=True)
            sys.exit(1)
        print(f"step {step}/{args.steps} loss={1 / step:.4f}", flush=True)
        time.sleep(args.step_time)


if __name__ == "__main__":
    main()
