"""ROUTE: a Job that waits is given a provider, a time to look again, a question to a person, or its end."""

from __future__ import annotations

import json
from typing import Any

from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.ground import ACTOR, Ground, Look, locked_look, move
from trainshed.control.scripts.routing import Plan, RoutePlanner
from trainshed.model.scripts.spec import OWN_ENGINES
from trainshed.model.scripts.states import AttemptState, FailureKind, Phase, Reason
from trainshed.model.states import AllocationState, OutputStatus, State
from trainshed.policy import approval
from trainshed.policy.approval import Rule, Verdict
from trainshed.policy.migration import Budget, gave_up
from trainshed.policy.routing import Outcome
from trainshed.store import approvals, attempts, queue, script_attempts, script_work, scripts
from trainshed.store.database import Connection
from trainshed.store.records import Allocation
from trainshed.store.script_records import ScriptAttempt

NO_LIMIT_SECONDS = 14 * 86_400


class Chooser:
    """Decides for one Job at a time, in one transaction each. Thread-safe."""

    def __init__(self, ground: Ground, planner: RoutePlanner) -> None:
        self._ground = ground
        self._planner = planner

    def choose(self, trial_id: str) -> str | None:
        """Route a Trial that is queued and due; nothing where it is neither any more.

        Answers the Attempt that was opened elsewhere, if one was.
        """
        now = self._ground.clock()

        def store(connection: Connection) -> str | None:
            # One at a time, so that a place is given away once.
            script_work.lock_routing(connection)
            look = locked_look(connection, trial_id, now)
            if look is None or look.trial.state is not State.QUEUED or look.script.provider is not None:
                return None
            opened = self._decide(connection, look)
            reach(Point.SCRIPT_ROUTE_BEFORE_COMMIT)
            return opened

        opened = self._ground.database.write(store)
        reach(Point.SCRIPT_ROUTE_AFTER_COMMIT)
        return opened

    def _decide(self, connection: Connection, look: Look) -> str | None:
        script, now = look.script, look.now
        waiting: dict[str, float | None] = {"waiting_since": script.waiting_since or now}
        if said := self._gave_up(look):
            tried = FailureKind.PROVIDER_ERROR if script.placements else FailureKind.NO_PROVIDER
            self._fail(connection, look, Reason.GAVE_UP, tried, said)
            return None
        if script.phase == Phase.WAITING:
            scripts.set_phase(
                connection,
                look.trial.id,
                Phase.ROUTING,
                Reason.ROUTING_STARTED,
                "A provider is being chosen.",
                at=now,
                values=waiting,
            )
        if over := self._overrun(look):
            self._ask(connection, look, over, script.gpu, provider=look.attempts[-1].provider)
            return None
        plan = self._planner.plan(connection, look.spec, script.source, now, look=look)
        decision = plan.decision
        route = {"route": json.dumps(decision.as_dict()), "route_reason": decision.reason}
        if decision.outcome is Outcome.NO_FIT:
            scripts.change(connection, look.trial.id, route)
            self._fail(
                connection, look, Reason.NO_PROVIDER_FITS, FailureKind.NO_PROVIDER, _sentence(decision.reason)
            )
        elif decision.outcome is Outcome.WAIT and plan.verdict is not None:
            # It asks wherever it is placed: the answer does not have to wait for room.
            scripts.change(connection, look.trial.id, route | {"not_before": None})
            only = decision.waits_for[0] if len(decision.waits_for) == 1 else None
            self._ask(connection, look, plan.verdict, look.spec.gpu, provider=only)
        elif decision.outcome is Outcome.WAIT:
            if all(each.code == "quota_exhausted" for each in decision.rejected if not each.lasting):
                waiting = {"waiting_since": decision.retry_at}  # counted from the renewal (b)
            scripts.set_phase(
                connection,
                look.trial.id,
                Phase.WAITING,
                Reason.NO_CAPACITY,
                _sentence(decision.reason),
                at=now,
                values=route | waiting | {"not_before": decision.retry_at, "message": decision.reason},
            )
        else:
            scripts.change(connection, look.trial.id, route | {"not_before": None, "message": None})
            return self._place(connection, look, plan)
        return None

    @staticmethod
    def _gave_up(look: Look) -> str | None:
        script = look.script
        budget = Budget(
            accepted=script.accepted_attempts,
            free=script.free_attempts,
            placements=script.placements,
            waiting_since=script.waiting_since,
            max_attempts=look.spec.max_attempts,
        )
        return gave_up(budget, look.now)

    @staticmethod
    def _overrun(look: Look) -> Verdict | None:
        """The question of one that ran longer than it said, and that nobody allowed to go on (c.4)."""
        script = look.script
        if script.overrun_approved or look.approved_by(Rule.OVERRUN) or not look.attempts:
            return None
        provider = look.attempts[-1].provider
        hours = look.spec.declared_hours
        limit = approval.overrun_after(
            look.policy, script.source, provider, hours, interactive=look.spec.interactive
        )
        if limit is None or script.ran_seconds <= limit:
            return None
        saved = "" if look.done_fraction else ", and no checkpoint says how far it got"
        said = (
            f"it ran {script.ran_seconds / 3600:.2g}h, more than the {hours:g}h it declared allow{saved} · "
            f"{provider} {script.gpu or ''}".rstrip()
        )
        return Verdict(ask=True, rules=(Rule.OVERRUN,), reason=said)

    def _place(self, connection: Connection, look: Look, plan: Plan) -> str | None:
        chosen, verdict = plan.decision.chosen, plan.verdict
        assert chosen is not None  # noqa: S101 - of an outcome `place`
        assert verdict is not None  # noqa: S101 - likewise
        gpu = chosen.offer.type if chosen.offer else None
        if verdict.ask:
            self._ask(connection, look, verdict, gpu, provider=chosen.provider)
            return None
        values = {"provider": chosen.provider, "gpu": gpu}
        if chosen.provider in OWN_ENGINES:
            # The queue of this machine, or of the cluster, takes it from here; the word stays until then.
            scripts.change(connection, look.trial.id, values)
            return None
        if not move(
            connection,
            look,
            (State.QUEUED, State.PREPARING, "PLACED", f"Placed on {_sentence(plan.decision.reason)}"),
            at=look.now,
        ):
            return None
        number = next_number(connection, look.trial.id)
        held = self._allocation(look, chosen.provider, gpu)
        attempts.open_all(connection, [(held, number)])
        open_attempt(connection, look, held.attempt_id, chosen.provider, gpu, number)
        scripts.change(connection, look.trial.id, values)
        return held.attempt_id

    def _allocation(self, look: Look, provider: str, gpu: str | None) -> Allocation:
        """What it holds there: nothing of ours, but a release to prove."""
        return Allocation(
            id=self._ground.ids.allocation(),
            attempt_id=self._ground.ids.attempt(),
            trial_id=look.trial.id,
            project_id=look.trial.project_id,
            engine=provider,
            node=provider,
            gpu_model=gpu or "",
            gpu_indices="[]",
            simulated=False,
            gpus=0,
            cpus=0,
            memory_mb=0,
            storage_mb=0,
            shm_mb=0,
            timeout_seconds=look.trial.timeout_seconds,
            state=AllocationState.HELD,
            held_at=look.now,
            released_at=None,
            tries=0,
            evidence=None,
        )

    def _ask(
        self,
        connection: Connection,
        look: Look,
        verdict: Verdict,
        gpu: str | None,
        provider: str | None,
    ) -> None:
        if not move(
            connection,
            look,
            (State.QUEUED, State.AWAITING_APPROVAL, "APPROVAL_REQUIRED", _sentence(verdict.reason)),
            at=look.now,
        ):
            return
        question = approvals.NewApproval(
            look.job.id,
            look.job.project_id,
            look.script.spec_hash,
            [str(rule) for rule in verdict.rules],
            verdict.reason,
            provider,
        )
        approvals.ask(connection, question, at=look.now, expires_at=look.now + approval.LIFE_SECONDS)
        scripts.change(
            connection, look.trial.id, {"gpu": gpu, "message": verdict.reason, "waiting_since": None}
        )

    @staticmethod
    def _fail(connection: Connection, look: Look, reason: Reason, kind: FailureKind, said: str) -> None:
        fail(connection, look, State.QUEUED, reason, kind, said)

    def expire(self, trial_id: str) -> None:
        """Deny a Job whose question nobody answered in time (c.5)."""
        now = self._ground.clock()

        def store(connection: Connection) -> None:
            look = locked_look(connection, trial_id, now)
            if look is None or look.trial.state is not State.AWAITING_APPROVAL:
                return
            waits = approvals.open_of(connection, look.job.id)
            if waits is None or waits.expires_at > now:
                return
            approvals.close(connection, waits.id, "expired", by=ACTOR, at=now)
            said = f"Nobody answered within {approval.LIFE_SECONDS / 3600:g} hours."
            values = {
                "output_status": OutputStatus.NONE,
                "error_code": "APPROVAL_EXPIRED",
                "error_message": said,
            }
            step = (State.AWAITING_APPROVAL, State.DENIED, "APPROVAL_EXPIRED", said)
            if move(connection, look, step, values=values, at=now):
                scripts.change(connection, trial_id, {"message": said})

        self._ground.database.write(store)


