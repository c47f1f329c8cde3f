"""task-spooler (`tsp`), with as many slots as there are processors."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from bench.peers.measuring import NOOP, STAMP, answer


def measure(tasks: int, place: Path) -> tuple[float, list[float]]:
    program = shutil.which("tsp") or shutil.which("ts")
    if program is None:
        raise ImportError("no tsp", name="tsp")
    environment = {**os.environ, "TS_SOCKET": str(place / "socket"), "TMPDIR": str(place)}

    def ask(*arguments: str) -> str:
        done = subprocess.run(
            [program, *arguments], env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    try:
        ask("-S", str(os.cpu_count() or 1))
        starts = []
        for _ in range(8):
            asked = time.time()
            number = ask(*STAMP)
            starts.append(float(ask("-c", number)) - asked)
        began = time.perf_counter()
        last = [ask("-n", *NOOP) for _ in range(tasks)][-1]
        ask("-w", last)
        return tasks / (time.perf_counter() - began), starts
    finally:
        subprocess.run([program, "-K"], env=environment, check=False)


if __name__ == "__main__":
    answer(measure)
