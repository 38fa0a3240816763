"""k-means on random points, with a progress bar in the manner of tqdm: redrawn in place with carriage returns.

python train_bar.py --steps 40
"""

import argparse
import random
import sys
import time


def bar(done: int, total: int, started: float) -> str:
    elapsed = max(time.monotonic() - started, 1e-6)
    rate = done / elapsed
    left = (total - done) / rate if rate else 0.0
    filled = int(20 * done / total)
    clock = [f"{int(s) // 60:02d}:{int(s) % 60:02d}" for s in (elapsed, left)]
    return f"Training: {100 * done // total:3d}%|{'█' * filled}{' ' * (20 - filled)}| {done}/{total} [{clock[0]}<{clock[1]}, {rate:5.2f}it/s]"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--step-time", type=float, default=0.08)
    args = parser.parse_args()
    rng = random.Random(7)
    points = [(rng.random(), rng.random()) for _ in range(400)]
    centres = rng.sample(points, args.clusters)
    started = time.monotonic()
    for step in range(1, args.steps + 1):
        groups: list[list[tuple[float, float]]] = [[] for _ in centres]
        for x, y in points:
            nearest = min(range(len(centres)), key=lambda k: (centres[k][0] - x) ** 2 + (centres[k][1] - y) ** 2)
            groups[nearest].append((x, y))
        centres = [
            (sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) if g else c
            for g, c in zip(groups, centres, strict=True)
        ]
        sys.stderr.write("\r" + bar(step, args.steps, started))
        sys.stderr.flush()
        time.sleep(args.step_time)
    sys.stderr.write("\n")
    print("centres:", ", ".join(f"({x:.2f}, {y:.2f})" for x, y in centres))


if __name__ == "__main__":
    main()
