"""Questions to people and their answers: the one mechanism for Jobs of every kind (c.5, c.7, promise P13).

An answer binds to one question: to its Job, the frozen spec and the rules that asked. A yes needs, besides
the key of a person, a one-time code that was shown on that person's own terminal, where the caller is a
process of this machine; what this protects against, and what it cannot, is in docs/security.md.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts import peers
from trainshed.control.scripts.callers import AGENT, Caller
from trainshed.control.scripts.peers import Peer
from trainshed.model.access import KeyKind, Permission
from trainshed.model.errors import Refusal
from trainshed.model.scripts.states import Note
from trainshed.model.states import TERMINAL, OutputStatus, State
from trainshed.policy.approval import LIFE_SECONDS, Rule, Verdict
from trainshed.store import approvals, jobs, moves, scripts, tasks
from trainshed.store.approvals import NewApproval
from trainshed.store.database import Connection, Database
from trainshed.store.moves import Move
from trainshed.store.records import Job, Trial
from trainshed.store.script_records import Approval

CODE_SECONDS = 300.0
"""How long a one-time code is good."""
_LETTERS = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""None that is mistaken for another."""
_CODE_LENGTH = 8
APPROVED, DENIED, EXPIRED = "approved", "denied", "expired"
MAX_NOTE = 1000
OWN_TERMINAL = "Run it in a terminal of your own, outside of any agent."
_UNREADABLE = "the calling process cannot be looked at, so nobody knows who is behind it"


@dataclass(frozen=True, slots=True)
class Shown:
    """A code was shown; it is in no answer."""

    channel: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody says to a question."""

    approve: bool
    code: str | None = None
    note: str | None = None


class Approving:
    """Shows codes and takes answers. Thread-safe; the questions lie in the database."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float],
        *,
        personal: bool,
        show: Callable[[Path, str], None] = peers.show,
        choose: Callable[[str], str] = secrets.choice,
    ) -> None:
        """``personal``: a person's own server, where the key lies beside every program of that person."""
        self._database = database
        self._clock = clock
        self._personal = personal
        self._show = show
        self._choose = choose

    def challenge(self, caller: Caller, peer: Peer, approval_id: int) -> Shown:
        """Show a new code on the terminal of the calling process.

        Raises `Refusal` ``APPROVAL_NOT_FOUND``, ``INVALID_TRANSITION``, ``FORBIDDEN``.
        """
        refuse_agent(caller, peer)
        with self._database.read() as connection:
            question, job = self._open(connection, caller, approval_id)
        terminal = _terminal(peer)
        code = "".join(self._choose(_LETTERS) for _ in range(_CODE_LENGTH))
        now = self._clock()
        digest = _digest(question.id, code)
        self._database.write(
            lambda c: approvals.put_code(c, question.id, digest, at=now, expires_at=now + CODE_SECONDS)
        )
        try:
            self._show(terminal, _message(job, question, code))
        except OSError as error:
            said = f"the code could not be shown on {terminal}: {error.strerror or error}"
            raise Refusal.of("FORBIDDEN", said, hint=OWN_TERMINAL) from None
        return Shown(f"terminal {terminal}", now + CODE_SECONDS)

    def answer(self, caller: Caller, peer: Peer, approval_id: int, said: Answer) -> Approval:
        """Take an answer; durable when this returns. The question as it is then.

        Saying the same again changes nothing. Raises `Refusal` ``APPROVAL_NOT_FOUND``,
        ``INVALID_TRANSITION`` for one that has another answer, ``FORBIDDEN``, ``INVALID_REQUEST``.
        """
        refuse_agent(caller, peer)
        needs_code = said.approve and peer.here and self._personal
        with self._database.read() as connection:
            question = _find(connection, caller, approval_id)
            if question.answer == (APPROVED if said.approve else DENIED):
                return question
            self._open(connection, caller, approval_id)
        if needs_code:
            self._check_code(peer, approval_id, said.code)
        now = self._clock()

        def store(connection: Connection) -> Approval:
            question, job = self._open(connection, caller, approval_id)
            moves.lock_jobs(connection, [job.id])
            question, job = self._open(connection, caller, approval_id)
            _close(connection, question, job, said, caller, now)
            return _find(connection, caller, approval_id)

        answered = self._database.write(store)
        reach(Point.SCRIPT_AFTER_APPROVE)
        return answered

    def require_person(self, caller: Caller, peer: Peer) -> None:
        """Raise `Refusal` ``FORBIDDEN`` unless a person may change the rules from there.

        Whoever could loosen them could say yes in advance, so on a person's own server it takes what a code
        takes: a process in the foreground of a terminal, and no agent behind it.
        """
        if caller.is_agent or (peer.here and peer.agent is not None):
            said = "an agent cannot change when people are asked"
            raise Refusal.of("FORBIDDEN", said, hint="Ask the user to do it in a terminal of their own.")
        if self._personal and peer.here:
            _terminal(peer)

    def require_no_agent(self, caller: Caller, peer: Peer, what: str, hint: str) -> None:
        """Raise `Refusal` ``FORBIDDEN`` where an agent would change ``what``, or nobody knows who would.

        Less than a yes takes: it may come from a pipe or a timer.
        """
        if caller.is_agent or (peer.here and peer.agent is not None):
            raise Refusal.of("FORBIDDEN", f"an agent cannot change {what}", hint=hint)
        if self._personal and peer.here and peer.unreadable:
            raise Refusal.of("FORBIDDEN", _UNREADABLE, hint=hint)

    def source_of(self, caller: Caller, look: Callable[[], Peer]) -> Caller:
        """The caller, as an agent where the process at the other end has one behind it (c.6).

        ``look`` is asked on a person's own server alone, where it costs little.
        """
        if not self._personal or caller.is_agent or look().agent is None:
            return caller
        return replace(caller, said=AGENT)

    def _check_code(self, peer: Peer, approval_id: int, code: str | None) -> None:
        _terminal(peer)
        if code is None:
            hint = "Ask for a code with a challenge; it is shown on your terminal."
            raise Refusal.of(
                "FORBIDDEN", "a yes needs the one-time code that was shown", path="code", hint=hint
            )
        # In a transaction of its own: a wrong one counts although the answer is refused.
        digest, now = _digest(approval_id, code), self._clock()
        if not self._database.write(lambda c: approvals.try_code(c, approval_id, digest, at=now)):
            said = "the code is wrong, used or too old"
            raise Refusal.of("FORBIDDEN", said, path="code", hint="Ask for a new one and type it as shown.")

    def _open(self, connection: Connection, caller: Caller, approval_id: int) -> tuple[Approval, Job]:
        """The open question with its Job, for somebody who may answer it."""
        question = _find(connection, caller, approval_id)
        job = jobs.find_job(connection, question.project_id, question.job_id)
        assert job is not None  # noqa: S101 - a question has a Job
        if not may_answer(connection, caller, job):
            said = "the question is for whoever submitted the Job, or an admin of the project"
            raise Refusal.of("PERMISSION_DENIED", said)
        if question.answer is not None:
            said = f"the question about Job {job.short_id} was answered: {question.answer}"
            raise Refusal.of("INVALID_TRANSITION", said, answer=question.answer)
        if question.expires_at <= self._clock():
            # Nobody may have denied it yet: the server may have been away all the time (c.5).
            said = f"nobody answered the question about Job {job.short_id} in time"
            raise Refusal.of("INVALID_TRANSITION", said, answer=EXPIRED)
        if question.spec_hash != spec_hash_of(connection, job):
            said = f"Job {job.short_id} is not what the question was about"
            raise Refusal.of("INVALID_TRANSITION", said)
        return question, job


