"""A stream or a waiting read ends with its key; many idle followers cost little."""

from __future__ import annotations

import json
import threading
import time

import pytest
from sqlalchemy.event import listen

from support.site import Site, once_followed, put_output, start, trials
from support.waiting import wait_until
from trainshed.jobkit.frames import STDOUT
from trainshed.model.access import key_hash
from trainshed.store import access
from trainshed.store.database import DatabaseUnavailable

STREAMS = ("logs/stream", "events/stream")


def followed(site: Site) -> str:
    job_id = site.submit()["job_id"]
    put_output(site, start(site, trials(site, job_id)[0]), [(STDOUT, b"one\n")], end=False)
    return job_id


def last_event(text: str) -> tuple[str, dict]:
    block = [line for line in text.strip().split("\n\n")[-1].splitlines() if not line.startswith(":")]
    fields = dict(line.split(": ", 1) for line in block)
    return fields["event"], json.loads(fields["data"])


def revoke(site: Site, key: str) -> None:
    def change(connection) -> None:
        principal = access.find_principal(connection, key_hash(key), at=site.clock())
        access.revoke_key(connection, "default", principal.key_id, at=site.clock())

    site.services.database.write(change)


@pytest.mark.parametrize("path", STREAMS)
def test_a_revoked_key_loses_its_open_stream(site: Site, path: str):
    job_id, key = followed(site), site.add_key()
    with once_followed(site, job_id, lambda: revoke(site, key)):
        event, body = last_event(site.get(f"/v1/jobs/{job_id}/{path}", key=key).text)
    assert (event, body["code"]) == ("error", "AUTHENTICATION_REQUIRED")


@pytest.mark.parametrize("path", STREAMS)
def test_an_expired_key_loses_its_open_stream(sqlite_site: Site, path: str):
    site = sqlite_site
    job_id, key = followed(site), site.add_key(expires_at=site.clock() + 100)

    def expire() -> None:
        site.clock.now += 100

    with once_followed(site, job_id, expire):
        event, body = last_event(site.get(f"/v1/jobs/{job_id}/{path}", key=key).text)
    assert (event, body["code"]) == ("error", "AUTHENTICATION_REQUIRED")


def test_a_read_that_waits_for_more_ends_with_its_key(site: Site):
    job_id, key = followed(site), site.add_key()
    cursor = site.get(f"/v1/jobs/{job_id}/logs", key=key).json()["next_cursor"]
    with once_followed(site, job_id, lambda: revoke(site, key)):
        answer = site.get(f"/v1/jobs/{job_id}/logs?wait=4&cursor={cursor}", key=key)
    assert (answer.status_code, answer.json()["code"]) == (401, "AUTHENTICATION_REQUIRED")


def test_a_stream_whose_database_goes_away_says_so(make_site, monkeypatch):
    site: Site = make_site()
    job_id = followed(site)

    def fail(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("gone")

    with once_followed(site, job_id, lambda: monkeypatch.setattr(access, "find_principal", fail)):
        event, body = last_event(site.get(f"/v1/jobs/{job_id}/logs/stream").text)
    assert (event, body["code"]) == ("error", "DATABASE_UNAVAILABLE")


def test_idle_followers_share_what_they_look_at(make_site):
    """Fifty followers of one Job ask the database for their key together, and for rows hardly ever."""
    site: Site = make_site(alone=True)
    job_id = followed(site)
    statements: list[int] = []
    followers, seconds = 50, 2.5
    threads = [
        threading.Thread(target=site.get, args=(f"/v1/jobs/{job_id}/logs/stream",)) for _ in range(followers)
    ]
    for thread in threads:
        thread.start()
    watch = site.services.watch
    wait_until(lambda: len(watch._followers.get(job_id, ())) == followers, 20)
    listen(site.services.database.engine, "before_cursor_execute", lambda *_: statements.append(1))
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > seconds, 10)
    count = len(statements)
    site.client.portal.call(watch.end_streams)
    for thread in threads:
        thread.join(20)
    assert count < followers, count
