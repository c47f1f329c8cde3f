"""A provider in memory that does what it is told: for tests of the controller, and to try routing with.

Everything that outlives a process is in its `RemoteWorld`, as with a real provider: the runs, their logs,
what is staged. Time is the injected clock's. A `Course` says what a run does; failures and lost answers are
put into `RemoteWorld.failures` and `RemoteWorld.lost_answers`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainshed.engines.providers.contract import (
    Capabilities,
    Fetched,
    GpuOffer,
    Health,
    LogChunk,
    Phase,
    ProviderError,
    QuotaReading,
    RemoteNotFound,
    Run,
    Status,
    Submission,
    Unavailable,
)
from trainshed.engines.providers.registry import Setting

WIRE = "::gpu:: "
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Save:
    """A checkpoint that a run saves."""

    after: float
    """Seconds from its start."""
    step: int | None = None
    files: Mapping[str, bytes] = field(default_factory=lambda: {"model.bin": b"weights"})
    damaged: bool = False
    """Whether its bytes are not those that its manifest names."""


@dataclass(frozen=True, slots=True)
class Course:
    """What one run does. Times are seconds of the clock; the default starts and succeeds at once."""

    start_after: float = 0.0
    run_seconds: float | None = 0.0
    """From its start to its own end; ``None``: until it is stopped."""
    code: int = 0
    lines: tuple[tuple[float, str], ...] = ()
    """Seconds from its start, and what it prints then."""
    outputs: Mapping[str, bytes] = field(default_factory=dict)
    """There from its end on, whatever that is."""
    saves: tuple[Save, ...] = ()
    answers_after: float | None = None
    """How long it takes to save after it was asked to; ``None``: it does not hear of it."""
    lost_after: float | None = None
    """From its start to the moment its session is gone."""
    ended_outside_after: float | None = None
    """From its start to the moment somebody stops it at the provider."""
    cancel_takes: float | None = 0.0
    """How long a cancel takes to be seen; ``None``: for ever."""
    gpu: str | None = None
    """The accelerator that is really there."""
    no_code: bool = False
    """Whether the provider says that it failed and not with what."""


@dataclass(slots=True)
class RemoteRun:
    """One run at the provider."""

    key: str
    submission: Submission
    course: Course
    submitted_at: float
    cancelled_at: float | None = None
    asked_at: float | None = None
    released: bool = False
    gone: bool = False
    """Removed by somebody: nothing is known of it any more."""
    resumed: Mapping[str, bytes] = field(default_factory=dict)
    """What it was given to go on from."""


@dataclass(slots=True)
class RemoteWorld:
    """What is at the provider and survives this process."""

    runs: dict[str, RemoteRun] = field(default_factory=dict)
    """By key: one run a key, for ever (rule 1)."""
    course: Course = field(default_factory=Course)
    """Of runs without one of their own."""
    courses: dict[str, Course] = field(default_factory=dict)
    """By key."""
    failures: defaultdict[str, list[ProviderError]] = field(default_factory=lambda: defaultdict(list))
    """By method: what its next calls raise, one each, having done nothing."""
    lost_answers: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By method: how many of its next calls do their work and raise `Unavailable` all the same."""
    down: bool = False
    """Whether nothing is answered at all."""
    offers: tuple[GpuOffer, ...] = (GpuOffer("T4", 16.0),)
    capabilities: Capabilities = field(default_factory=Capabilities)
    health: Health = field(default_factory=lambda: Health(ok=True))
    reading: QuotaReading | None = None
    staged: dict[str, str] = field(default_factory=dict)
    calls: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def live(self, now: float) -> list[str]:
        """Keys of the runs that are there and have not ended."""
        return [
            key
            for key, run in self.runs.items()
            if not run.gone and _phase(run, now) in {Phase.PENDING, Phase.RUNNING}
        ]


