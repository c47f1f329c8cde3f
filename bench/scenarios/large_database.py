"""Reading while the database is large, and while a thousand submissions arrive (promise P12)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.figures import Bench, Budget, Figure, percentile
from bench.history import fill
from bench.load import Outcome, Request, run_load
from bench.scenarios.submissions import requests
from bench.site import Site, publish, serve

_READS_PER_SECOND = 50.0
_SUBMISSIONS_PER_SECOND = 200.0
_LIMIT = Budget(50)


def measure(bench: Bench) -> list[Figure]:
    """p99 of status and lists, first alone, then during submissions that all run as well."""
    data = bench.place / "data"
    data.mkdir(parents=True)
    known = fill(data / "trainshed.sqlite", bench.scale.stored_jobs)
    with serve(bench.place) as site:
        runner = publish(site, bench.place, "bench/noop")["bench/noop"]
        run_load(site.url, site.headers, reads(known, 30))
        quiet = run_load(site.url, site.headers, reads(known, bench.scale.reads))
        busy = _during_submissions(site, runner, known, bench.scale.submissions_beside_reads)
    stored = f"{bench.scale.stored_jobs:,} Jobs"
    during = f"during {bench.scale.submissions_beside_reads:,} submissions"
    names = {"status": "one Job", "list": "list", "filtered": "list by status", "trials": "Trials of one Job"}
    found = [
        Figure(f"{name} p99, {stored}", percentile(quiet.latencies[kind], 0.99), "ms", _LIMIT)
        for kind, name in names.items()
    ]
    return found + [
        Figure(
            f"{name} p99, {during}",
            percentile(busy.latencies[kind], 0.99),
            "ms",
            _LIMIT,
            note=f"p50 {percentile(busy.latencies[kind], 0.5):.1f} ms; the submitted Trials run meanwhile.",
        )
        for kind, name in names.items()
    ]


def reads(known: Sequence[str], count: int) -> list[Request]:
    """Reads at an even rate: one Job, the newest, the newest failed ones, the Trials of one Job."""
    chosen = random.Random(1)  # noqa: S311 - repeatable, not secret
    paths = (
        lambda: ("status", f"/v1/jobs/{chosen.choice(known)}"),
        lambda: ("list", "/v1/jobs?limit=25"),
        lambda: ("filtered", "/v1/jobs?status=failed&limit=25"),
        lambda: ("trials", f"/v1/trials?job_id={chosen.choice(known)}"),
    )
    found = []
    for number in range(count):
        kind, path = paths[number % len(paths)]()
        found.append(Request(number / _READS_PER_SECOND, kind, "GET", path))
    return found


def _during_submissions(site: Site, runner: str, known: Sequence[str], count: int) -> Outcome:
    submissions = requests(runner, "beside", count, _SUBMISSIONS_PER_SECOND)
    seconds = count / _SUBMISSIONS_PER_SECOND
    beside = reads(known, round(seconds * _READS_PER_SECOND))
    outcome = run_load(site.url, site.headers, sorted([*submissions, *beside], key=lambda each: each.due))
    last = site.call("GET", "/v1/jobs?limit=1")["items"][0]["job_id"]
    site.released(last, 120.0)
    return outcome
