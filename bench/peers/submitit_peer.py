"""submitit's local executor: one Python process a job."""

from __future__ import annotations

import time
from pathlib import Path

from bench.peers.measuring import answer


def measure(tasks: int, place: Path) -> tuple[float, list[float]]:
    from submitit import LocalExecutor  # noqa: PLC0415 - may be missing

    executor = LocalExecutor(folder=place)
    executor.update_parameters(timeout_min=1)
    starts = []
    for _ in range(3):
        asked = time.time()
        starts.append(executor.submit(time.time).result() - asked)
    began = time.perf_counter()
    jobs = [executor.submit(time.time) for _ in range(tasks)]
    for job in jobs:
        job.result()
    return tasks / (time.perf_counter() - began), starts


if __name__ == "__main__":
    answer(measure)
