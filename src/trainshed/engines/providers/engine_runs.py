"""Packed projects as Attempts of an engine of the server: what its providers ``local`` and ``ray`` share.

What a run may use was decided by a placement pass, as for everything else on the engine; it is told by the
controller. All that is known of a run is what the engine has evidence of, so nothing is kept here.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainshed.engines.contract import (
    EndedBy,
    Engine,
    EngineError,
    Exit,
    Launch,
    Limits,
    Mount,
    Observation,
    TreeFile,
)
from trainshed.engines.contract import Phase as Evidence
from trainshed.engines.providers.contract import (
    GpuOffer,
    Health,
    InvalidJob,
    LogChunk,
    Phase,
    QuotaReading,
    RemoteNotFound,
    Run,
    Status,
    Submission,
    Unavailable,
)
from trainshed.engines.providers.framelog import read_lines
from trainshed.model.resources import Gpu, Node

PYTHON = "python3"
_INTERPRETER = re.compile(r"[\w.+-]+|/.{1,4000}")
ASKED = ".gpu/checkpoint_requested"
"""The file in the work folder that a program looks for: it is to save now."""
_DATA, _RESUME = "data", "resume"
_BYTES_A_GB = 1_000
_PROGRAMS_SHARE = 0.6
"""Of the time between a stop and its force; the rest is for storing the program's last checkpoint."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a run may use, as it was placed."""

    gpus: tuple[Gpu, ...]
    limits: Limits
    timeout_seconds: int
    grace_seconds: float
    node: str = ""
    """Where, of an engine with several nodes."""


class EngineRuns(ABC):
    """The calls of a provider that are the engine's own. Thread-safe as far as the engine is.

    ``place`` is what people call where it runs, in messages.
    """

    name: str
    place = "this machine"
    carries = False
    """Whether the engine has to bring files to where the program runs."""

    @abstractmethod
    def engine(self) -> Engine:
        """That which new runs are given to. Raises `Unavailable` where there is none now."""

    def engine_of(self, run: Run) -> Engine:  # noqa: ARG002 - where there is one engine it has all
        """That which has a run. Raises `Unavailable` where it cannot be asked now."""
        return self.engine()

    @abstractmethod
    def room(self, attempt_id: str) -> Room:
        """What an Attempt was given. Raises `EngineError`."""

    def submit(self, submission: Submission) -> Run:
        """Start it once; the engine keeps to that (engine rule 1)."""
        engine = self.engine_of(Run(submission.attempt_id))
        try:
            room = self.room(submission.attempt_id)
            python = self._python(submission)
            engine.launch(_launch(submission, room, python=python, carry=self.carries))
        except EngineError as error:
            if error.retryable:
                raise Unavailable(f"{error.code}: {error.message}") from error
            raise InvalidJob(f"{error.code}: {error.message}") from error
        except OSError as error:
            raise Unavailable(f"{self.place} cannot start it: {error}") from error
        return Run(submission.attempt_id)

    def _python(self, submission: Submission) -> str:
        """The interpreter that ``provider_options`` names. Raises `InvalidJob`."""
        options = dict(submission.options)
        named = options.pop("python", PYTHON)
        where = f"provider_options.{self.name}"
        if options:
            raise InvalidJob(f"{where}: there is no option {', '.join(sorted(options))}; there is `python`")
        if not isinstance(named, str) or not named.isprintable() or not _INTERPRETER.fullmatch(named):
            raise InvalidJob(
                f"{where}.python: {named!r} is no name of a program (`python3.12`) and no whole path "
                "(`/home/ann/project/.venv/bin/python`)"
            )
        return named

    def status(self, run: Run) -> Status:
        engine = self.engine_of(run)
        try:
            seen = engine.observe([run.ref])[run.ref]
        except (EngineError, OSError) as error:
            raise Unavailable(f"the engine of {self.place} does not answer: {error}") from error
        if seen.phase is Evidence.ABSENT:
            raise RemoteNotFound(f"{self.place} knows nothing of it")
        return _status(seen)

    def logs(self, run: Run, cursor: str | None) -> LogChunk:
        engine = self.engine_of(run)
        try:
            phase = engine.observe([run.ref])[run.ref].phase
        except (EngineError, OSError) as error:
            raise Unavailable(f"the engine of {self.place} does not answer: {error}") from error
        over = phase in {Evidence.EXITED, Evidence.LOST, Evidence.ABSENT}
        return read_lines(engine.logs(run.ref), cursor, ended=over)

    def cancel(self, run: Run) -> None:
        engine = self.engine_of(run)
        try:
            engine.stop(run.ref)
        except (EngineError, OSError) as error:
            raise Unavailable(f"{self.place} cannot stop it now: {error}") from error

    def lookup_by_key(self, key: str) -> Run | None:  # noqa: ARG002 - the engine goes by the Attempt's id
        """Nothing is lost on the way: the Attempt's id is the run's, and `submit` may be repeated."""
        return None

    def release(self, run: Run) -> bool:
        engine = self.engine_of(run)
        try:
            return engine.release(run.ref).confirmed
        except (EngineError, OSError) as error:
            raise Unavailable(f"{self.place} cannot release it now: {error}") from error

    def quota(self) -> QuotaReading | None:
        return None

    def healthcheck(self) -> Health:
        return Health(ok=True)

    def stage_data(self, manifest_sha256: str, folder: Path, *, single_file: str | None) -> str:  # noqa: ARG002 - it is here
        """Runs see the folder itself, or a copy that the engine brings to them."""
        return os.fspath(folder / single_file if single_file else folder)


