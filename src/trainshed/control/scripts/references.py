"""Naming a Job of any kind by what people type: its id, its digits, or a prefix of them (a.0.8)."""

from __future__ import annotations

from trainshed.model.errors import Refusal
from trainshed.model.scripts.refs import REF
from trainshed.store.database import Connection
from trainshed.store.job_digits import matching
from trainshed.store.visibility import Viewer


def job_id_of(connection: Connection, viewer: Viewer, reference: str) -> str:
    """The id of the Job that a reference means; what means none is answered as it is.

    Jobs that the viewer may not see are as if they were not there. Raises `Refusal` ``AMBIGUOUS_JOB_REF``
    with ``matches``.
    """
    if not REF.fullmatch(reference):
        return reference
    found = matching(connection, viewer, reference)
    if len(found) > 1:
        shorts = [short for _, short in found]
        said = f"`{reference}` may mean {', '.join(shorts)}"
        raise Refusal.of("AMBIGUOUS_JOB_REF", said, path="ref", matches=shorts)
    return found[0][0] if found else reference
