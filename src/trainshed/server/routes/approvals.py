"""Questions to people about Jobs of every kind: list, show a code, answer (contract G, c; promise P13)."""

from __future__ import annotations

from trainshed.control.scripts.approving import MAX_NOTE, Answer, refuse_agent
from trainshed.control.scripts.references import job_id_of
from trainshed.model.errors import Refusal
from trainshed.server.bodies import Body
from trainshed.server.documents import CURSOR, LIMIT, Param
from trainshed.server.endpoints import Call, Operation, Routes
from trainshed.server.pages import cut_page, open_cursor, page_limit
from trainshed.server.routes.scripts import READ, RUN, SOURCE, caller, peer, small
from trainshed.server.script_views import approval_view, g_time_text
from trainshed.server.shapes import requests
from trainshed.server.shapes import scripts as shapes
from trainshed.server.shapes.common import Page
from trainshed.store import approvals as store
from trainshed.store import jobs
from trainshed.store.database import Connection
from trainshed.store.script_records import Approval
from trainshed.store.visibility import is_hidden

routes = Routes("approvals")

_UNKNOWN = ("APPROVAL_NOT_FOUND",)
_REFUSES = (*_UNKNOWN, "FORBIDDEN", "INVALID_TRANSITION")
_OPEN = Param("open", {"type": "string", "enum": ["1"]}, "Only those that wait for an answer.")
_JOB = Param(
    "job",
    {"type": "string"},
    "Only those about this Job: its id, its digits or a prefix of them.",
    refuses=("AMBIGUOUS_JOB_REF",),
)
_MOST_DIGITS = 18


@routes.get(
    "",
    Operation(
        "List questions to people, newest first",
        answer=Page[shapes.Approval],
        any_of=READ,
        params=(_OPEN, _JOB, CURSOR, LIMIT),
    ),
)
def list_approvals(call: Call) -> Page[shapes.Approval]:
    """Those of the project's Jobs, of every kind."""
    limit = page_limit(call.query)
    before = open_cursor(call.services.seal, "approvals", call.query)
    only_open, job = call.query.get("open") == "1", call.query.get("job")
    with call.services.database.read() as connection:
        job_id = None if job is None else job_id_of(connection, call.viewer, job)
        rows = store.list_approvals(
            connection, call.project, only_open=only_open, job_id=job_id, before=before, limit=limit + 1
        )
        return cut_page(
            call.services.seal,
            "approvals",
            rows,
            limit,
            key=lambda row: row.id,
            show=lambda kept: [
                view
                for row in kept
                if not is_hidden(connection, call.viewer, row.job_id)
                for view in [_view(connection, row)]
            ],
        )


@routes.get(
    "/{approval_id}", Operation("Read a question", answer=shapes.Approval, any_of=READ, refuses=_UNKNOWN)
)
def read_approval(call: Call, approval_id: str) -> shapes.Approval:
    """What is asked, why, and what was answered."""
    with call.services.database.read() as connection:
        row = store.find(connection, call.project, _id(approval_id))
        if row is None or is_hidden(connection, call.viewer, row.job_id):
            raise _unknown(approval_id)
        return _view(connection, row)


@routes.post(
    "/{approval_id}/challenge",
    Operation(
        "Show a one-time code",
        answer=shapes.Challenge,
        any_of=RUN,
        params=(SOURCE,),
        refuses=_REFUSES,
    ),
)
def challenge(call: Call, approval_id: str) -> shapes.Challenge:
    """The code is written to the terminal of the calling process, and is not in this answer.

    The caller must be a process of the server's own machine and user, in the foreground of a terminal, and
    no agent may be among its ancestors.
    """
    who, number = caller(call), _id(approval_id)
    shown = call.services.scripts.approving.challenge(who, peer(call), number)
    return shapes.Challenge(
        approval_id=number, channel=shown.channel, expires_at=g_time_text(shown.expires_at)
    )


@routes.post(
    "/{approval_id}/answer",
    Operation(
        "Answer a question",
        answer=shapes.Approval,
        any_of=RUN,
        params=(SOURCE,),
        takes=requests.AnswerApproval,
        max_body=small,
        refuses=(*_REFUSES, "INVALID_SPEC"),
    ),
)
def answer(call: Call, approval_id: str) -> shapes.Approval:
    """For people only: refused for keys of agents and services and for processes with an agent behind them.

    On a person's own server a yes needs the one-time code. The same answer again changes nothing.
    """
    who, number = caller(call), _id(approval_id)
    seen = peer(call)
    refuse_agent(who, seen)
    body = Body(call.object())
    body.known(["answer", "note", "code"])
    word = body.word("answer", ["approved", "denied"])
    if body.values.get("answer") is None:
        body.fault("answer", "is missing; it is `approved` or `denied`")
    note, code = body.text("note", most=MAX_NOTE), body.text("code", most=64)
    body.finish()
    said = Answer(word == "approved", code, note)
    row = call.services.scripts.approving.answer(who, seen, number, said)
    call.services.wake()
    with call.services.database.read() as connection:
        return _view(connection, row)


def _view(connection: Connection, row: Approval) -> shapes.Approval:
    job = jobs.find_job(connection, row.project_id, row.job_id)
    trials = jobs.trials_of(connection, [row.job_id])[row.job_id]
    return approval_view(row, job.short_id if job else None, trials[0].kind if trials else "")


def _id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise _unknown(text)
    return int(text)


def _unknown(text: str) -> Refusal:
    shown = text[:40].encode("ascii", "backslashreplace").decode()
    return Refusal.of("APPROVAL_NOT_FOUND", f"there is no question `{shown}` here", path="approval_id")
