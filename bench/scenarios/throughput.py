"""No-op Trials a second, end to end: log, collection and release proof included."""

from __future__ import annotations

import time

from bench import peers
from bench.figures import Bench, Budget, Figure
from bench.site import Site, publish, serve

_TRIALS = 16
_SECONDS = 120.0


def measure(bench: Bench) -> list[Figure]:
    """Jobs of 16 Trials, all submitted at once; until the last release is confirmed."""
    with serve(bench.place) as site:
        runners = publish(site, bench.place, "bench/noop", "bench/output")
        _run(site, runners["bench/noop"], "warm", 2)
        plain, plain_cpu = _run(site, runners["bench/noop"], "noop", bench.scale.jobs)
        kept, kept_cpu = _run(site, runners["bench/output"], "output", max(2, bench.scale.jobs // 2))
    return [
        Figure(
            "no-op Trials end to end",
            plain,
            "/s",
            Budget(100, at_least=True),
            peers.rates(bench),
            note=f"{bench.scale.jobs} Jobs of {_TRIALS}, 16 simulated GPUs; the server used "
            f"{plain_cpu:.1f} ms of CPU a Trial. Peers keep no log, no outputs and no proof.",
        ),
        Figure(
            "Trials with one stored output each",
            kept,
            "/s",
            note=f"The server used {kept_cpu:.1f} ms of CPU a Trial.",
        ),
    ]


def _run(site: Site, runner: str, label: str, jobs: int) -> tuple[float, float]:
    """Trials a second and milliseconds of the server's CPU time a Trial."""
    began, cpu = time.monotonic(), site.cpu_seconds()
    submitted = [site.submit(runner, f"{label}-{number}", _TRIALS) for number in range(jobs)]
    for job_id in submitted:
        trials = site.released(job_id, _SECONDS, pause=0.1)["training"]["trials"]
        if any(trial["status"] != "succeeded" for trial in trials):
            raise RuntimeError(f"{job_id}: not every Trial succeeded")
    count = jobs * _TRIALS
    return count / (time.monotonic() - began), (site.cpu_seconds() - cpu) / count * 1000
