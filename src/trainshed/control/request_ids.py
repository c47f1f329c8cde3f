"""What a request id that was used before may tell of the Job behind it (promise P2, contract C5, C9)."""

from __future__ import annotations

from trainshed.model.access import Permission, Principal
from trainshed.model.conflicts import differences, holds_hidden_values
from trainshed.model.errors import Fault, Refusal
from trainshed.store import jobs, tasks
from trainshed.store.database import Connection
from trainshed.store.records import Job
from trainshed.store.visibility import Viewer, is_hidden

TAKEN = "this request id is taken in this project; choose another"


def taken() -> Refusal:
    """The one answer about what the caller may not see: it depends on nothing that they sent."""
    return Refusal.of("JOB_REQUEST_CONFLICT", TAKEN, path="request_id", hint="Use another `request_id`.")


def earlier(connection: Connection, principal: Principal, request_id: str, canonical: str) -> Job | None:
    """The Job that has this request id and the same input; ``None`` where the id is new.

    Raises `Refusal` ``JOB_REQUEST_CONFLICT``: with the differences for those who may see the Job, else, and
    for deleted tasks, with one sentence whatever the input. Hidden values are compared for their owner
    alone: for everybody else an answer would say whether a guess was right.
    """
    job = jobs.find_by_request(connection, principal.project_id, request_id)
    if job is None:
        return None
    viewer = Viewer(principal.project_id, principal.person, everything=principal.may(Permission.ADMIN))
    if is_hidden(connection, viewer, job.id):
        raise taken()
    if holds_hidden_values(job.canonical):
        found = tasks.find(connection, viewer, job.id)
        if found is None or found[0].owner != principal.person:
            said = "the task with this request id has hidden values, which are compared for its owner only"
            faults = differences(job.canonical, canonical, hidden=False)
            raise Refusal(
                [Fault("request_id", "JOB_REQUEST_CONFLICT", said), *faults], extra={"job_id": job.id}
            )
    if job.canonical != canonical:
        raise Refusal(differences(job.canonical, canonical), extra={"job_id": job.id})
    return job
