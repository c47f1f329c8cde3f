"""``gpu notify``: tell when a Job ends or asks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from trainshed.cli.gpu_common import ASKS, ENDED, JOB, told
from trainshed.cli.output import Sentence, plain
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.sdk import Client

_POLL_SECONDS = 20.0
_WEBHOOK_SECONDS = 15.0
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


@click.command()
@click.argument("ref", metavar="ID", type=JOB)
@click.option("--webhook", metavar="URL", help="POST {text, job} there as JSON; https, or this machine.")
@json_option
@click.pass_obj
def notify(session: Session, *, ref: str, webhook: str | None) -> None:
    """Tell when a Job ends or asks.

    Waits for it, then has the terminal ring and show a notification, where it can; with --webhook tells that
    address, too. What it is told is text of ours and the Job's digits and state.
    """
    if webhook is not None:
        _check_address(webhook)
    with session.client() as client:
        job = client.scripts.get(ref).job.raw
        session.script = None if job["state"] in ENDED else job["short_id"]
        job = _until_there_is_something(client, job)
        session.script = None
    said = sentence_of(job)
    if sys.stderr.isatty():
        sys.stderr.write(f"\a\x1b]9;{said}\x1b\\")
        sys.stderr.flush()
    delivered = None if webhook is None else _post(webhook, said, job)
    session.show(told(job, told=said, webhook=delivered), Sentence(lambda _: said))


def sentence_of(job: Mapping[str, Any]) -> str:
    """What happened, in words of ours."""
    from trainshed.model.scripts.guidance import tell_user  # noqa: PLC0415 - not for `--help`

    if job["state"] == ASKS:
        return plain(tell_user(job))
    code = f" with exit code {job['exit_code']}" if job["exit_code"] else ""
    return f"GPU job {job['short_id']} is {job['state']}{code}."


def _until_there_is_something(client: Client, job: Mapping[str, Any]) -> Mapping[str, Any]:
    while job["state"] not in ENDED and job["state"] != ASKS:
        job = client.scripts.get(job["short_id"], wait_s=_POLL_SECONDS, version=job["version"]).job.raw
    return job


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if not parts.hostname or (
        parts.scheme != "https" and (parts.scheme != "http" or parts.hostname not in _HERE)
    ):
        raise click.UsageError("--webhook takes an https address, or an http one of this machine")


def _post(url: str, said: str, job: Mapping[str, Any]) -> bool:
    """Tell an address. Raises `ConnectionFailed`."""
    import httpx2  # noqa: PLC0415 - not for `--help`

    from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - as above

    brief = {key: job[key] for key in ("id", "short_id", "state", "provider", "exit_code", "failure_kind")}
    try:
        answer = httpx2.post(url, json={"text": said, "job": brief}, timeout=_WEBHOOK_SECONDS)
    except httpx2.HTTPError as error:
        raise TrainshedError(f"the webhook was not told: {type(error).__name__}") from None
    if answer.is_error:
        raise TrainshedError(f"the webhook answered with HTTP status {answer.status_code}")
    return True