def refuse_agent(caller: Caller, peer: Peer) -> None:
    """Raise `Refusal` ``FORBIDDEN`` for whoever is an agent, or cannot be seen to be a person."""
    if caller.is_agent or caller.principal.kind is not KeyKind.HUMAN:
        who = "an agent" if caller.is_agent else "a service"
        raise Refusal.of("FORBIDDEN", f"{who} cannot answer questions; only a person can")
    if not peer.here:
        return
    if (shown := peer.agent) is not None:
        said = f"an agent cannot answer questions, and {shown}"
        raise Refusal.of("FORBIDDEN", said, hint=OWN_TERMINAL)


def may_answer(connection: Connection, caller: Caller, job: Job) -> bool:
    """Whether a person may answer questions about a Job: it is theirs, or they administer the project."""
    principal = caller.principal
    if not principal.may(Permission.TRAINING_RUN):
        return False
    if principal.may(Permission.ADMIN):
        return True
    script = scripts.of_jobs(connection, [job.id]).get(job.id)
    if script is not None:
        return script.owner == principal.person
    trials = jobs.trials_of(connection, [job.id])[job.id]
    task = next(iter(tasks.of_trials(connection, [trial.id for trial in trials]).values()), None)
    return (task.owner if task is not None else job.submitted_by) in {principal.person, principal.actor}


def ask(
    connection: Connection,
    waiting: Sequence[Trial],
    spec_hash: str,
    verdict: Verdict,
    *,
    provider: str | None = None,
    at: float,
    actor: str = "controller",
) -> int:
    """Bring queued Trials of one Job to ``awaiting_approval`` with a question to a person; its id.

    The caller holds the lock of the Job, and judged it in this transaction.
    """
    first = waiting[0]
    new = NewApproval(first.job_id, first.project_id, spec_hash, verdict.rules, verdict.reason, provider)
    question = approvals.ask(connection, new, at=at, expires_at=at + LIFE_SECONDS)
    said = f"A person is asked: {verdict.reason}."
    asked = [
        Move(trial, State.QUEUED, State.AWAITING_APPROVAL, "APPROVAL_REQUIRED", said) for trial in waiting
    ]
    moves.apply(connection, asked, at=at, actor=actor)
    return question


