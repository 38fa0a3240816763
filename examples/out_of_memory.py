"""A run that asks for more GPU memory than there is: it ends with PyTorch's own words for that. A retry would not help.

python out_of_memory.py --batch-size 4096
"""

import argparse
import time


class OutOfMemoryError(RuntimeError):
    """Named and worded as PyTorch's."""


OutOfMemoryError.__module__ = "torch.cuda"


def allocate(batch_size: int) -> None:
    wanted_mib = batch_size * 12
    if wanted_mib > 40_000:
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {wanted_mib / 1024:.2f} GiB. GPU 0 has a total capacity of 39.39 GiB of which "
            "1.05 GiB is free. Including non-PyTorch memory, this process has 38.33 GiB memory in use."
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--max-steps", type=int, default=100)
    args = parser.parse_args()
    for step in range(1, args.max_steps + 1):
        print(f"step {step}/{args.max_steps}", flush=True)
        time.sleep(0.1)
        if step == 3:
            allocate(args.batch_size)


if __name__ == "__main__":
    main()
