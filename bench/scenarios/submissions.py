"""Submitting at a fixed rate: from the moment a request is due to the answer that it is durable."""

from __future__ import annotations

import json
from pathlib import Path

from bench.figures import Bench, Budget, Figure, percentile
from bench.load import Outcome, Request, run_load
from bench.site import Site, publish, serve, submission


def measure(bench: Bench) -> list[Figure]:
    """Once with a fleet that is busy, so that everything queues, and once while the Trials run."""
    count = round(bench.scale.submit_seconds * bench.scale.submit_rate)
    waiting, running = bench.place / "waiting", bench.place / "running"
    with serve(waiting, gpus=1) as site:
        queued = _with_a_busy_fleet(site, waiting, count, bench.scale.submit_rate)
    with serve(running) as site:
        runner = publish(site, running, "bench/noop")["bench/noop"]
        run_load(site.url, site.headers, requests(runner, "warm", 40, bench.scale.submit_rate))
        busy = run_load(site.url, site.headers, requests(runner, "run", count, bench.scale.submit_rate))
        last = site.call("GET", "/v1/jobs?limit=1")["items"][0]["job_id"]
        site.released(last, 120.0)
    rate = f"{bench.scale.submit_rate}/s"
    alone, beside = queued.latencies["submit"], busy.latencies["submit"]
    return [
        Figure(f"submit p50 at {rate}", percentile(alone, 0.5), "ms", Budget(10), note=_note(queued)),
        Figure(f"submit p99 at {rate}", percentile(alone, 0.99), "ms", Budget(50)),
        Figure(
            f"submit p50 at {rate}, all of them running",
            percentile(beside, 0.5),
            "ms",
            note=f"{_note(busy)} More arrives than two cores can run: every core is busy.",
        ),
        Figure(f"submit p99 at {rate}, all of them running", percentile(beside, 0.99), "ms"),
    ]


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


def _with_a_busy_fleet(site: Site, place: Path, count: int, rate: int) -> Outcome:
    runners = publish(site, place, "bench/noop", "bench/run")
    blocker = site.submit(runners["bench/run"], "blocker", command="sleep 600")
    run_load(site.url, site.headers, requests(runners["bench/noop"], "warm", 40, rate))
    outcome = run_load(site.url, site.headers, requests(runners["bench/noop"], "load", count, rate))
    _stop_everything(site, blocker)
    return outcome


def _stop_everything(site: Site, blocker: str) -> None:
    """The queue goes first, so that nothing starts in the place of the blocker."""
    queued: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = site.call("GET", f"/v1/jobs?status=queued&limit=100{cursor and '&cursor=' + cursor}")
        queued += [job["job_id"] for job in page["items"]]
        cursor = page["next_cursor"]
    stops = [Request(n / 400, "stop", "POST", f"/v1/jobs/{job}/stop", b"{}") for n, job in enumerate(queued)]
    run_load(site.url, site.headers, stops)
    site.stop_job(blocker)


def _note(outcome: Outcome) -> str:
    answered = len(outcome.latencies["submit"])
    failed = f" {outcome.failures} failed: {outcome.first_failure}." if outcome.failures else ""
    return f"{answered} requests, open loop.{failed}"
