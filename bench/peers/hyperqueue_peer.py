"""HyperQueue: server and worker in this process, as its wheel offers it.

Waiting for its jobs looks once a second, so the rate is measured over more tasks than the others'.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.peers.measuring import NOOP, STAMP, answer


def measure(tasks: int, place: Path) -> tuple[float, list[float]]:
    from hyperqueue import Job, LocalCluster  # noqa: PLC0415 - may be missing
    from hyperqueue.cluster import WorkerConfig  # noqa: PLC0415 - as above

    with LocalCluster(server_dir=str(place / "server"), worker_config=WorkerConfig()) as cluster:
        client = cluster.client()
        starts = []
        for number in range(8):
            output = str(place / f"stamp-{number}")
            job = Job()
            job.program(STAMP, stdout=output, stderr=None, cwd=str(place))
            asked = time.time()
            client.wait_for_jobs([client.submit(job)])
            starts.append(float(Path(output).read_text()) - asked)
        job, many = Job(), 3 * tasks
        for _ in range(many):
            job.program(NOOP, stdout=None, stderr=None, cwd=str(place))
        began = time.perf_counter()
        client.wait_for_jobs([client.submit(job)])
        return many / (time.perf_counter() - began), starts


if __name__ == "__main__":
    answer(measure)
