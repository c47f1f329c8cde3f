"""The provider ``local``: this machine, through the server's own engine (g.5).

What it may use was decided by a placement pass, as for every other Trial of the engine; it is told by the
controller. All that is known of a run is what the engine has evidence of, so nothing is kept here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
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
    Capabilities,
    Fetched,
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
from trainshed.model.scripts.spec import LOCAL

PYTHON = "python3"
CAPABILITIES = Capabilities(lookup_by_key=False, interactive=True, max_concurrency=1, poll_interval_s=5.0)
_DATA, _RESUME = "data", "resume"
_ASKED = (".gpu", "checkpoint_requested")
_BYTES_A_GB = 1_000
_PROGRAMS_SHARE = 0.6
"""Of the time between a stop and its force; the rest is for storing the program's last checkpoint."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a run on this machine may use, as it was placed."""

    gpus: tuple[Gpu, ...]
    limits: Limits
    timeout_seconds: int
    grace_seconds: float


class LocalProvider:
    """Runs packed projects on this machine. Thread-safe as far as its engine is.

    ``room`` answers what an Attempt was given; ``nodes`` which machines there are.
    """

    name = LOCAL

    def __init__(
        self, engine: Engine, room: Callable[[str], Room], nodes: Callable[[], Iterable[Node]]
    ) -> None:
        self._engine = engine
        self._room = room
        self._nodes = nodes

    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def offers(self) -> Iterable[GpuOffer]:
        """Each model once; memory as its driver counts it."""
        found = {gpu.model: gpu for node in self._nodes() for gpu in node.gpus}
        return [
            GpuOffer(gpu.model, round(gpu.memory_mb / _BYTES_A_GB, 1), simulated=gpu.simulated)
            for _, gpu in sorted(found.items())
        ]

    def submit(self, submission: Submission) -> Run:
        """Start it once; the engine keeps to that (engine rule 1)."""
        try:
            room = self._room(submission.attempt_id)
            self._engine.launch(_launch(submission, room))
        except EngineError as error:
            if error.retryable:
                raise Unavailable(f"{error.code}: {error.message}") from error
            raise InvalidJob(f"{error.code}: {error.message}") from error
        except OSError as error:
            raise Unavailable(f"this machine cannot start it: {error}") from error
        return Run(submission.attempt_id)

    def status(self, run: Run) -> Status:
        try:
            seen = self._engine.observe([run.ref])[run.ref]
        except (EngineError, OSError) as error:
            raise Unavailable(f"this machine's engine does not answer: {error}") from error
        if seen.phase is Evidence.ABSENT:
            raise RemoteNotFound("this machine knows nothing of it")
        return _status(seen)

    def logs(self, run: Run, cursor: str | None) -> LogChunk:
        phase = self._engine.observe([run.ref])[run.ref].phase
        over = phase in {Evidence.EXITED, Evidence.LOST, Evidence.ABSENT}
        return read_lines(self._engine.logs(run.ref), cursor, ended=over)

    def folder(self, run: Run) -> Path:
        """Where what it wrote lies: nothing needs to be fetched from this machine."""
        return self._engine.work_directory(run.ref)

    def fetch(self, run: Run, into: Path) -> Fetched:
        """Copy what it wrote; links and what is no file stay behind."""
        work = self.folder(run)
        files = size = 0
        skipped: list[str] = []
        try:
            for name, target in (("outputs", "outputs"), ("checkpoint_store", "checkpoints")):
                for file, inside in _files(work / name, skipped):
                    place = into / target / inside
                    place.parent.mkdir(parents=True, exist_ok=True)
                    digest = hashlib.sha256(os.fsencode(place.name)).hexdigest()[:32]
                    part = place.with_name(f".{digest}.part")  # a name may be as long as names can be
                    shutil.copyfile(file, part, follow_symlinks=False)
                    part.replace(place)
                    files, size = files + 1, size + place.stat().st_size
        except OSError as error:
            raise Unavailable(f"what it wrote cannot be copied: {error.strerror}") from error
        return Fetched(files, size, tuple(skipped))

    def cancel(self, run: Run) -> None:
        try:
            self._engine.stop(run.ref)
        except (EngineError, OSError) as error:
            raise Unavailable(f"this machine cannot stop it now: {error}") from error

    def request_checkpoint(self, run: Run) -> bool:
        """Put the file there that the program looks for; no link of the program's is followed."""
        name, file = _ASKED
        try:
            work = os.open(self.folder(run), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=work)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(file, flags, 0o666, dir_fd=inside))
            finally:
                os.close(inside)
        except OSError:
            return False
        finally:
            os.close(work)
        return True

    def lookup_by_key(self, key: str) -> Run | None:  # noqa: ARG002 - the engine goes by the Attempt's id
        """Nothing is lost on the way here: the Attempt's id is the run's, and `submit` may be repeated."""
        return None

    def release(self, run: Run) -> bool:
        try:
            return self._engine.release(run.ref).confirmed
        except (EngineError, OSError) as error:
            raise Unavailable(f"this machine cannot release it now: {error}") from error

    def quota(self) -> QuotaReading | None:
        return None

    def healthcheck(self) -> Health:
        return Health(ok=True)

    def stage_data(self, manifest_sha256: str, folder: Path, *, single_file: str | None) -> str:  # noqa: ARG002 - it is here
        """Runs see the folder itself."""
        return os.fspath(folder / single_file if single_file else folder)


