"""LAUNCH: everything a run needs is brought together, and its provider is asked to start it (k.2).

The Attempt is a row before the provider hears of it. Whatever gets lost on the way there, a later pass asks
what became of the key before anything else is done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from trainshed.content.local import Cancelled, LocalContentError
from trainshed.control.crashpoints import Point, reach
from trainshed.control.scripts.bundles import Bundles
from trainshed.control.scripts.checkpoints import Checkpoints
from trainshed.control.scripts.ground import ACTOR, Ground, Look, close_attempt, locked_look, move
from trainshed.control.scripts.losing import Losses
from trainshed.engines.providers.contract import (
    GpuOffer,
    Provider,
    ProviderError,
    RateLimited,
    Run,
    StagedData,
    Submission,
    Unavailable,
)
from trainshed.model.scripts.spec import LOCAL, DataItem
from trainshed.model.scripts.states import AttemptState, FailureKind, Note, Reason
from trainshed.model.states import OutputStatus, State
from trainshed.policy.migration import CONSEQUENCES
from trainshed.store import attempts, providers, script_attempts, scripts
from trainshed.store.attempts import End
from trainshed.store.database import Connection
from trainshed.store.script_records import ScriptAttempt, StagedRow

PROTOCOL = "1"
_TELL_BYTES = 50 * 10**6
"""A dataset of so many bytes is told of while it is sent (e.11)."""

log = structlog.get_logger(__name__)


class _Missing(Exception):
    """Secrets that the Job lists are not there."""


@dataclass(frozen=True, slots=True)
class _Ready:
    submission: Submission
    resumed_from: int | None
    said: str


class Launcher:
    """Starts Attempts whose rows are there. Thread-safe for different Trials."""

    def __init__(self, ground: Ground, bundles: Bundles, checkpoints: Checkpoints, losses: Losses) -> None:
        self._ground = ground
        self._bundles = bundles
        self._checkpoints = checkpoints
        self._losses = losses
        self._began: set[str] = set()

    def began(self) -> list[str]:
        """Attempts that this process launches or launched, as far as it remembers."""
        return list(self._began)

    def forget(self, attempt_ids: Collection[str]) -> None:
        """These hold nothing any more."""
        self._began.difference_update(attempt_ids)

    def launch(self, look: Look, attempt: ScriptAttempt, *, fresh: bool) -> bool:
        """Have the provider start the Attempt; whether that needs no other try.

        ``fresh``: this process opened it and asked nobody yet. Otherwise somebody may have, and the provider
        is asked first what it knows of the key.
        """
        provider = self._ground.providers.get(attempt.provider)
        if provider is None:
            self._losses.before_start(
                look,
                attempt,
                CONSEQUENCES["invalid_job"],
                f"there is no provider {attempt.provider} any more",
            )
            return True
        if not fresh and provider.capabilities().lookup_by_key:
            try:
                found = provider.lookup_by_key(attempt.key)
            except ProviderError as error:
                return self._ambiguous(look, attempt, error)
            if found is not None:
                self._submitted(look, attempt, found, None, "It was there already: the answer had been lost.")
                return True
        return self._begin(look, attempt, provider)

    def _begin(self, look: Look, attempt: ScriptAttempt, provider: Provider) -> bool:
        self._began.add(attempt.attempt_id)
        try:
            ready = self._prepare(look, attempt, provider)
        except Cancelled:
            return False
        except LocalContentError as error:
            if error.retryable:
                raise
            self._fail(
                look, attempt, FailureKind.INTERNAL, f"What was packed cannot be had: {error.message}."
            )
            return True
        except _Missing as missing:
            self._fail(look, attempt, FailureKind.USER_ERROR, str(missing))
            return True
        except ProviderError as error:
            self._losses.before_start(look, attempt, CONSEQUENCES[error.code], error.message, error)
            return True
        return self._submit(look, attempt, provider, ready)

    def _submit(self, look: Look, attempt: ScriptAttempt, provider: Provider, ready: _Ready) -> bool:
        try:
            run = provider.submit(ready.submission)
        except (Unavailable, RateLimited) as error:
            return self._unclear(look, attempt, provider, error)
        except ProviderError as error:
            self._losses.before_start(look, attempt, CONSEQUENCES[error.code], error.message, error)
            return True
        reach(Point.SCRIPT_AFTER_SUBMIT)
        self._submitted(look, attempt, run, ready.resumed_from, ready.said)
        return True

    def _unclear(self, look: Look, attempt: ScriptAttempt, provider: Provider, error: ProviderError) -> bool:
        """It may be there or not: the provider is asked by the key before anything is placed elsewhere."""
        if not provider.capabilities().lookup_by_key:
            # A submission may be repeated (rule 1), and nothing else tells what became of the first.
            return self._ambiguous(look, attempt, error)
        try:
            found = provider.lookup_by_key(attempt.key)
        except ProviderError:
            return self._ambiguous(look, attempt, error)
        if found is None:
            self._losses.before_start(look, attempt, CONSEQUENCES[error.code], error.message, error)
        else:
            self._submitted(look, attempt, found, None, "It was made although the answer was lost.")
        return True

    def _ambiguous(self, look: Look, attempt: ScriptAttempt, error: ProviderError) -> bool:
        """Nobody knows: told once, and asked again."""
        if attempt.message is not None:
            return False
        now = self._ground.clock()

        def store(connection: Connection) -> None:
            script_attempts.change_attempt(connection, attempt.attempt_id, {"message": error.message})
            said = (
                f"Whether {attempt.provider} has started it is not known: {error.message}. It is asked again."
            )
            scripts.note(connection, look.trial.id, Note.SUBMIT_AMBIGUOUS, said, at=now, level="warning")

        self._ground.database.write(store)
        return False

    def _submitted(
        self, look: Look, attempt: ScriptAttempt, run: Run, resumed_from: int | None, said: str
    ) -> None:
        now = self._ground.clock()
        values: dict[str, Any] = {
            "state": str(AttemptState.SUBMITTED),
            "remote_ref": run.ref,
            "url": run.url,
            "submitted_at": now,
            "seen_at": now,
            "message": None,
        }
        if resumed_from is not None:
            values["resumed_from"] = resumed_from

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            live = here.live if here else None
            if here is None or live is None or live.state != AttemptState.SUBMITTING:
                return
            script_attempts.change_attempt(connection, attempt.attempt_id, values)
            accepted = {"accepted_attempts": here.script.accepted_attempts + 1}
            scripts.note(connection, look.trial.id, Note.SUBMIT_CONFIRMED, said, at=now, values=accepted)

        self._ground.database.write(store)
        reach(Point.SCRIPT_AFTER_SUBMIT_COMMIT)

    def _prepare(self, look: Look, attempt: ScriptAttempt, provider: Provider) -> _Ready:
        ground, holder, spec = self._ground, attempt.attempt_id, look.spec
        secrets = self._secrets(look)
        code = ground.content.tree(spec.bundle.manifest_sha256, holder, cancelled=ground.closing.is_set)
        bundle = self._bundles.make(holder, spec, code)
        reach(Point.SCRIPT_AFTER_BUNDLE)
        data = tuple(
            self._staged(look, attempt, provider, item)
            for item in spec.data
            if item.manifest_sha256 is not None
        )
        resume = self._checkpoints.newest(look, holder) if attempt.number > 1 else None
        if resume is not None:
            self._note(look, Note.CHECKPOINT_FOUND, f"Checkpoint {resume[0].number} is intact.")
        said = f"{attempt.provider} has it as {attempt.key}."
        if attempt.number > 1:
            said += " " + _resumes(resume[0].step if resume else None, found=resume is not None)
        submission = Submission(
            key=attempt.key,
            name=spec.name,
            bundle=bundle,
            archive=self._bundles.archive(holder),
            env=self._environment(look, attempt),
            secrets=secrets,
            gpu=self._offer(look, attempt, provider),
            timeout_seconds=self._timeout(provider),
            data=data,
            resume=None if resume is None else resume[1],
            options=dict(spec.provider_options.get(attempt.provider, {})),
            attempt_id=attempt.attempt_id,
        )
        return _Ready(submission, resume[0].number if resume else None, said)

    def _secrets(self, look: Look) -> Mapping[str, str]:
        wanted = look.spec.secrets
        if not wanted:
            return {}
        with self._ground.database.read() as connection:
            found = self._ground.work.open_secrets(connection, look.script, wanted)
        if missing := [name for name in wanted if name not in found]:
            named = ", ".join(missing)
            raise _Missing(f"The secret {named} is not set. Set it with `gpu secrets set {missing[0]}`.")
        return {name: found[name] for name in wanted}

    def _environment(self, look: Look, attempt: ScriptAttempt) -> dict[str, str]:
        env = {
            **look.spec.env,
            "TRAINSHED_JOB_ID": look.job.digits,
            "TRAINSHED_ATTEMPT": str(attempt.number),
            "TRAINSHED_PROTOCOL": PROTOCOL,
        }
        cache = self._ground.work.env_cache
        if attempt.provider == LOCAL and cache is not None:
            env["TRAINSHED_ENV_CACHE"] = str(cache)
        return env

    @staticmethod
    def _offer(look: Look, attempt: ScriptAttempt, provider: Provider) -> GpuOffer | None:
        least = look.spec.vram_gb or 0
        fit = [o for o in provider.offers() if o.type == attempt.gpu_promised and o.vram_gb >= least]
        return min(fit, key=lambda offer: (offer.vram_gb, offer.count), default=None)

    @staticmethod
    def _timeout(provider: Provider) -> float | None:
        hours = provider.capabilities().max_session_hours
        return None if hours is None else hours * 3600.0

    def _staged(self, look: Look, attempt: ScriptAttempt, provider: Provider, item: DataItem) -> StagedData:
        """The dataset where the provider finds it: sent once for all Jobs that use it (e.11)."""
        ground, digest, now = self._ground, item.manifest_sha256 or "", self._ground.clock()
        folder = ground.content.tree(digest, attempt.attempt_id, cancelled=ground.closing.is_set)
        if provider.capabilities().named_by_attempt:  # an engine of the server's own
            ref = provider.stage_data(digest, folder, single_file=item.single_file)
            return StagedData(item.mount, ref, item.single_file)
        with ground.database.read() as connection:
            known = providers.staged(connection, attempt.provider, digest)
        if known is None and item.bytes >= _TELL_BYTES:
            self._note(look, Note.DATA_UPLOADING, f"Sending {item.mount}: {item.bytes / 1e6:.0f} MB.")
        # Asked even of what was sent before: a provider may have let go of it.
        ref = provider.stage_data(digest, folder, single_file=item.single_file)
        reach(Point.SCRIPT_AFTER_DATA)
        again = known is not None and known.ref == ref
        row = (
            replace(known, used_at=now)
            if again and known is not None
            else StagedRow(attempt.provider, digest, ref, item.bytes, now, now)
        )
        said = f"{item.mount} lies at {attempt.provider}" + (" already." if again else " now.")

        def store(connection: Connection) -> None:
            providers.put_staged(connection, row)
            what = Note.DATA_REUSED if again else Note.DATA_UPLOADED
            scripts.note(connection, look.trial.id, what, said, at=now)

        ground.database.write(store)
        return StagedData(item.mount, ref, item.single_file)

    def _note(self, look: Look, what: Note, said: str) -> None:
        now = self._ground.clock()
        self._ground.database.write(
            lambda connection: scripts.note(connection, look.trial.id, what, said, at=now)
        )

    def _fail(self, look: Look, attempt: ScriptAttempt, kind: FailureKind, said: str) -> None:
        """End a Job that no other place would help; nothing of it was started."""
        now = self._ground.clock()
        user = kind is FailureKind.USER_ERROR
        reason = Reason.SCRIPT_FAILED if user else Reason.PROVIDER_PERMANENT
        values = {
            "output_status": OutputStatus.NONE,
            "error_code": str(reason).upper(),
            "error_message": said,
        }

        def store(connection: Connection) -> None:
            here = locked_look(connection, look.trial.id, now)
            if here is None:
                return
            step = (State.PREPARING, State.FAILED, str(reason).upper(), said)
            if not move(connection, here, step, values=values, at=now):
                return
            close_attempt(connection, attempt, AttemptState.REJECTED, at=now, message=said)
            attempts.end_all(connection, [End(attempt.attempt_id, now, "not_started", said)])
            if here.held is not None:
                attempts.let_go(connection, [here.held.id])
            scripts.change(connection, look.trial.id, {"failure_kind": str(kind), "message": said})

        self._ground.database.write(store)
        log.info("an Attempt cannot be begun", attempt=attempt.attempt_id, actor=ACTOR, why=said)


def _resumes(step: int | None, *, found: bool) -> str:
    if not found:
        return "There is no intact checkpoint, so it starts afresh."
    return "It goes on from its checkpoint" + ("." if step is None else f" of step {step}.")