def fail(
    connection: Connection, look: Look, before: State, reason: Reason, kind: FailureKind, said: str
) -> bool:
    """End a Job that holds nothing and runs nowhere."""
    values: dict[str, Any] = {
        "output_status": OutputStatus.NONE,
        "error_code": str(reason).upper(),
        "error_message": said,
    }
    if not move(
        connection, look, (before, State.FAILED, str(reason).upper(), said), values=values, at=look.now
    ):
        return False
    scripts.change(connection, look.trial.id, {"failure_kind": str(kind), "message": said, "provider": None})
    return True


def next_number(connection: Connection, trial_id: str) -> int:
    """The number of a Trial's next Attempt."""
    return queue.newest_attempts(connection, [trial_id]).get(trial_id, ("", 0))[1] + 1


def open_attempt(
    connection: Connection, look: Look, attempt_id: str, provider: str, gpu: str | None, number: int
) -> None:
    """Record what a provider is about to be asked (k.2); the Attempt itself is there already."""
    script_attempts.insert_attempt(
        connection,
        ScriptAttempt(
            attempt_id=attempt_id,
            trial_id=look.trial.id,
            number=number,
            key=f"gpu-{look.job.digits}-{number}",
            provider=provider,
            state=str(AttemptState.SUBMITTING),
            remote_ref=None,
            url=None,
            gpu_promised=gpu,
            gpu_real=None,
            resumed_from=None,
            submitted_at=None,
            started_at=None,
            ended_at=None,
            exit_code=None,
            cursor=None,
            lines=0,
            seen_at=None,
            unreachable_seconds=0.0,
            message=None,
        ),
    )
    scripts.change(
        connection,
        look.trial.id,
        {"placements": look.script.placements + 1, "waiting_since": None, "message": None},
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
