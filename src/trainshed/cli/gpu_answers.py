"""``gpu cancel``, ``approve``, ``deny``. A person answers, at a terminal of their own (contract G, c.7)."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trainshed.cli.gpu_common import ASKS, ENDED, JOB, SETTLE_SECONDS, source_of, told
from trainshed.cli.output import Sentence
from trainshed.cli.session import Session, json_option

if TYPE_CHECKING:
    from trainshed.sdk import Client

_REASON = click.option("--reason", metavar="TEXT", help="Kept with the answer, at most 1000 characters.")


@click.command()
@click.argument("ref", metavar="ID", type=JOB)
@json_option
@click.pass_obj
def cancel(session: Session, *, ref: str) -> None:
    """Cancel a Job; what it saved is kept.

    One that has ended stays what it is.
    """
    with session.client() as client:
        found = client.scripts.cancel(ref, source=source_of()).raw
    job = found["job"]
    if not found["changed"]:
        said = f"{job['short_id']} had ended already ({job['state']}): nothing changed"
    elif job["state"] in ENDED:
        said = f"{job['short_id']} is cancelled; nothing of it runs"
    else:
        said = f"{job['short_id']} is being cancelled; what it saved is kept"
    session.show(told(job, changed=found["changed"], message=said), Sentence(lambda _: said))


@click.command()
@click.argument("ref", metavar="ID", type=JOB)
@_REASON
@json_option
@click.pass_obj
def approve(session: Session, *, ref: str, reason: str | None) -> None:
    """Let a Job run that asks for a person.

    A Job of any kind. For people only: a code is shown on this terminal and has to be typed. It is refused
    where an agent runs this program or no terminal is there.
    """
    _answer(session, ref, approve_it=True, reason=reason)


@click.command()
@click.argument("ref", metavar="ID", type=JOB)
@_REASON
@json_option
@click.pass_obj
def deny(session: Session, *, ref: str, reason: str | None) -> None:
    """Refuse a Job that asks for a person.

    A Job of any kind. For people only; what it saved is kept.
    """
    _answer(session, ref, approve_it=False, reason=reason)


def _answer(session: Session, ref: str, *, approve_it: bool, reason: str | None) -> None:
    _refuse_agents()
    if approve_it:
        _refuse_without_terminal()
    with session.client() as client:
        job = _asking(client, ref)
        number = job["approval_id"]
        if number is None:
            raise _nothing_asked(job)
        code = _confirmed(session, client, job) if approve_it else None
        answered = client.approvals.answer(number, approve=approve_it, code=code, note=reason).raw
        packed = "state" in job
        job = _moved_on(client, job) if packed else job
    said = f"{job['short_id']} is {'approved' if approve_it else 'denied'}"
    if packed:
        said += f": {job['state']} now"
    session.show(told(job, approval=answered) if packed else answered, Sentence(lambda _: said))


def _asking(client: Client, ref: str) -> Mapping[str, Any]:
    """The Job that asks. One of another kind has no ``state`` here: only what its question says."""
    from trainshed.sdk.errors import Conflict, NotFound  # noqa: PLC0415 - not for `--help`

    try:
        return client.scripts.get(ref).job.raw
    except NotFound:
        asked = client.approvals.list(only_open=True, job=ref).items
    if not asked:
        client.jobs.get(ref)  # an id that nobody has is no Job that asks nothing
        raise Conflict(409, "INVALID_TRANSITION", f"{ref} asks nothing")
    question = asked[0]
    return {
        "short_id": question["short_id"] or ref,
        "approval_id": question["id"],
        "approval_reason": question["reason"],
    }


def _moved_on(client: Client, asking: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Job once the controller took the answer, or as it is when that takes long."""
    until = time.monotonic() + SETTLE_SECONDS
    job = client.scripts.get(asking["short_id"]).job.raw
    # An answered question is gone at once; another one is a new state of affairs.
    answered = (None, asking["approval_id"])
    while job["state"] == ASKS and job["approval_id"] in answered and (left := until - time.monotonic()) > 0:
        job = client.scripts.get(asking["short_id"], wait_s=left, version=job["version"]).job.raw
    return job


def _refuse_agents() -> None:
    """An agent is turned away before a server is asked; the server would, too."""
    from trainshed.sdk.source import marker  # noqa: PLC0415 - not for `--help`

    if (found := marker()) is not None:
        raise _forbidden(f"an agent cannot answer questions, and {found} is set here")


def _refuse_without_terminal() -> None:
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise _forbidden("a person approves at a terminal, and there is none here")


def _forbidden(said: str) -> Exception:
    from trainshed.sdk.errors import PermissionRefused  # noqa: PLC0415 - not for `--help`

    hint = "Run it in a terminal of your own, outside of any agent."
    return PermissionRefused(403, "FORBIDDEN", said, hint=hint)


def _nothing_asked(job: Mapping[str, Any]) -> Exception:
    from trainshed.sdk.errors import Conflict  # noqa: PLC0415 - not for `--help`

    return Conflict(409, "INVALID_TRANSITION", f"{job['short_id']} asks nothing: it is {job['state']}")


def _confirmed(session: Session, client: Client, job: Mapping[str, Any]) -> str | None:
    """What the person typed: the code that the server showed, or, to a server elsewhere, the Job's id."""
    if client.connection.loopback:
        client.approvals.challenge(job["approval_id"])
        return str(click.prompt("Code", err=True)).strip()
    session.warn(f"{job['approval_reason']}")
    typed = str(click.prompt(f"Type {job['short_id']} to approve it", err=True)).strip()
    if typed != job["short_id"]:
        raise click.Abort
    return None
