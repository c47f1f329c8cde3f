"""Reading while the database is large, and while a thousand submissions arrive (promise P12)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.busy import busy_fleet
from bench.figures import Bench, Budget, Figure, percentile
from bench.history import fill
from bench.load import Outcome, Request, run_load
from bench.scenarios.submissions import requests
from bench.site import Site, serve

_READS_PER_SECOND = 50.0
_READS_BESIDE_SUBMISSIONS = 20.0
_SUBMISSIONS_PER_SECOND = 200.0
_LIMIT = Budget(50)
_WARM = 60


def measure(bench: Bench) -> list[Figure]:
    """p99 of status and lists: alone, while submissions arrive, and while what was submitted runs as well."""
    data = bench.place / "data"
    data.mkdir(parents=True)
    known = fill(data / "trainshed.sqlite", bench.scale.stored_jobs)
    count = bench.scale.submissions_beside_reads
    with serve(bench.place, gpus=1) as site, busy_fleet(site, bench.place) as runner:
        run_load(site.url, site.headers, reads(known, 30))
        quiet = run_load(site.url, site.headers, reads(known, bench.scale.reads))
        arriving = _during_submissions(site, runner, known, count)
    with serve(bench.place) as site:
        running = _during_submissions(site, runner, known, count)
        site.last_released()
    stored, during = f"{bench.scale.stored_jobs:,} Jobs stored", f"during {count:,} submissions"
    every = [took for kind in _READS for took in running.latencies[kind]]
    return [
        *_figures(quiet, stored),
        *_figures(arriving, f"{stored}, {during}"),
        Figure(
            f"any read p99, {stored}, {during} that all run",
            percentile(every, 0.99),
            "ms",
            note=f"p50 {percentile(every, 0.5):.1f} ms. No-op Trials at this rate keep every processor busy.",
        ),
    ]


_READS = {"status": "one Job", "list": "Jobs", "filtered": "failed Jobs", "trials": "Trials of a Job"}


def _figures(outcome: Outcome, when: str) -> list[Figure]:
    return [
        Figure(
            f"{name} p99, {when}",
            percentile(outcome.latencies[kind], 0.99),
            "ms",
            _LIMIT,
            note=f"p50 {percentile(outcome.latencies[kind], 0.5):.1f} ms.",
        )
        for kind, name in _READS.items()
    ]


def reads(known: Sequence[str], count: int, rate: float = _READS_PER_SECOND) -> list[Request]:
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
        found.append(Request(number / rate, kind, "GET", path))
    return found


def _during_submissions(site: Site, runner: str, known: Sequence[str], count: int) -> Outcome:
    label = f"beside-{site.process.pid}"
    run_load(site.url, site.headers, requests(runner, f"{label}-warm", _WARM, _SUBMISSIONS_PER_SECOND))
    rate = _READS_BESIDE_SUBMISSIONS
    beside = reads(known, round(count / _SUBMISSIONS_PER_SECOND * rate), rate)
    submissions = requests(runner, label, count, _SUBMISSIONS_PER_SECOND)
    return run_load(site.url, site.headers, sorted([*submissions, *beside], key=lambda each: each.due))