def expire(database: Database, now: float, *, actor: str = "controller") -> int:
    """Deny what nobody answered in time (c.5); how many questions."""

    def store(connection: Connection) -> int:
        over = approvals.expired(connection, now)
        moves.lock_jobs(connection, {each.job_id for each in over})
        closed = [e for e in over if approvals.close(connection, e.id, EXPIRED, by=actor, at=now)]
        for each in closed:
            said = "Nobody answered the question in time, so the Job is denied."
            _deny(connection, each, "APPROVAL_EXPIRED", said, actor=actor, channel="engine", now=now)
        return len(closed)

    with database.read() as connection:
        due = bool(approvals.expired(connection, now, limit=1))
    return database.write(store) if due else 0


def spec_hash_of(connection: Connection, job: Job) -> str:
    """What an answer binds to: the frozen spec of a Job of any kind."""
    script = scripts.of_jobs(connection, [job.id]).get(job.id)
    return script.spec_hash if script else hashlib.sha256(job.canonical.encode()).hexdigest()


def _close(
    connection: Connection, question: Approval, job: Job, said: Answer, caller: Caller, now: float
) -> None:
    actor, word = caller.principal.actor, caller.actor_word
    answer = APPROVED if said.approve else DENIED
    if not approvals.close(connection, question.id, answer, by=caller.person, at=now, note=said.note):
        raise Refusal.of("INVALID_TRANSITION", "somebody else answered the question just now")
    if not said.approve:
        sentence = f"Denied by {caller.person}."
        _deny(connection, question, "DENIED", sentence, actor=actor, channel=word, now=now)
        return
    for trial in _asked(connection, job.id):
        sentence = f"Approved by {caller.person}."
        if trial.kind == scripts.SCRIPT:
            values = {"overrun_approved": True} if Rule.OVERRUN in question.rule_names else {}
            scripts.note(connection, trial.id, Note.APPROVED, sentence, at=now, actor=word, values=values)
        made = Move(trial, State.AWAITING_APPROVAL, State.QUEUED, scripts.APPROVED, sentence)
        moves.apply(connection, [made], at=now, actor=actor, channel=word)


def _deny(
    connection: Connection,
    question: Approval,
    code: str,
    sentence: str,
    *,
    actor: str,
    channel: str,
    now: float,
) -> None:
    waiting = _asked(connection, question.job_id)
    for trial in waiting:
        values = {"error_code": "APPROVAL_DENIED", "error_message": sentence}
        if not trial.user_code_started:
            values["output_status"] = OutputStatus.NONE
        if trial.kind == scripts.SCRIPT:
            scripts.change(connection, trial.id, {"message": sentence})
        made = Move(trial, State.AWAITING_APPROVAL, State.DENIED, code, sentence, values)
        moves.apply(connection, [made], at=now, actor=actor, channel=channel)


def _asked(connection: Connection, job_id: str) -> list[Trial]:
    """The Trials of a Job that wait for an answer."""
    found = jobs.trials_of(connection, [job_id])[job_id]
    return [
        trial for trial in found if trial.state is State.AWAITING_APPROVAL and trial.state not in TERMINAL
    ]


def _find(connection: Connection, caller: Caller, approval_id: int) -> Approval:
    question = approvals.find(connection, caller.project_id, approval_id)
    if question is None:
        raise Refusal.of("APPROVAL_NOT_FOUND", f"there is no question {approval_id} here", path="approval_id")
    return question


def _terminal(peer: Peer) -> Path:
    """Where a person sits at the calling process; raises `Refusal` ``FORBIDDEN``."""
    if not peer.here:
        said = "a code is shown on a terminal of the server's own machine only"
        raise Refusal.of(
            "FORBIDDEN", said, hint="Answer with your own key; no code is needed from elsewhere."
        )
    if peer.unreadable:
        raise Refusal.of("FORBIDDEN", _UNREADABLE, hint=OWN_TERMINAL)
    terminal = peer.terminal()
    if terminal is None:
        said = "the calling process is not in the foreground of a terminal"
        raise Refusal.of("FORBIDDEN", said, hint=OWN_TERMINAL)
    return terminal


def _digest(approval_id: int, code: str) -> str:
    plain = "".join(letter for letter in code.upper() if letter.isalnum())
    return hashlib.sha256(f"{approval_id}:{plain}".encode()).hexdigest()


def _message(job: Job, question: Approval, code: str) -> str:
    """Only words of ours: names and paths come from the project (a.9)."""
    half = len(code) // 2
    shown = f"{code[:half]}-{code[half:]}"
    why = "".join(letter for letter in question.reason if letter.isprintable())
    return f"\nTrainshed asks about Job {job.short_id}: {why}\nTo approve it, type this code: {shown}\n"
