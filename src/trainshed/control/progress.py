"""What is told while something is brought to a node: events of the Job, and which content a failure is of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import structlog

from trainshed.content.local import LocalContentError
from trainshed.model import mending
from trainshed.model.content import ContentKind
from trainshed.model.runner_tree import RunnerFile
from trainshed.store import events, moves
from trainshed.store.database import Connection, Database, DatabaseUnavailable
from trainshed.store.records import Trial, TrialContent

PROGRESS_SECONDS = 5.0
PREPARING = "PREPARING"
_ACTOR = "controller"
_QUIET_SECONDS = 1.0
_GIGABYTE = 10**9

log = structlog.get_logger(__name__)


class Progress:
    """Makes events of what is told, at most one in `PROGRESS_SECONDS`. Thread-safe.

    Args:
        code: That of its events.
        patient: Whether the first waits so long, too; something else was told just now.
    """

    def __init__(
        self,
        database: Database,
        trial: Trial,
        clock: Callable[[], float],
        code: str = PREPARING,
        *,
        patient: bool = False,
    ) -> None:
        self._database = database
        self._trial = trial
        self._clock = clock
        self._code = code
        self._lock = threading.Lock()
        self._begun = clock()
        self._said_at: float | None = self._begun if patient else None
        self._said = ""

    def say(self, sentence: str) -> None:
        now = self._clock()
        with self._lock:
            early = self._said_at is not None and now - self._said_at < PROGRESS_SECONDS
            if early or sentence == self._said:
                return
            self._said_at, self._said = now, sentence
        self._record(sentence, now)

    def bringing(self, what: str) -> Callable[[int, int], None]:
        """For bytes that are brought here; what takes no time is not worth an event."""

        def say(done: int, total: int) -> None:
            if self._clock() - self._begun >= _QUIET_SECONDS:
                size = f"{total / 1e9:.3g} GB" if total >= _GIGABYTE else f"{total / 1e6:.3g} MB"
                self.say(f"Bringing {what} here: {100 * done // max(total, 1)} % of {size}.")

        return say

    def done(self) -> None:
        """Say how long it took, where anything was said before."""
        if self._said:
            now = self._clock()
            self._record(f"Prepared in {now - self._begun:.1f} s.", now)

    def _record(self, sentence: str, now: float) -> None:
        trial = self._trial

        def store(connection: Connection) -> None:
            moves.lock_jobs(connection, [trial.job_id])
            told = events.NewEvent(trial.job_id, trial.id, now, _ACTOR, self._code, sentence)
            events.record(connection, [told])

        try:
            self._database.write(store)
        except DatabaseUnavailable as error:
            log.warning("progress was not told", trial=trial.id, reason=str(error))


@contextlib.contextmanager
def named(what: str, mended: str) -> Iterator[None]:
    """Say of what cannot be had here which content it is, and of damage how it is ``mended``."""
    try:
        yield
    except LocalContentError as error:
        raise _told(error.of(what), mended) from error


def _told(error: LocalContentError, mended: str) -> LocalContentError:
    if error.code != "CONTENT_DAMAGED" or error.retryable:
        return error
    said = f"{error.message.rstrip('.')}. {mended}"
    return LocalContentError(error.code, said, retryable=False, sha256=error.sha256)


@contextlib.contextmanager
def runner_files(trial: Trial, files: Sequence[RunnerFile]) -> Iterator[None]:
    """The same of the files of a Trial's Runner."""
    try:
        yield
    except LocalContentError as error:
        path = next((file.path for file in files if file.sha256 == error.sha256), None)
        target = f"{trial.runner}@{trial.revision}"
        mended = _mended(target, mending.publish_runner(trial.runner, trial.revision), trial.job_id)
        what = f"the Runner's file `{path}`" if path else "the Runner's files"
        raise _told(error.of(what), mended) from error


def mended_by(content: TrialContent, job_id: str) -> str:
    """What brings damaged content back, and the Job after it: one sentence."""
    publish = mending.publish_content(ContentKind(content.kind), content.name, content.version)
    return _mended(f"{content.name}@{content.version}", publish, job_id)


def _mended(target: str, publish: str, job_id: str) -> str:
    repaired = mending.take_out(target)
    return f"What mends it: with the owner key {repaired}, then {publish}, then {mending.rerun(job_id)}."


def name_of(content: TrialContent) -> str:
    """A content as people say it, with its part: ``Dataset team/words@1 (input `data`)``."""
    part, _, name = content.role.partition(":")
    shown = f"{part} `{name}`" if name and part != "plugin" else part
    return f"{ContentKind(content.kind).noun} {content.name}@{content.version} ({shown})"