class FakeProvider:
    """See the module's description. A second one on the same world is the same provider after a restart."""

    def __init__(self, name: str, world: RemoteWorld, clock: Callable[[], float]) -> None:
        self.name = name
        self.world = world
        self._clock = clock

    def capabilities(self) -> Capabilities:
        return self.world.capabilities

    def offers(self) -> Iterable[GpuOffer]:
        return self.world.offers

    def submit(self, submission: Submission) -> Run:
        self._begin("submit")
        world = self.world
        if submission.key not in world.runs:
            course = world.courses.get(submission.key, world.course)
            made = RemoteRun(submission.key, submission, course, self._clock())
            made.resumed = {} if submission.resume is None else _read(submission.resume)
            world.runs[submission.key] = made
        self._answer("submit")
        return Run(submission.key, f"https://fake.example/{submission.key}")

    def status(self, run: Run) -> Status:
        self._begin("status")
        remote, now = self._run(run), self._clock()
        phase = _phase(remote, now)
        started = _started_at(remote)
        code = None
        if phase in {Phase.SUCCEEDED, Phase.FAILED} and not remote.course.no_code:
            code = remote.course.code
        return Status(
            phase,
            exit_code=code,
            started_at=None if phase is Phase.PENDING or started > now else started,
            finished_at=_ended_at(remote) if phase not in {Phase.PENDING, Phase.RUNNING} else None,
            gpu=remote.course.gpu if phase is not Phase.PENDING else None,
        )

    def logs(self, run: Run, cursor: str | None) -> LogChunk:
        self._begin("logs")
        remote, now = self._run(run), self._clock()
        start = int(cursor or 0)
        lines = _lines(remote, min(now, _ended_at(remote)))
        over = _phase(remote, now) not in {Phase.PENDING, Phase.RUNNING}
        shown = lines[start : start + _PAGE]
        reached = start + len(shown)
        return LogChunk(tuple(shown), str(reached), finished=over and reached == len(lines))

    def fetch(self, run: Run, into: Path) -> Fetched:
        self._begin("fetch")
        remote, now = self._run(run), self._clock()
        files: dict[str, bytes] = {}
        if now >= _ended_at(remote):
            files |= {f"outputs/{name}": data for name, data in remote.course.outputs.items()}
        files |= {f"checkpoints/{name}": data for name, data in _store(remote, now).items()}
        for name, data in files.items():
            place = into / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return Fetched(len(files), sum(len(data) for data in files.values()))

    def cancel(self, run: Run) -> None:
        self._begin("cancel")
        remote, now = self._run(run), self._clock()
        if remote.cancelled_at is None and now < _ended_at(remote):
            remote.cancelled_at = now
        self._answer("cancel")

    def request_checkpoint(self, run: Run) -> bool:
        self._begin("request_checkpoint")
        remote = self._run(run)
        if remote.course.answers_after is None:
            return False
        if remote.asked_at is None:
            remote.asked_at = self._clock()
        return True

    def lookup_by_key(self, key: str) -> Run | None:
        self._begin("lookup_by_key")
        there = self.world.runs.get(key)
        return None if there is None or there.gone else Run(key, f"https://fake.example/{key}")

    def release(self, run: Run) -> bool:
        self._begin("release")
        remote = self.world.runs.get(run.ref)
        if remote is None or remote.gone:
            return True
        if _phase(remote, self._clock()) in {Phase.PENDING, Phase.RUNNING}:
            return False
        remote.released = True
        return True

    def quota(self) -> QuotaReading | None:
        self._begin("quota")
        reading = self.world.reading
        return None if reading is None else replace(reading, observed_at=self._clock())

    def healthcheck(self) -> Health:
        self._begin("healthcheck")
        return self.world.health

    def stage_data(self, manifest_sha256: str, folder: Path, *, single_file: str | None) -> str:  # noqa: ARG002 - one reference for both
        self._begin("stage_data")
        found = self.world.staged.get(manifest_sha256)
        if found is None:
            self.world.calls["upload"] += 1
            found = self.world.staged[manifest_sha256] = f"fake-data/{manifest_sha256[:12]}"
            assert folder.exists()  # noqa: S101 - what is staged must be there
        return found

    def _begin(self, method: str) -> None:
        self.world.calls[method] += 1
        if self.world.down:
            raise Unavailable("the provider is down")
        if self.world.failures[method]:
            raise self.world.failures[method].pop(0)

    def _answer(self, method: str) -> None:
        if self.world.lost_answers[method]:
            self.world.lost_answers[method] -= 1
            raise Unavailable("the answer was lost")

    def _run(self, run: Run) -> RemoteRun:
        remote = self.world.runs.get(run.ref)
        if remote is None or remote.gone:
            raise RemoteNotFound(f"there is no run {run.ref}")
        return remote