def offers_of_nodes(nodes: Iterable[Node]) -> list[GpuOffer]:
    """Each model once; memory as its driver counts it."""
    found = {gpu.model: gpu for node in nodes for gpu in node.gpus}
    return [
        GpuOffer(gpu.model, round(gpu.memory_mb / _BYTES_A_GB, 1), simulated=gpu.simulated)
        for _, gpu in sorted(found.items())
    ]


def _launch(submission: Submission, room: Room, *, python: str, carry: bool) -> Launch:
    mounts = [Mount(Path(item.ref), f"{_DATA}/{item.mount}") for item in submission.data]
    paths = {"GPU_DATA_DIR": _DATA} if mounts else {}
    if submission.resume is not None:
        mounts.append(Mount(submission.resume, _RESUME))
        paths["GPU_RESUME_DIR"] = _RESUME
    return Launch(
        attempt_id=submission.attempt_id,
        argv=(python, "gpu_runner/__main__.py"),
        env={**submission.env, "TRAINSHED_STOP_GRACE_S": f"{room.grace_seconds * _PROGRAMS_SHARE:g}"},
        files=tuple(_tree(submission.bundle)),
        gpus=room.gpus,
        limits=room.limits,
        timeout_seconds=room.timeout_seconds,
        stop_grace_seconds=room.grace_seconds,
        mounts=tuple(mounts),
        paths=paths,
        secrets=dict(submission.secrets),
        node=room.node,
        carry=carry,
    )


def _tree(bundle: Path) -> Iterator[TreeFile]:
    for folder, _, names in os.walk(bundle):
        for name in sorted(names):
            source = Path(folder, name)
            runs = bool(source.stat().st_mode & 0o100)
            yield TreeFile(source.relative_to(bundle).as_posix(), source, executable=runs)


def _status(seen: Observation) -> Status:
    match seen.phase:
        case Evidence.PREPARING:
            return Status(Phase.PENDING, message=seen.detail)
        case Evidence.RUNNING:
            return Status(Phase.RUNNING, started_at=seen.started_at)
        case Evidence.EXITED if seen.exit is not None:
            ended = seen.exit
            return Status(
                _how(ended),
                exit_code=ended.code,
                started_at=seen.started_at,
                finished_at=ended.finished_at,
                message=ended.detail or seen.detail or _killed(ended),
            )
        case _:
            return Status(Phase.LOST, started_at=seen.started_at, message=seen.detail)


def _how(ended: Exit) -> Phase:
    if ended.ended_by is EndedBy.STOP:
        return Phase.CANCELLED  # also one that saved and left with code zero when it was told
    if ended.ended_by in {EndedBy.TIMEOUT, EndedBy.NOT_STARTED} or ended.code is None or _killed(ended):
        return Phase.LOST
    return Phase.SUCCEEDED if ended.code == 0 else Phase.FAILED


def _killed(ended: Exit) -> str:
    """What to say where somebody killed the runner: of its program's end, by whatever signal, it tells."""
    if ended.ended_by is not EndedBy.EXIT or ended.signal is None:
        return ""
    return f"signal {ended.signal} ended the runner"
