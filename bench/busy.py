"""A fleet whose one GPU is taken: what is submitted waits, so that submitting is measured alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.load import Request, run_load
from bench.site import Site, publish

_STOPS_PER_SECOND = 400.0


@contextlib.contextmanager
def busy_fleet(site: Site, place: Path) -> Iterator[str]:
    """Hold the only GPU of ``site``; yields a Runner to submit. Nothing waits or runs any more on leaving."""
    runners = publish(site, place, "bench/noop", "bench/run")
    blocker = site.submit(runners["bench/run"], "blocker", command="sleep 600")
    yield runners["bench/noop"]
    # The queue goes first, so that nothing starts in the place of the blocker.
    stops = [
        Request(number / _STOPS_PER_SECOND, "stop", "POST", f"/v1/jobs/{job}/stop", b"{}")
        for number, job in enumerate(_queued(site))
    ]
    run_load(site.url, site.headers, stops)
    site.stop_job(blocker)


def _queued(site: Site) -> list[str]:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = site.call("GET", f"/v1/jobs?status=queued&limit=100{cursor and '&cursor=' + cursor}")
        found += [job["job_id"] for job in page["items"]]
        cursor = page["next_cursor"]
    return found