def open_provider(setting: Setting) -> FakeProvider:
    """A provider whose runs do nothing and succeed; to look at routing and approval with.

    `world.json` in its folder may say ``hours_left`` of its quota, ``run_seconds`` of each run, and after how
    many seconds a run is looked at again (``poll_seconds``).
    """
    try:
        said = json.loads((setting.folder / "world.json").read_bytes())
    except FileNotFoundError:
        said = {}
    world = RemoteWorld(course=Course(run_seconds=float(said.get("run_seconds", 0.0))))
    if "hours_left" in said:
        world.reading = QuotaReading(0.0, float(said["hours_left"]), "gpu_hours", None, live=True)
    world.capabilities = Capabilities(
        live_quota=world.reading is not None, poll_interval_s=float(said.get("poll_seconds", 5.0))
    )
    return FakeProvider("fake", world, setting.clock)


def _started_at(run: RemoteRun) -> float:
    return run.submitted_at + run.course.start_after


def _ends(run: RemoteRun) -> list[tuple[float, Phase]]:
    """Everything that would end the run, the first one does."""
    course, started = run.course, _started_at(run)
    found: list[tuple[float, Phase]] = []
    if course.run_seconds is not None:
        found.append((started + course.run_seconds, Phase.FAILED if course.code else Phase.SUCCEEDED))
    if course.lost_after is not None:
        found.append((started + course.lost_after, Phase.LOST))
    if course.ended_outside_after is not None:
        found.append((started + course.ended_outside_after, Phase.CANCELLED))
    if run.cancelled_at is not None and course.cancel_takes is not None:
        found.append((run.cancelled_at + course.cancel_takes, Phase.CANCELLED))
    return sorted(found, key=lambda end: end[0])


def _ended_at(run: RemoteRun) -> float:
    ends = _ends(run)
    return ends[0][0] if ends else float("inf")


def _phase(run: RemoteRun, now: float) -> Phase:
    ends = _ends(run)
    if ends and ends[0][0] <= now:
        return ends[0][1]
    return Phase.RUNNING if _started_at(run) <= now else Phase.PENDING


def _saves(run: RemoteRun, now: float) -> list[tuple[float, Save]]:
    """The checkpoints that it saved by ``now``, oldest first."""
    until, started = min(now, _ended_at(run)), _started_at(run)
    found = [(started + save.after, save) for save in run.course.saves]
    if run.asked_at is not None and run.course.answers_after is not None:
        at = run.asked_at + run.course.answers_after
        steps = [save.step for when, save in found if when <= at and save.step is not None]
        found.append((at, Save(at - started, max(steps, default=0) + 1)))
    return sorted(((at, save) for at, save in found if at <= until), key=lambda each: each[0])


def _lines(run: RemoteRun, until: float) -> list[str]:
    """Everything that it printed by ``until``, the runner's lines about checkpoints among it."""
    started = _started_at(run)
    found = [(started + after, line) for after, line in run.course.lines if started + after <= until]
    for number, (at, save) in enumerate(_saves(run, until), 1):
        for kind, more in (("ckpt_begin", {}), ("ckpt_end", {"ok": True, "n": number, "bytes": 7})):
            said = {"t": kind, "where": "store", "step": save.step, **more}
            found.append((at, WIRE + json.dumps(said)))
    return [line for _, line in sorted(found, key=lambda each: each[0])]


def _store(run: RemoteRun, now: float) -> dict[str, bytes]:
    """The run's checkpoint store (`trainshed.jobkit.gpu_runner`): path -> content."""
    files: dict[str, bytes] = {}
    pointer = b""
    for number, (at, save) in list(enumerate(_saves(run, now), 1))[-3:]:
        manifest = {
            "version": 1,
            "n": number,
            "job": run.submission.env.get("TRAINSHED_JOB_ID", ""),
            "attempt": int(run.submission.env.get("TRAINSHED_ATTEMPT", "1")),
            "step": save.step,
            "reason": "saved",
            "created_at": at,
            "bytes": sum(len(data) for data in save.files.values()),
            "files": [
                {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for path, data in sorted(save.files.items())
            ],
        }
        text = json.dumps(manifest).encode()
        files[f"{number}/manifest.json"] = text
        for path, data in save.files.items():
            files[f"{number}/files/{path}"] = b"damaged" if save.damaged else data
        pointer = json.dumps({"n": number, "sha256": hashlib.sha256(text).hexdigest()}).encode()
    return {**files, "latest": pointer} if pointer else {}


def _read(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
