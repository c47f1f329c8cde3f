"""From rows to the shapes of script Jobs (contract G, a.1). A page costs few queries at any length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from trainshed.server.shapes import scripts as shapes
from trainshed.store import approvals, jobs, script_attempts, scripts
from trainshed.store.database import Connection
from trainshed.store.records import Job, Trial, decoded
from trainshed.store.script_records import Approval, Script, ScriptAttempt, ScriptCheckpoint, ScriptEvent

Triple = tuple[Job, Trial, Script]
_LINES, _CHARACTERS = 20, 300
"""Of each part of what is said of a bundle, and of each line, where many Jobs are shown."""


class ScriptViews:
    """Builds script Jobs as callers see them, on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def jobs(self, rows: Sequence[Triple]) -> list[shapes.ScriptJob]:
        """The documents of a.1."""
        trial_ids = [trial.id for _, trial, _ in rows]
        tries = script_attempts.attempts_of(self._connection, trial_ids)
        saved = script_attempts.saved(self._connection, trial_ids)
        asked = approvals.of_jobs(self._connection, [job.id for job, _, _ in rows])
        held = jobs.allocations_of(self._connection, trial_ids)
        made_up = {trial_id for trial_id, all_of_it in held.items() if all_of_it and all_of_it[-1].simulated}
        return [
            _job(
                row,
                tries[row[1].id],
                saved.get(row[1].id, (0, None)),
                asked.get(row[0].id, ()),
                simulated=row[1].id in made_up,
            )
            for row in rows
        ]

    def page(self, rows: Sequence[Triple]) -> list[shapes.ScriptJob]:
        """The same for a list: what is said of a bundle may be a megabyte, and `job` has all of it."""
        return [job.model_copy(update={"bundle": _brief(job.bundle)}) for job in self.jobs(rows)]

    def job(self, row: Triple) -> shapes.ScriptJob:
        return self.jobs([row])[0]

    def detail(self, row: Triple, *, events: int = 1000) -> shapes.ScriptDetail:
        """The Job with its last ``events`` events and everything else that is known of it."""
        job, trial, script = row
        tries = script_attempts.attempts_of(self._connection, [trial.id])[trial.id]
        return shapes.ScriptDetail(
            job=self.job(row),
            attempts=[_attempt(job, each) for each in tries],
            checkpoints=[
                _checkpoint(each) for each in script_attempts.checkpoints_of(self._connection, trial.id)
            ],
            events=[
                event_view(each)
                for each in scripts.events_of(self._connection, trial.id, limit=events, newest=True)
            ],
            route=decoded(script.route),
        )


