"""A small linear regression by stochastic gradient descent; prints one line a step, as plain training scripts do.

python train_steps.py --max-steps 60 --batch-size 32 --lr 0.05
"""

import argparse
import random
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--step-time", type=float, default=0.05, help="seconds that a step takes at least")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    weight, bias = 0.0, 0.0
    for step in range(1, args.max_steps + 1):
        started = time.monotonic()
        batch = [(x, 3.0 * x + 1.0 + rng.gauss(0, 0.1)) for x in (rng.uniform(-1, 1) for _ in range(args.batch_size))]
        errors = [(weight * x + bias - y, x) for x, y in batch]
        loss = sum(e * e for e, _ in errors) / len(errors)
        weight -= args.lr * sum(2 * e * x for e, x in errors) / len(errors)
        bias -= args.lr * sum(2 * e for e, _ in errors) / len(errors)
        print(f"step {step}/{args.max_steps} loss={loss:.4f} lr={args.lr}", flush=True)
        time.sleep(max(0.0, args.step_time - (time.monotonic() - started)))
    print(f"done: y = {weight:.2f} x + {bias:.2f}", flush=True)


if __name__ == "__main__":
    main()