def _launch(submission: Submission, room: Room) -> Launch:
    mounts = [Mount(Path(item.ref), f"{_DATA}/{item.mount}") for item in submission.data]
    paths = {"GPU_DATA_DIR": _DATA} if mounts else {}
    if submission.resume is not None:
        mounts.append(Mount(submission.resume, _RESUME))
        paths["GPU_RESUME_DIR"] = _RESUME
    return Launch(
        attempt_id=submission.attempt_id,
        argv=(PYTHON, "gpu_runner/__main__.py"),
        env={**submission.env, "TRAINSHED_STOP_GRACE_S": f"{room.grace_seconds * _PROGRAMS_SHARE:g}"},
        files=tuple(_tree(submission.bundle)),
        gpus=room.gpus,
        limits=room.limits,
        timeout_seconds=room.timeout_seconds,
        stop_grace_seconds=room.grace_seconds,
        mounts=tuple(mounts),
        paths=paths,
        secrets=dict(submission.secrets),
    )


def _tree(bundle: Path) -> Iterator[TreeFile]:
    for folder, _, names in os.walk(bundle):
        for name in sorted(names):
            source = Path(folder, name)
            runs = bool(source.stat().st_mode & 0o100)
            yield TreeFile(source.relative_to(bundle).as_posix(), source, executable=runs)


def _files(top: Path, skipped: list[str]) -> Iterator[tuple[Path, Path]]:
    """Plain files below ``top`` with their places in it; links are listed in ``skipped``."""
    if top.is_symlink():
        skipped.append(top.name)
        return
    for folder, folders, names in os.walk(top):
        for name in [*folders, *names]:
            path = Path(folder, name)
            if path.is_symlink():
                skipped.append(path.relative_to(top.parent).as_posix())
            elif name in names and path.is_file():
                yield path, path.relative_to(top)


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
                message=ended.detail or seen.detail,
            )
        case _:
            return Status(Phase.LOST, started_at=seen.started_at, message=seen.detail)


def _how(ended: Exit) -> Phase:
    if ended.ended_by is EndedBy.STOP:
        return Phase.CANCELLED  # also one that saved and left with code zero when it was told
    if ended.ended_by in {EndedBy.TIMEOUT, EndedBy.NOT_STARTED} or ended.code is None:
        return Phase.LOST
    return Phase.SUCCEEDED if ended.code == 0 else Phase.FAILED
