"""`FakeEngine`: the engine contract in virtual time, with outcomes and faults by script.

Nothing happens by itself: `FakeEngine.advance` moves the clock, and everything an attempt does follows
from its `Script` and the calls made. Two runs of the same calls see the same answers. The engine's
`World` outlives it, so a restart of the server is ``FakeEngine(root, world=old.world)``.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainshed.engines.contract import (
    EndedBy,
    EngineError,
    Exit,
    Launch,
    Observation,
    Phase,
    Release,
)
from trainshed.jobkit import frames
from trainshed.model.logs import LogFiles
from trainshed.model.resources import Amounts, Node

_LIMITS = ("cpus", "memory", "pids", "shm", "mounts", "storage")
_LOOK_SECONDS = 0.01
_STOPPED = "It was stopped before it started."


@dataclass(frozen=True, slots=True)
class Script:
    """What one attempt does. Times are virtual seconds; the defaults start at once and succeed at once."""

    start_after: float = 0.0
    """From the launch to the start of user code."""
    run_seconds: float | None = 0.0
    """From the start to the program's own end; ``None`` runs until it is stopped or times out."""
    code: int = 0
    signal: int | None = None
    output: bytes = b""
    """Written to stdout when it starts."""
    shows: tuple[str, ...] = ()
    """Variables of which it prints, before that, where they lead and what is in the files there."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What lies in the work directory at the end."""
    heeds_sigterm: bool = True
    """Whether a stop ends it at once; otherwise only after the grace."""
    not_started: str = ""
    """Why the platform could not start it, if it could not."""
    ended_by: EndedBy = EndedBy.EXIT
    lost_after: float | None = None
    """From the start to the moment its watcher vanishes without a trace."""
    deaf: bool = False
    """Its watcher hears of no stop and keeps no timeout: only a kill ends it early."""
    reported_after: float = 0.0
    """How long an end goes unnoticed: it is observed as running until then."""
    refusals: tuple[EngineError, ...] = ()
    """What the first launches answer instead of accepting, one each."""
    leaks: int = 0
    """How many releases fail before one is confirmed."""


@dataclass(frozen=True, slots=True)
class ImageScript:
    """What preparing an image does. The default finds it there at once."""

    seconds: float = 0.0
    """Virtual time that it takes. Whoever prepares waits until `FakeEngine.advance` brings it about."""
    progress: tuple[str, ...] = ()
    """What is told, spread evenly over that time."""
    failures: tuple[EngineError, ...] = ()
    """What the first tries come to, one each, when that time is over."""


@dataclass(slots=True)
class _Attempt:
    launch: Launch
    script: Script
    launched_at: float
    stopped_at: float | None = None
    grace: float | None = None
    released: bool = False
    shown: bytes = b""


