"""A perceptron that learns a majority vote; prints a summary an epoch, keeps checkpoints and can resume from one.

python train_epochs.py --epochs 6 [--resume FILE]
"""

import argparse
import json
import os
import random
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epoch-time", type=float, default=0.5)
    parser.add_argument("--resume", default=os.environ.get("SCHEDMATE_RESUME_FROM"))
    args = parser.parse_args()
    rng = random.Random(3)
    weights, first = [0.0] * 9, 1
    if args.resume:
        saved = json.loads(Path(args.resume).read_text())
        weights, first = saved["weights"], saved["epoch"] + 1
        print(f"resumed from {args.resume} after epoch {saved['epoch']}", flush=True)
    folder = Path(os.environ.get("SCHEDMATE_CHECKPOINT_DIR", "checkpoints"))
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in range(first, args.epochs + 1):
        started, wrong = time.monotonic(), 0
        for _ in range(args.samples):
            votes = [rng.choice((-1, 1)) for _ in weights]
            truth = 1 if sum(votes) > 0 else -1
            if truth * sum(w * v for w, v in zip(weights, votes, strict=True)) <= 0:
                wrong += 1
                weights = [w + 0.1 * truth * v for w, v in zip(weights, votes, strict=True)]
        time.sleep(max(0.0, args.epoch_time - (time.monotonic() - started)))
        accuracy = 1 - wrong / args.samples
        print(f"Epoch {epoch}/{args.epochs} - loss: {wrong / args.samples:.4f} - accuracy: {accuracy:.4f}", flush=True)
        path = folder / f"epoch-{epoch:03d}.json"
        path.write_text(json.dumps({"epoch": epoch, "weights": weights}))
        print(f"Saved checkpoint to {path}", flush=True)


if __name__ == "__main__":
    main()
