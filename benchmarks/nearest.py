"""What the approximate search beyond 100,000 vectors finds of what an exact one would, and what it costs.

    python -m benchmarks.nearest [--vectors 150000] [--exact 100000] [--dimensions 640]

Vectors are drawn around centres, as those of workloads lie; those asked about are new ones around the same centres. `--exact 1000` leaves
nearly all to the graph.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from schedmate.infra.embeddings.approximate import OLDER_MAX, LayeredIndex

NEAREST = 10
ASKED = 200


def main() -> int:
    """Print recall, times and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=150_000)
    parser.add_argument("--exact", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=640)
    parser.add_argument("--centres", type=int, default=2_000)
    parser.add_argument("--spread", type=float, default=0.7)
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(given.centres, given.dimensions)).astype(np.float32)
    vectors = _around(draw, centres, given.vectors, given.spread)
    index = LayeredIndex(given.exact, OLDER_MAX)
    began = time.process_time()
    for place, vector in enumerate(vectors):
        index.add(place, vector)
    added_us = 1e6 * (time.process_time() - began) / given.vectors
    found, took_s = 0, 0.0
    for one in _around(draw, centres, ASKED, given.spread):
        began = time.process_time()
        near = {place for place, _ in index.nearest(one, NEAREST)}
        took_s += time.process_time() - began
        found += len(near & set(np.argpartition(-(vectors @ one), NEAREST)[:NEAREST].tolist()))
    older = index._graph  # noqa: SLF001 - its memory is wanted
    graph_mb = older.memory_usage / 1e6 if older is not None else 0.0
    print(
        f"{given.vectors} vectors of {given.dimensions}, the newest {given.exact} exact: recall at {NEAREST} {found / (ASKED * NEAREST):.3f}; "
        f"CPU: {added_us:.0f} us to add, {1e3 * took_s / ASKED:.1f} ms to search; "
        f"{given.exact * given.dimensions * 4 / 1e6:.0f} MB exact and {graph_mb:.0f} MB graph"
    )
    return 0


def _around(draw: np.random.Generator, centres: np.ndarray, count: int, spread: float) -> np.ndarray:  # type: ignore[type-arg]
    chosen = centres[draw.integers(0, len(centres), count)]
    made = chosen + spread * draw.standard_normal(size=chosen.shape, dtype=np.float32)
    out: np.ndarray = made / np.linalg.norm(made, axis=1, keepdims=True)  # type: ignore[type-arg]
    return out


if __name__ == "__main__":
    raise SystemExit(main())
