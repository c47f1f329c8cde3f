"""The ceiling: processes of a bare `subprocess.Popen`, one after the other."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.peers.measuring import NOOP, STAMP, answer


def measure(tasks: int, place: Path) -> tuple[float, list[float]]:
    starts = []
    for _ in range(min(tasks, 50)):
        asked = time.time()
        done = subprocess.run(STAMP, cwd=place, check=True, capture_output=True)
        starts.append(float(done.stdout) - asked)
    began = time.perf_counter()
    for _ in range(tasks):
        subprocess.Popen(NOOP, cwd=place, stdout=subprocess.DEVNULL).wait()
    return tasks / (time.perf_counter() - began), starts


if __name__ == "__main__":
    answer(measure)
