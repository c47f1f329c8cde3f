"""Naming a Job with random digits that nobody else has, and finding Jobs by what people type of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, or_, select

from trainshed.model.scripts.refs import DIGITS, SHORTEST, new_digits, shortest_unique
from trainshed.store.records import Job
from trainshed.store.tables import jobs
from trainshed.store.visibility import Viewer, shown

_MOST_MATCHES = 10
_AFTER = "g"
"""Greater than every hexadecimal digit."""
# Statements are built once: building one costs several times what running it does.
_TAKEN = (
    select(jobs.c.digits)
    .where(jobs.c.digits >= bindparam("first"), jobs.c.digits < bindparam("past"))
    .order_by(jobs.c.digits)
    .limit(bindparam("most"))
)
_SHORTS = select(jobs.c.short_id).where(jobs.c.short_id.in_(bindparam("wanted", expanding=True))).limit(1)


def with_digits(
    connection: Connection, job: Job, random_bits: Callable[[int], int] = secrets.randbits
) -> Job:
    """The Job with fresh digits: no Job's short id begins another's digits."""
    while True:
        digits = new_digits(random_bits)
        prefixes = [digits[:length] for length in range(SHORTEST, DIGITS + 1)]
        if connection.execute(_SHORTS, {"wanted": prefixes}).first() is None and not _taken(
            connection, digits
        ):
            short = shortest_unique(digits, lambda prefix: _taken(connection, prefix))
            return replace(job, digits=digits, short_id=short)


def _taken(connection: Connection, prefix: str) -> bool:
    return bool(_beginning(connection, prefix, 1))


def _beginning(connection: Connection, prefix: str, most: int) -> Sequence[str]:
    ends = {"first": prefix, "past": prefix + _AFTER, "most": most}
    return connection.execute(_TAKEN, ends).scalars().all()


def matching(connection: Connection, viewer: Viewer, reference: str) -> Sequence[tuple[str, str]]:
    """The id and short id of the Jobs that a reference may mean; several make it ambiguous.

    ``reference`` is a prefix of a Job's digits in any case, or its full id. What is exactly a short id means
    that Job alone. Jobs that the viewer may not see take no place among the matches.
    """
    prefix = reference.lower()
    found = connection.execute(
        select(jobs.c.id, jobs.c.short_id)
        .where(
            jobs.c.project_id == viewer.project_id,
            shown(jobs.c.id, viewer),
            or_(
                jobs.c.id == reference,
                (jobs.c.digits >= prefix) & (jobs.c.digits < prefix + _AFTER),
            ),
        )
        .order_by(jobs.c.digits)
        .limit(_MOST_MATCHES)
    ).all()
    exact = [(job_id, short) for job_id, short in found if short == prefix]
    return exact or [(job_id, short) for job_id, short in found]