def g_time_text(seconds: float) -> str:
    """Unix seconds as contract G writes times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def g_time(seconds: float | None) -> str | None:
    return None if seconds is None else g_time_text(seconds)


def bundle_summary(document: dict[str, Any]) -> shapes.BundleSummary:
    """Of ``spec.bundle``."""
    return shapes.BundleSummary(**document)


def _brief(bundle: shapes.BundleSummary) -> shapes.BundleSummary:
    """The first lines of each part, and how many more there are."""
    values: dict[str, Any] = {"hint": bundle.hint and _short(bundle.hint)}
    for part in ("included", "left_out", "warnings"):
        lines = getattr(bundle, part)
        more = f"{part}_not_shown"
        values[part] = [_short(line) for line in lines[:_LINES]]
        values[more] = getattr(bundle, more) + max(0, len(lines) - _LINES)
    return bundle.model_copy(update=values)


def _short(line: str) -> str:
    return line if len(line) <= _CHARACTERS else line[: _CHARACTERS - 1] + "…"


def _job(
    row: Triple,
    tries: Sequence[ScriptAttempt],
    saved: tuple[int, float | None],
    asked: Sequence[Approval],
    *,
    simulated: bool,
) -> shapes.ScriptJob:
    job, trial, script = row
    spec = script.document
    bundle = bundle_summary(spec.pop("bundle"))
    question = next((each for each in asked if each.answer is None), None)
    yes = next((each for each in reversed(asked) if each.answer == "approved"), None)
    latest = asked[-1] if asked else None
    word: Any = script.word
    source: Any = script.source
    progress = decoded(script.progress)
    return shapes.ScriptJob(
        id=job.digits,
        short_id=job.short_id,
        job_id=job.id,
        trial_id=trial.id,
        name=trial.name,
        state=word,
        source=source,
        request_id=json.loads(job.canonical).get("request_id"),
        project_dir=spec["project_dir"],
        spec=spec,
        spec_hash=script.spec_hash,
        bundle_sha256=bundle.manifest_sha256 or "",
        bundle=bundle,
        # Of one that waits for a yes: where it would run, which the question is about.
        provider=script.provider or (question.provider if question else None),
        gpu=script.gpu,
        simulated=simulated and script.gpu is not None,
        current_attempt_id=f"{job.digits}.{tries[-1].number}" if tries else None,
        attempt_count=len(tries),
        accepted_attempts=script.accepted_attempts,
        route_reason=script.route_reason,
        approval_id=question.id if question else None,
        approval_reason=latest.reason if latest else None,
        approved_at=g_time(yes.answered_at) if yes else None,
        approved_by=yes.answered_by if yes else None,
        not_before=g_time(script.not_before),
        waiting_since=g_time(script.waiting_since),
        cancel_requested_at=g_time(script.cancel_requested_at),
        progress=shapes.Progress(**{"step": None, "total": None, "source": None, **progress})
        if progress
        else None,
        last_metrics=decoded(script.metrics),
        checkpoint_count=saved[0],
        last_checkpoint_at=g_time(saved[1]),
        outputs_dir=script.outputs_dir,
        outputs_fetched=script.outputs_fetched,
        outputs_count=script.outputs_count,
        exit_code=trial.exit_code,
        failure_kind=script.failure_kind,
        message=script.message,
        created_at=g_time_text(job.created_at),
        updated_at=g_time_text(max(job.updated_at, trial.updated_at)),
        started_at=g_time(trial.started_at),
        finished_at=g_time(trial.finished_at),
        version=script.version,
    )


def _attempt(job: Job, row: ScriptAttempt) -> shapes.ScriptAttempt:
    return shapes.ScriptAttempt(
        id=f"{job.digits}.{row.number}",
        number=row.number,
        provider=row.provider,
        state=row.state,
        gpu=row.gpu_real or row.gpu_promised,
        url=row.url,
        resumed_from=row.resumed_from,
        submitted_at=g_time(row.submitted_at),
        started_at=g_time(row.started_at),
        ended_at=g_time(row.ended_at),
        exit_code=row.exit_code,
        message=row.message,
    )


def _checkpoint(row: ScriptCheckpoint) -> shapes.ScriptCheckpoint:
    return shapes.ScriptCheckpoint(
        number=row.number,
        attempt=row.attempt,
        step=row.step,
        files=row.files,
        bytes=row.bytes,
        saved_at=g_time_text(row.saved_at),
    )


def event_view(row: ScriptEvent) -> shapes.ScriptEvent:
    kind: Any = row.kind
    return shapes.ScriptEvent(
        id=row.id,
        at=g_time_text(row.at),
        kind=kind,
        **{"from": row.before},
        to=row.after,
        reason=row.reason,
        message=row.message,
        actor=row.actor,
        attempt=row.attempt,
    )


def approval_view(row: Approval, short_id: str | None, kind: str) -> shapes.Approval:
    answer: Any = row.answer
    return shapes.Approval(
        id=row.id,
        job_id=row.job_id,
        short_id=short_id,
        kind=kind,
        spec_hash=row.spec_hash,
        rules=list(row.rule_names),
        provider=row.provider,
        reason=row.reason,
        asked_at=g_time_text(row.asked_at),
        expires_at=g_time_text(row.expires_at),
        answer=answer,
        answered_at=g_time(row.answered_at),
        answered_by=row.answered_by,
        note=row.note,
    )
