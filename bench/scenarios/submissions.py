"""Submitting at a fixed rate: from the moment a request is due to the answer that it is durable."""

from __future__ import annotations

import json

from bench.busy import busy_fleet
from bench.figures import Bench, Budget, Figure, percentile
from bench.load import Outcome, Request, run_load
from bench.site import Site, publish, serve, submission

_WARM = 60


def measure(bench: Bench) -> list[Figure]:
    """Once with a fleet that is busy, so that everything queues, and once while the Trials run."""
    per_second = bench.scale.submit_rate
    count = round(bench.scale.submit_seconds * per_second)
    waiting, running = bench.place / "waiting", bench.place / "running"
    with serve(waiting, gpus=1) as site, busy_fleet(site, waiting) as runner:
        queued = measured(site, runner, count, per_second)
    with serve(running) as site:
        busy = measured(site, publish(site, running, "bench/noop")["bench/noop"], count, per_second)
        site.last_released()
    rate = f"{per_second}/s"
    alone, beside = queued.latencies["submit"], busy.latencies["submit"]
    return [
        Figure(f"submit p50 at {rate}", percentile(alone, 0.5), "ms", Budget(10), note=_note(queued)),
        Figure(f"submit p99 at {rate}", percentile(alone, 0.99), "ms", Budget(50)),
        Figure(
            f"submit p50 at {rate}, all of them running",
            percentile(beside, 0.5),
            "ms",
            note=f"{_note(busy)} More arrives than can run on a small machine: its processors are all busy.",
        ),
        Figure(f"submit p99 at {rate}, all of them running", percentile(beside, 0.99), "ms"),
    ]


def measured(site: Site, runner: str, count: int, rate: float) -> Outcome:
    """Submissions at an even rate, after a few that warm the server up."""
    run_load(site.url, site.headers, requests(runner, "warm", _WARM, rate))
    return run_load(site.url, site.headers, requests(runner, "load", count, rate))


def requests(runner: str, label: str, count: int, rate: float, kind: str = "submit") -> list[Request]:
    """Submissions of one Trial each at an even rate."""
    return [
        Request(
            number / rate,
            kind,
            "POST",
            "/v1/jobs",
            json.dumps(submission(runner, f"{label}-{number}")).encode(),
        )
        for number in range(count)
    ]


def _note(outcome: Outcome) -> str:
    answered = len(outcome.latencies["submit"])
    failed = f" {outcome.failures} failed: {outcome.first_failure}." if outcome.failures else ""
    return f"{answered} requests, open loop.{failed}"
