"""The driver of a Ray task: estimates pi on all workers of the cluster that was made for it."""

from __future__ import annotations

import os
import random

import ray

POINTS = 200_000


@ray.remote(num_cpus=1)
def hits(seed: int) -> int:
    """How many random points lie in the quarter circle."""
    source = random.Random(seed)
    return sum(source.random() ** 2 + source.random() ** 2 < 1 for _ in range(POINTS))


ray.init()
tasks = int(os.environ.get("TASKS", "8"))
found = sum(ray.get([hits.remote(seed) for seed in range(tasks)]))
print(f"{len(ray.nodes())} nodes, pi is about {4 * found / (tasks * POINTS):.4f}", flush=True)
