"""`FakeEngine`: the engine contract in virtual time, with outcomes and faults by script.

Nothing happens by itself: `FakeEngine.advance` moves the clock, and everything an attempt does follows
from its `Script` and the calls made. Two runs of the same calls see the same answers. The engine's
`World` outlives it, so a restart of the server is ``FakeEngine(root, world=old.world)``.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import count
from pathlib import Path

from trainshed.engines.contract import (
    EngineError,
    Host,
    Launch,
    Meeting,
    Observation,
    Phase,
    Release,
    Report,
    Sample,
)
from trainshed.engines.fake import course
from trainshed.engines.fake.scripts import Attempt, ImageScript, Script, World
from trainshed.engines.fake.shells import FakeShell
from trainshed.jobkit import frames
from trainshed.model.logs import LogFiles
from trainshed.model.resources import Amounts, Node

_LIMITS = ("cpus", "memory", "pids", "shm", "mounts", "storage")
_LOOK_SECONDS = 0.01
_NET = IPv4Address("127.32.0.0")
_FIRST_PORT = 29_500


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
                phase = course.observe(self.world, attempt_id).phase
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
            ran_for = max(0.0, self.world.now - course.opening(self.world, attempt).start)
            self.script(attempt_id, replace(attempt.script, lost_after=ran_for))
            self._touched.add(attempt_id)
        self._bell.set()

    def live(self) -> set[str]:
        """Attempts that hold something now: launched and not confirmed as released."""
        with self._guard:
            return {name for name, attempt in self.world.attempts.items() if not attempt.released}

    def break_down(self, place: str, sentence: str) -> None:
        """Have a node, or ``NODE/gpu:INDEX``, be a fault from now on; what runs there goes on."""
        with self._guard:
            self.world.faults[place] = sentence
        self._bell.set()

    def lose_node(self, node: str, sentence: str = "It does not answer.") -> None:
        """Have a node vanish with everything placed on it."""
        with self._guard:
            self.world.gone.add(node)
            self.world.faults[node] = sentence
            for attempt_id, attempt in self.world.attempts.items():
                placed = attempt.launch.gang
                if placed is not None and placed.node == node and attempt.lost_at is None:
                    attempt.lost_at = self.world.now
                    self._touched.add(attempt_id)
        self._bell.set()

    def repair(self, place: str) -> None:
        """Have a fault be none any more; a lost node is back, empty."""
        with self._guard:
            self.world.faults.pop(place, None)
            self.world.gone.discard(place)
        self._bell.set()

    # The contract

    def nodes(self) -> Sequence[Node]:
        """See `Engine.nodes`."""
        return tuple(node for node in self._nodes if node.name not in self.world.gone)

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
            if launch.gang is not None and launch.gang.node in world.gone:
                raise EngineError("NODE_GONE", f"{launch.gang.node} is not there", retryable=True)
            self._show(launch)
            world.attempts[launch.attempt_id] = Attempt(launch, script, world.now)
            self._touched.add(launch.attempt_id)
        self._bell.set()

    def _show(self, launch: Launch) -> None:
        """Make the attempt's mounts: links, for nothing here writes."""
        for mount in launch.mounts:
            place = self._root / launch.attempt_id / "content" / mount.place
            if not place.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(mount.source / mount.within)

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
            return {attempt_id: course.observe(self.world, attempt_id) for attempt_id in attempt_ids}

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
            elif (phase := course.observe(self.world, attempt_id).phase) in {Phase.PREPARING, Phase.RUNNING}:
                attempt.never_starts = attempt.never_starts or phase is Phase.PREPARING
                grace = attempt.launch.stop_grace_seconds if grace_seconds is None else grace_seconds
                if attempt.stopped_at is None or attempt.grace is None:
                    attempt.stopped_at, attempt.grace = self.world.now, grace
                else:
                    attempt.grace = min(attempt.grace, self.world.now + grace - attempt.stopped_at)
            self._touched.add(attempt_id)
        self._bell.set()

    def meet(self, gang_id: str, nodes: Sequence[str], slots: Sequence[int]) -> Meeting:
        """See `Engine.meet`."""
        with self._guard:
            if not nodes or len(nodes) != len(slots):
                message = f"a gang needs a node and slots for each member, not {len(nodes)} and {len(slots)}"
                raise EngineError("LAUNCH_INVALID", message, retryable=False)
            if gang_id not in self.world.meetings:
                self.world.meetings[gang_id] = self._meeting(gang_id, slots)
            return self.world.meetings[gang_id]

    def join(self, gang_id: str, rank: int, slots: int) -> Host:
        """See `Engine.join`."""
        with self._guard:
            met = self.world.meetings.get(gang_id)
            if met is None or rank < len(met.hosts):
                raise EngineError("LAUNCH_INVALID", f"nobody joins {gang_id} as rank {rank}", retryable=False)
            joined = self.world.joined.setdefault(gang_id, {})
            if rank not in joined:
                label = re.sub(r"[^a-z0-9]+", "-", gang_id.lower())
                joined[rank] = Host(f"{label}-{rank}", next(self._free_addresses()), max(1, slots))
            return joined[rank]

    def _free_addresses(self) -> Iterator[str]:
        held = {name: each for name, each in self.world.meetings.items() if name not in self.world.left}
        addresses = {host.address for each in held.values() for host in each.hosts}
        for gang_id in held:
            for rank, host in self.world.joined.get(gang_id, {}).items():
                attempt = self.world.attempts.get(f"{gang_id}.{rank}")
                if attempt is None or not attempt.released:
                    addresses.add(host.address)
        return (name for number in count(1) if (name := str(_NET + number)) not in addresses)

    def _meeting(self, gang_id: str, slots: Sequence[int]) -> Meeting:
        held = [each for name, each in self.world.meetings.items() if name not in self.world.left]
        ports = {port for each in held for port in (each.port, each.dashboard_port)}
        free = self._free_addresses()
        label = re.sub(r"[^a-z0-9]+", "-", gang_id.lower())
        hosts = tuple(
            Host(f"{label}-{rank}", next(free), max(1, amount)) for rank, amount in enumerate(slots)
        )
        free_ports = (port for port in count(_FIRST_PORT) if port not in ports)
        return Meeting(hosts, next(free_ports), next(free_ports))

    def notify(self, attempt_id: str, *, reason: str, deadline: float) -> None:
        """See `Engine.notify`."""
        with self._guard:
            attempt = self.world.attempts.get(attempt_id)
            running = course.observe(self.world, attempt_id).phase is Phase.RUNNING
            if attempt is None or attempt.launch.notice is None or not running:
                self.stop(attempt_id)
            elif attempt.notified_at is None:
                attempt.notified_at, attempt.notice_deadline = self.world.now, deadline
                attempt.notice_reason = reason
            self._touched.add(attempt_id)
        self._bell.set()

    def reports(self, attempt_id: str, after: int) -> Sequence[Report]:
        """See `Engine.reports`."""
        with self._guard:
            return [each for each in course.reports(self.world, attempt_id) if each.number > after]

    def samples(self, attempt_id: str, after: float) -> Sequence[Sample]:
        """See `Engine.samples`."""
        with self._guard:
            return [each for each in course.samples(self.world, attempt_id) if each.at > after]

    def shells(self) -> str | None:
        """See `Engine.shells`."""
        return None

    def open_shell(self, attempt_id: str, *, rows: int, columns: int, terminal: bool = True) -> FakeShell:
        """See `Engine.open_shell`: a line is answered, ``exit N`` ends it."""

        def runs() -> bool:
            with self._guard:
                return course.observe(self.world, attempt_id).phase is Phase.RUNNING

        if not runs():
            raise EngineError("SHELL_UNAVAILABLE", f"{attempt_id} does not run", retryable=True)
        return FakeShell(runs, rows, columns, echo=terminal)

    def faults(self) -> Mapping[str, str]:
        """See `Engine.faults`."""
        with self._guard:
            return dict(self.world.faults)

    def work_directory(self, attempt_id: str) -> Path:
        """See `Engine.work_directory`: filled as far as the attempt got by now."""
        work = self._root / attempt_id / "work"
        with self._guard:
            attempt = self.world.attempts.get(attempt_id)
            if attempt and not attempt.released:
                work.mkdir(parents=True, exist_ok=True)
                observation = course.observe(self.world, attempt_id)
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
            observation = course.observe(self.world, attempt_id)
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
            if course.observe(self.world, attempt_id).phase is Phase.RUNNING:
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
            self._part(attempt)
            self.logs(attempt_id)
            for held in ("work", "content"):
                shutil.rmtree(self._root / attempt_id / held, ignore_errors=True)
            return Release(confirmed=True, checks={"processes": "gone", "work": "removed"})

    def _part(self, attempt: Attempt) -> None:
        """Free what a gang met at when its last member is released."""
        gang = attempt.launch.gang
        if gang is not None:
            members = course.members(self.world, gang)
            every = [*members, *course.joined(self.world, gang)]
            if len(members) == gang.size and all(each.released for each in every):
                self.world.left.add(gang.id)

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
            gangs = {each.rpartition(".")[0] for each in known} | set(known)
            self.world.left |= set(self.world.meetings) - gangs
            return strangers

    def close(self) -> None:
        """See `Engine.close`."""


def _log(attempt: Attempt, observation: Observation) -> bytes:
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