@dataclass(slots=True)
class World:
    """What is outside of the server and survives it: the clock, the attempts, the scripts."""

    now: float = 1_000_000.0
    scripts: dict[str, Script] = field(default_factory=dict)
    attempts: dict[str, _Attempt] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    refused: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    leaked: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    images: dict[str, ImageScript] = field(default_factory=dict)
    prepared: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How often each image was prepared, failures included."""
    present: set[str] = field(default_factory=set)
    """Images that attempts can run in."""


class FakeEngine:
    """See the module's description. ``default`` is the script of attempts that have none of their own."""

    name = "fake"

    def __init__(
        self,
        root: Path,
        *,
        nodes: Sequence[Node] = (Node("fake", (), Amounts(cpus=64, memory_mb=1 << 20, storage_mb=1 << 22)),),
        default: Script | None = None,
        world: World | None = None,
    ) -> None:
        self._root = root
        self._nodes = tuple(nodes)
        self._default = default or Script()
        self.world = world or World()
        self._guard = threading.RLock()
        self._bell = threading.Event()
        self._time_passed = threading.Condition()
        self._touched: set[str] = set()
        self._seen: dict[str, Phase] = {}

    # The controls of a test

    @property
    def now(self) -> float:
        """The virtual time in Unix seconds."""
        return self.world.now

    def script(self, attempt_id: str, script: Script) -> None:
        """Say what an attempt will do, or from now on does."""
        with self._guard:
            self.world.scripts[attempt_id] = script
            if attempt := self.world.attempts.get(attempt_id):
                attempt.script = script

    def script_image(self, image: str, script: ImageScript) -> None:
        """Say what preparing an image does from now on."""
        with self._guard:
            self.world.images[image] = script

    def evict(self, image: str) -> None:
        """Have an image vanish, as a bounded store of images does."""
        with self._guard:
            self.world.present.discard(image)

    def environment(self, attempt_id: str) -> Mapping[str, str]:
        """The variables of a launched attempt's program."""
        launch = self.world.attempts[attempt_id].launch
        content = self._root / attempt_id / "content"
        return {**launch.env, **{name: str(content / place) for name, place in launch.paths.items()}}

    def advance(self, seconds: float) -> None:
        """Let virtual time pass; whoever waits in `changed` learns what happened."""
        with self._guard:
            self.world.now += seconds
            for attempt_id in self.world.attempts:
                phase = self._observe(attempt_id).phase
                if self._seen.get(attempt_id) is not phase:
                    self._seen[attempt_id] = phase
                    self._touched.add(attempt_id)
        self._bell.set()
        with self._time_passed:
            self._time_passed.notify_all()

    def lose(self, attempt_id: str) -> None:
        """Have the attempt's watcher vanish now."""
        with self._guard:
            attempt = self.world.attempts[attempt_id]
            ran_for = max(0.0, self.world.now - self._start(attempt))
            self.script(attempt_id, replace(attempt.script, lost_after=ran_for))
            self._touched.add(attempt_id)
        self._bell.set()

    def live(self) -> set[str]:
        """Attempts that hold something now: launched and not confirmed as released."""
        with self._guard:
            return {name for name, attempt in self.world.attempts.items() if not attempt.released}

    # The contract

    def nodes(self) -> Sequence[Node]:
        """See `Engine.nodes`."""
        return self._nodes

    def enforcement(self) -> Mapping[str, str]:
        """See `Engine.enforcement`: nothing runs, so nothing is enforced."""
        return dict.fromkeys(_LIMITS, "not enforced")

    def images(self) -> str | None:
        """See `Engine.images`."""
        return None

    def prepare(self, image: str, on_progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        """See `Engine.prepare`."""
        with self._guard:
            script = self.world.images.get(image, ImageScript())
            number = self.world.prepared[image]
            self.world.prepared[image] += 1
            begun = self.world.now
        left = list(script.progress)
        while True:
            if cancelled():
                raise EngineError("PREPARE_CANCELLED", f"nobody waits for {image}", retryable=True)
            passed, count = self.world.now - begun, len(script.progress)
            while left and (count - len(left)) * script.seconds <= passed * count:
                on_progress(left.pop(0))
            if passed >= script.seconds:
                break
            with self._time_passed:
                self._time_passed.wait(_LOOK_SECONDS)
        if number < len(script.failures):
            raise script.failures[number]
        with self._guard:
            self.world.present.add(image)

    def launch(self, launch: Launch) -> None:
        """See `Engine.launch`."""
        with self._guard:
            world = self.world
            if launch.attempt_id in world.attempts or launch.attempt_id in world.stopped:
                return
            script = world.scripts.get(launch.attempt_id, self._default)
            refused = world.refused[launch.attempt_id]
            if refused < len(script.refusals):
                world.refused[launch.attempt_id] += 1
                raise script.refusals[refused]
            if launch.image is not None and launch.image not in world.present:
                raise EngineError("IMAGE_GONE", f"{launch.image} is not here any more", retryable=True)
            self._show(launch)
            world.attempts[launch.attempt_id] = _Attempt(launch, script, world.now)
            self._touched.add(launch.attempt_id)
        self._bell.set()

    def _show(self, launch: Launch) -> None:
        """Make the attempt's mounts: links, for nothing here writes."""
        for mount in launch.mounts:
            place = self._root / launch.attempt_id / "content" / mount.place
            if not place.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(mount.source)

    def launch_many(self, launches: Iterable[Launch]) -> Mapping[str, EngineError]:
        """See `Engine.launch_many`."""
        errors = {}
        for launch in launches:
            try:
                self.launch(launch)
            except EngineError as error:
                errors[launch.attempt_id] = error
        return errors

    def observe(self, attempt_ids: Collection[str]) -> Mapping[str, Observation]:
        """See `Engine.observe`."""
        with self._guard:
            return {attempt_id: self._observe(attempt_id) for attempt_id in attempt_ids}

    def changed(self, timeout: float) -> set[str]:
        """See `Engine.changed`. The timeout is real time: virtual time moves only by `advance`."""
        self._bell.wait(timeout)
        with self._guard:
            self._bell.clear()
            touched, self._touched = self._touched, set()
            return touched

    def interrupt(self) -> None:
        """See `Engine.interrupt`."""
        self._bell.set()

    def stop(self, attempt_id: str, *, grace_seconds: float | None = None) -> None:
        """See `Engine.stop`."""
        with self._guard:
            attempt = self.world.attempts.get(attempt_id)
            if attempt is None:
                self.world.stopped.add(attempt_id)
            elif self._observe(attempt_id).phase in {Phase.PREPARING, Phase.RUNNING}:
                grace = attempt.launch.stop_grace_seconds if grace_seconds is None else grace_seconds
                if attempt.stopped_at is None or attempt.grace is None:
                    attempt.stopped_at, attempt.grace = self.world.now, grace
                else:
                    attempt.grace = min(attempt.grace, self.world.now + grace - attempt.stopped_at)
            self._touched.add(attempt_id)
        self._bell.set()

    def work_directory(self, attempt_id: str) -> Path:
        """See `Engine.work_directory`: filled as far as the attempt got by now."""
        work = self._root / attempt_id / "work"
        with self._guard:
            attempt = self.world.attempts.get(attempt_id)
            if attempt and not attempt.released:
                work.mkdir(parents=True, exist_ok=True)
                observation = self._observe(attempt_id)
                if observation.exit and observation.exit.code is not None:
                    for name, content in attempt.script.files.items():
                        (work / name).parent.mkdir(parents=True, exist_ok=True)
                        (work / name).write_bytes(content)
        return work

    def logs(self, attempt_id: str) -> LogFiles:
        """See `Engine.logs`: written as far as the attempt got by now."""
        folder = self._root / attempt_id
        files = LogFiles(folder / "log.frames", folder / "log.index")
        with self._guard:
            attempt = self.world.attempts.get(attempt_id)
            observation = self._observe(attempt_id)
            if attempt and observation.started_at is not None:
                folder.mkdir(parents=True, exist_ok=True)
                if not attempt.released:
                    attempt.shown = b"".join(self._shown(attempt_id, name) for name in attempt.script.shows)
                files.frames.write_bytes(_log(attempt, observation))
        return files

    def _shown(self, attempt_id: str, variable: str) -> bytes:
        place = Path(self.environment(attempt_id)[variable])
        lines = [f"{variable} is {place}\n".encode()]
        for folder, _, names in sorted(os.walk(place, followlinks=True)):
            files = sorted(Path(folder, name) for name in names)
            lines += [f"{file.relative_to(place)}: ".encode() + file.read_bytes() + b"\n" for file in files]
        return b"".join(lines)

    def kill(self, attempt_id: str) -> None:
        """See `Engine.kill`."""
        with self._guard:
            self.stop(attempt_id, grace_seconds=0)
            if self._observe(attempt_id).phase is Phase.RUNNING:
                self.lose(attempt_id)

    def release(self, attempt_id: str) -> Release:
        """See `Engine.release`."""
        with self._guard:
            self.stop(attempt_id, grace_seconds=0)
            attempt = self.world.attempts.get(attempt_id)
            if attempt is None:
                return Release(confirmed=True, checks={"processes": "never started"})
            if self.world.leaked[attempt_id] < attempt.script.leaks:
                self.world.leaked[attempt_id] += 1
                return Release(confirmed=False, checks={"processes": "one cannot be killed"})
            attempt.released = True
            self.logs(attempt_id)
            for held in ("work", "content"):
                shutil.rmtree(self._root / attempt_id / held, ignore_errors=True)
            return Release(confirmed=True, checks={"processes": "gone", "work": "removed"})

    def forget(self, attempt_id: str) -> None:
        """See `Engine.forget`."""
        with self._guard:
            attempt = self.world.attempts.get(attempt_id)
            if attempt and not attempt.released:
                raise EngineError("ATTEMPT_HELD", f"{attempt_id} is not released", retryable=True)
            self.world.attempts.pop(attempt_id, None)
            self.world.stopped.discard(attempt_id)
            shutil.rmtree(self._root / attempt_id, ignore_errors=True)

    def sweep(self, known: Collection[str]) -> Sequence[str]:
        """See `Engine.sweep`."""
        with self._guard:
            strangers = sorted(self.live() - set(known))
            for attempt_id in strangers:
                self.release(attempt_id)
            return strangers

    def close(self) -> None:
        """See `Engine.close`."""

    # What follows from script and clock

    def _start(self, attempt: _Attempt) -> float:
        return attempt.launched_at + attempt.script.start_after

    def _observe(self, attempt_id: str) -> Observation:
        attempt = self.world.attempts.get(attempt_id)
        if attempt is not None:
            return self._observe_launched(attempt)
        if attempt_id in self.world.stopped:
            return _unstarted(EndedBy.STOP, self.world.now, _STOPPED)
        return Observation(Phase.ABSENT)

    def _observe_launched(self, attempt: _Attempt) -> Observation:
        now, script, start = self.world.now, attempt.script, self._start(attempt)
        if attempt.stopped_at is not None and attempt.stopped_at < start:
            return _unstarted(EndedBy.STOP, attempt.stopped_at, _STOPPED)
        if now < start:
            return Observation(Phase.PREPARING)
        if script.not_started:
            return _unstarted(EndedBy.NOT_STARTED, start, script.not_started)
        ending = self._ending(attempt, start)
        if script.lost_after is not None and now >= start + script.lost_after <= ending.finished_at:
            return Observation(Phase.LOST, start, detail="Its watcher vanished.")
        if now < ending.finished_at + script.reported_after:
            return Observation(Phase.RUNNING, start)
        return Observation(Phase.EXITED, start, ending, ending.detail)

    def _ending(self, attempt: _Attempt, start: float) -> Exit:
        """The first of its own end, its timeout and its stop."""
        script, launch = attempt.script, attempt.launch
        own_at = float("inf") if script.run_seconds is None else start + script.run_seconds
        code = script.code if script.signal is None else 128 + script.signal
        endings = [Exit(code, script.signal, script.ended_by, own_at)]
        for at, why, grace in (
            (start + launch.timeout_seconds, EndedBy.TIMEOUT, launch.stop_grace_seconds),
            (attempt.stopped_at, EndedBy.STOP, attempt.grace or 0.0),
        ):
            if at is None or at >= own_at or script.deaf:
                continue
            number = 15 if script.heeds_sigterm and grace else 9
            ended_at = at if script.heeds_sigterm else at + grace
            endings.append(Exit(128 + number, number, why, ended_at))
        return min(endings, key=lambda ending: ending.finished_at)


def _unstarted(why: EndedBy, at: float, detail: str) -> Observation:
    return Observation(Phase.EXITED, exit=Exit(None, None, why, at, detail), detail=detail)


def _log(attempt: _Attempt, observation: Observation) -> bytes:
    """The frames of an attempt's log, the same bytes whenever it is asked for."""
    at = int((observation.started_at or 0.0) * 1e9)
    parts = []
    for line in (attempt.shown + attempt.script.output).splitlines(keepends=True):
        for begin in range(0, len(line), frames.MAX_PAYLOAD):
            piece = line[begin : begin + frames.MAX_PAYLOAD]
            flags = 0 if piece.endswith(b"\n") else frames.CONTINUES
            parts += [frames.header(len(piece), frames.STDOUT, flags, at), piece]
    if observation.phase is Phase.EXITED or attempt.released:
        parts.append(frames.header(0, frames.EOF, 0, at))
    return b"".join(parts)
