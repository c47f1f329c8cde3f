"""From acceptance to the first line of user code, one Trial at a time on a warm server."""

from __future__ import annotations

import time

from bench import peers
from bench.figures import Bench, Budget, Figure, percentile
from bench.site import publish, seconds_of, serve

_WARM = 5


def measure(bench: Bench) -> list[Figure]:
    """The program's first line says what time it is; the Job says when it was accepted."""
    from_acceptance, from_request = [], []
    with serve(bench.place) as site:
        runner = publish(site, bench.place, "bench/stamp")["bench/stamp"]
        for number in range(bench.scale.starts + _WARM):
            asked = time.time()
            job = site.released(site.submit(runner, f"start-{number}"), 30.0, pause=0.02)
            trial = job["training"]["trials"][0]["trial_id"]
            started = float(site.fetch("GET", f"/v1/trials/{trial}/logs/raw"))
            if number >= _WARM:
                from_acceptance.append((started - seconds_of(job["created_at"])) * 1000)
                from_request.append((started - asked) * 1000)
    beside = peers.start_latencies(bench)
    return [
        Figure(
            "accepted to first line of user code, p50",
            percentile(from_acceptance, 0.5),
            "ms",
            Budget(25),
            beside,
            note="From the time stamped before the Job's commit: the commit is inside, and so is bash.",
        ),
        Figure("accepted to first line of user code, p95", percentile(from_acceptance, 0.95), "ms"),
        Figure("request sent to first line of user code, p50", percentile(from_request, 0.5), "ms"),
    ]
