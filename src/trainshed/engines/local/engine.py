"""`LocalEngine`: the engine contract on this machine."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
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
from trainshed.engines.local import evidence, feedback, gpus, isolation, machine
from trainshed.engines.local.containers import Containers, ImageSettings
from trainshed.engines.local.environment import base_environment
from trainshed.engines.local.faults import Faults
from trainshed.engines.local.forks import ForkServer
from trainshed.engines.local.images import ImageCache
from trainshed.engines.local.intents import Intents
from trainshed.engines.local.isolation import Isolation
from trainshed.engines.local.meetings import Meetings
from trainshed.engines.local.release import kill, release
from trainshed.engines.local.shells import LocalShell, clear, open_shell
from trainshed.jobkit import cgroups, folder, linux, mounts, procs, shim, tree
from trainshed.model.logs import LogFiles
from trainshed.model.resources import Amounts, Node, simulated_share

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_RESCAN_SECONDS = 5.0
_GPU_SECONDS = 10.0
_SUPERVISORS = ".supervisors"
"""Group of the fork servers; no attempt id begins with a dot."""
_NOTIFY_BYTES = 1 << 16


class LocalEngine:
    """Runs attempts as processes of this machine.

    Everything it knows lies below ``root``; a second engine on the same folder, in this process or
    after a crash in another, sees the same attempts. One at a time may be used to launch and sweep.

    Args:
        root: A folder of its own; created if missing, readable by us only.
        simulate_gpus: ``{"H100": 8}`` or ``["H100:8"]``: these simulated GPUs take the place of the
            real ones and bring their share of CPU and memory to the accounting.
        node_name: The name under which this machine shows.
        layout: Where control groups may be made; found out if not given.
        isolation: Run every program under bubblewrap. Raises `EngineError` where that is impossible:
            nothing ever runs with less than what was asked for.
        images: How images are got and kept.
    """

    name = "local"

    def __init__(
        self,
        root: Path,
        *,
        simulate_gpus: Mapping[str, int] | Sequence[str] | None = None,
        node_name: str = "local",
        layout: cgroups.Layout | None = None,
        isolation: Isolation | None = None,
        images: ImageSettings | None = None,
    ) -> None:
        self._root = root.resolve()
        self._isolation = _possible(isolation, self._root) if isolation else None
        self._attempts = self._root / "attempts"
        self._trash = self._root / "trash"
        for path in (self._root, self._attempts, self._trash, self._root / folder.BEGUN):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.instance = _instance_id(self._root)
        """What marks this folder's processes (``TRAINSHED_INSTANCE``) and control groups."""
        self._node_name = node_name
        self._simulated = gpus.simulated(simulate_gpus) if simulate_gpus else ()
        self._real = gpus.inventory()
        self._real_at = time.monotonic()
        self._totals = machine.totals(self._root)
        self._layout = layout or cgroups.detect(self.instance)
        images = images or ImageSettings()
        self._containers = Containers(self._root, self.instance, self._layout, images, isolation)
        self._images = ImageCache(self._containers, images)
        self._private_shm = linux.may_mount()
        self._meetings = Meetings(self._root / folder.GANGS, self.instance, names=self._can_name())
        self._faults = Faults(self._root, node_name)
        self._intents = Intents(
            root=self._root,
            instance=self.instance,
            totals=self._totals,
            layout=self._layout,
            private_shm=self._private_shm,
            isolation=self._isolation,
            images=self._images,
            containers=self._containers,
            meetings=self._meetings,
        )
        self._supervisors = Path(self._layout.v2, _SUPERVISORS) if self._layout.v2 else None
        self._forks = ForkServer(self._root / "forkserver.log", base_environment(), self._supervisors)
        self._guard = threading.Lock()
        self._watched: set[str] = set()
        self._rescan_at = time.monotonic() + _RESCAN_SECONDS
        self._notify_path = self._root / "notify"
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._notify_path, 0o600)
        # Opened for writing too: a FIFO without writers would be at its end.
        self._notify = os.open(self._notify_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._partial = b""
        self._interrupt = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for left in self._trash.iterdir():
            tree.remove(left)
        clear(self._root)

    def warm(self) -> None:
        """Start the fork server now instead of with the first launch."""
        self._forks.start()

    # What there is

    def nodes(self) -> Sequence[Node]:
        """This machine, with the disk space that was free when the engine was made."""
        if self._simulated:
            amounts = self._totals + simulated_share(len(self._simulated))
            return (Node(self._node_name, self._simulated, amounts),)
        if time.monotonic() - self._real_at > _GPU_SECONDS:
            self._real, self._real_at = gpus.inventory(), time.monotonic()
        return (Node(self._node_name, self._real, self._totals + Amounts(gpus=len(self._real))),)

    def enforcement(self) -> Mapping[str, str]:
        """How each limit is enforced here; an attempt's own `Observation` says what really held."""
        source = self._layout.source
        return {
            "cpus": source("cpu"),
            "memory": source("memory"),
            "pids": source("pids"),
            "shm": "mount" if self._private_shm else cgroups.NOT_ENFORCED,
            "mounts": mounts.MOUNT if self._private_shm else mounts.LINKS,
            "storage": "watched",
            "log": "shim",
            "tree": self._layout.killing(),
            **isolation.enforced(self._isolation),
        }

    def images(self) -> str | None:
        """See `Engine.images`."""
        if self._real and not self._simulated:
            return self._containers.why_no_gpus(self._real)
        return self._containers.why_impossible()

    def image_facts(self) -> Mapping[str, str | None]:
        """What there is to say of images here.

        ``images``: as `images` says it; ``image_runtime``: what runs them, with its version;
        ``image_runtime_note``: why that is not the one that is preferred.
        """
        return {
            "images": self.images(),
            "image_runtime": self._containers.version(),
            "image_runtime_note": self._containers.passed_over(),
        }

    def prepare(self, image: str, on_progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        """See `Engine.prepare`. Callers who ask for the same image at once share one pull."""
        self._images.prepare(image, on_progress, cancelled)

    # Starting

    def launch(self, launch: Launch) -> None:
        """See `Engine.launch`. Files are copied by the shim, not here."""
        for error in self.launch_many([launch]).values():
            raise error

    def launch_many(self, launches: Iterable[Launch]) -> Mapping[str, EngineError]:
        """See `Engine.launch_many`: the intents share one sync of the folder that holds them."""
        errors: dict[str, EngineError] = {}
        ready: list[str] = []
        recorded = False
        for launch in launches:
            try:
                path = self._path(launch.attempt_id)
                if folder.exists(path, folder.EXIT) or folder.has_begun(path):
                    continue
                if not folder.exists(path, folder.LAUNCH):
                    self._record_intent(path, launch)
                    recorded = True
                ready.append(launch.attempt_id)
            except OSError as error:
                message = f"the launch cannot be recorded: {error}"
                errors[launch.attempt_id] = EngineError("ENGINE_DISK", message, retryable=True)
            except EngineError as error:
                errors[launch.attempt_id] = error
        if recorded:
            folder.sync_directory(self._attempts)
        with self._guard:
            self._watched.update(ready)
        for attempt_id in ready:
            try:
                self._submit(attempt_id)
            except EngineError as error:
                errors[attempt_id] = error
        return errors

    def _submit(self, attempt_id: str) -> None:
        group = Path(self._layout.v2, attempt_id) if self._layout.v2 else None
        self._forks.submit(self._attempts / attempt_id, group, self._notify_path)

    def _record_intent(self, path: Path, launch: Launch) -> None:
        self._intents.record(path, launch, real_gpus_present=bool(self._real))

    def meet(self, gang_id: str, nodes: Sequence[str], slots: Sequence[int]) -> Meeting:
        """See `Engine.meet`: loopback addresses, as all members are on this machine."""
        if self._isolation is not None and self._isolation.network and len(nodes) > 1:
            message = "each program has a network of its own here (engine.isolation), so none reaches another"
            raise EngineError("NOT_SUPPORTED_BY_ENGINE", message, retryable=False)
        return self._meetings.meet(gang_id, nodes, slots)

    def join(self, gang_id: str, rank: int, slots: int) -> Host:
        """See `Engine.join`."""
        return self._meetings.join(gang_id, rank, slots)

    def _can_name(self) -> bool:
        """Whether programs get a view of their own, in which host names can be made to resolve."""
        return self._private_shm or self._isolation is not None

    # Watching

    def observe(self, attempt_ids: Collection[str]) -> Mapping[str, Observation]:
        """See `Engine.observe`: files and one lock, nothing remembered."""
        seen = {attempt_id: evidence.observe(self._path(attempt_id)) for attempt_id in attempt_ids}
        with self._guard:
            for attempt_id, observation in seen.items():
                if observation.phase in {Phase.PREPARING, Phase.RUNNING}:
                    self._watched.add(attempt_id)
                else:
                    self._watched.discard(attempt_id)
        return seen

    def changed(self, timeout: float) -> set[str]:
        """See `Engine.changed`. Lost hints are made up for by a look at every live attempt in turn."""
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            wait = max(0.0, min(deadline, self._rescan_at) - now)
            ready, _, _ = select.select([self._notify, self._interrupt], [], [], wait)
            interrupted = self._interrupt in ready
            if interrupted:
                os.eventfd_read(self._interrupt)
            found = self._read_hints() if self._notify in ready else set()
            if time.monotonic() >= self._rescan_at:
                found |= self._rescan()
            if found or interrupted or time.monotonic() >= deadline:
                return found

    def interrupt(self) -> None:
        """See `Engine.interrupt`."""
        os.eventfd_write(self._interrupt, 1)

    def _read_hints(self) -> set[str]:
        lines = (self._partial + os.read(self._notify, _NOTIFY_BYTES)).split(b"\n")
        self._partial = lines.pop()
        return {line.decode("utf-8", "replace") for line in lines if line}

    def _rescan(self) -> set[str]:
        self._rescan_at = time.monotonic() + _RESCAN_SECONDS
        with self._guard:
            watched = list(self._watched)
        quiet = {attempt_id for attempt_id in watched if not folder.is_held(self._path(attempt_id))}
        for attempt_id in quiet:
            path = self._attempts / attempt_id
            if evidence.observe(path).phase is Phase.PREPARING:
                # The request was lost with a fork server: the intent still stands.
                with contextlib.suppress(EngineError):
                    self._submit(attempt_id)
        return quiet

    def reports(self, attempt_id: str, after: int) -> Sequence[Report]:
        """See `Engine.reports`."""
        return feedback.reports(self._path(attempt_id), after)

    def samples(self, attempt_id: str, after: float) -> Sequence[Sample]:
        """See `Engine.samples`."""
        return feedback.samples(self._path(attempt_id), after)

    def shells(self) -> str | None:
        """See `Engine.shells`."""
        return None

    def open_shell(self, attempt_id: str, *, rows: int, columns: int, terminal: bool = True) -> LocalShell:
        """See `Engine.open_shell`: the shim of the attempt starts it."""
        path = self._path(attempt_id)
        if evidence.observe(path).phase is not Phase.RUNNING:
            raise EngineError("SHELL_UNAVAILABLE", f"{attempt_id} does not run", retryable=True)
        return open_shell(self._root, path, (rows, columns) if terminal else None)

    def faults(self) -> Mapping[str, str]:
        """See `Engine.faults`, and `trainshed.engines.local.faults`."""
        return self._faults.found(self._simulated or self._real)

    # Ending

    def stop(self, attempt_id: str, *, grace_seconds: float | None = None) -> None:
        """See `Engine.stop`. A repeated stop can only make the end come sooner."""
        path = self._path(attempt_id)
        if folder.exists(path, folder.EXIT) and not folder.is_held(path):
            return
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)
            folder.sync_directory(self._attempts)
        folder.write_durably(path, folder.STOP, {"grace": grace_seconds})
        self._tell(path)

    @staticmethod
    def _tell(path: Path) -> None:
        """Have a request for an end be heeded: by the shim, or, where there is none, by its record."""
        folder.poke(path / folder.CONTROL)
        lock = folder.acquire(path)
        if lock is None:
            return  # the shim reads the request before it starts anything, and at each poke
        try:
            if not folder.exists(path, folder.EXIT) and not folder.has_begun(path):
                shim.record_unstarted(path, shim.STOP, shim.STOPPED_BEFORE)
        finally:
            os.close(lock)

    def notify(self, attempt_id: str, *, reason: str, deadline: float) -> None:
        """See `Engine.notify`. The first one stands; what has not started is stopped."""
        path = self._path(attempt_id)
        settings = folder.read(path, folder.TRAINING)
        if not settings or not settings.get("notice"):
            self.stop(attempt_id)
            return
        if folder.exists(path, folder.EXIT) or folder.exists(path, folder.NOTICE):
            return
        request = {"reason": reason, "deadline": deadline, "at": time.time()}
        folder.write_durably(path, folder.NOTICE, request)
        self._tell(path)

    def kill(self, attempt_id: str) -> None:
        """See `Engine.kill`."""
        self.stop(attempt_id, grace_seconds=0)
        kill(self._path(attempt_id), self._layout, self.instance)

    def release(self, attempt_id: str) -> Release:
        """See `Engine.release`. What is released can never start again."""
        with contextlib.suppress(OSError):  # the program may have forbidden to write there (chattr)
            tree.unfix(self._path(attempt_id))
        self.stop(attempt_id, grace_seconds=0)
        with self._guard:
            self._watched.discard(attempt_id)
        remove = None
        if self._containers.uses(attempt_id):
            remove = functools.partial(self._containers.release, attempt_id)
        outcome = release(self._path(attempt_id), self._layout, self.instance, remove)
        if outcome.confirmed:
            self._meetings.released(attempt_id)
        return outcome

    def forget(self, attempt_id: str) -> None:
        """See `Engine.forget`. The folder leaves in one rename: half of one could be launched again."""
        path = self._path(attempt_id)
        if folder.is_held(path):
            raise EngineError("ATTEMPT_HELD", f"{attempt_id} is not released", retryable=True)
        if self._containers.uses(attempt_id) and (reason := self._containers.release(attempt_id)):
            raise EngineError("ATTEMPT_HELD", f"{attempt_id} has a container: {reason}", retryable=True)
        grave = self._trash / f"{attempt_id}.{os.urandom(4).hex()}"
        folder.forget_begun(path)
        with contextlib.suppress(FileNotFoundError):
            path.rename(grave)
            folder.sync_directory(self._attempts)
        tree.remove(grave)
        self._meetings.forgotten(attempt_id, self._attempts)

    def sweep(self, known: Collection[str]) -> Sequence[str]:
        """See `Engine.sweep`: groups, containers, folders with a shim or an open intent, marked processes."""
        belongs = set(known)
        strangers = {name for name in self._layout.names() if not name.startswith(".")}
        strangers |= self._containers.strangers(belongs)
        for entry in self._attempts.iterdir():
            if entry.name not in belongs and self._is_live(entry):
                strangers.add(entry.name)
        for pid, attempt_id in procs.marked(self.instance).items():
            if _ID.fullmatch(attempt_id):
                strangers.add(attempt_id)
            else:  # the program renamed itself to something that names no attempt
                procs.kill_same(pid, procs.start_time(pid))
        ended = sorted(strangers - belongs)
        for attempt_id in ended:
            self.release(attempt_id)
        self._meetings.sweep(belongs, self._attempts)
        self._images.evict()
        return ended

    @staticmethod
    def _is_live(path: Path) -> bool:
        if folder.is_held(path):
            return True
        settled = folder.exists(path, folder.EXIT) or folder.has_begun(path)
        return folder.exists(path, folder.LAUNCH) and not settled

    def work_directory(self, attempt_id: str) -> Path:
        """See `Engine.work_directory`."""
        return self._path(attempt_id) / folder.WORK

    def logs(self, attempt_id: str) -> LogFiles:
        """See `Engine.logs`."""
        self._path(attempt_id)
        return log_files(self._root, attempt_id)

    def close(self) -> None:
        """See `Engine.close`. The engine is of no use afterwards; closing again does nothing."""
        if self._notify < 0:
            return
        self._images.close()
        self._forks.close()
        self._faults.close()
        self._containers.close()
        if self._supervisors:
            with contextlib.suppress(OSError):  # not empty while a fork server stays with its shims
                self._supervisors.rmdir()
        self._layout.remove_parents()
        os.close(self._notify)
        os.close(self._interrupt)
        self._notify = -1

    def _path(self, attempt_id: str) -> Path:
        if not _ID.fullmatch(attempt_id):
            raise EngineError("ATTEMPT_ID_INVALID", f"{attempt_id!r} is no attempt id", retryable=False)
        return self._attempts / attempt_id


def log_files(root: Path, attempt_id: str) -> LogFiles:
    """Where an attempt's output lies below an engine's folder, for readers that run no engine."""
    path = root / "attempts" / attempt_id
    return LogFiles(path / folder.FRAMES, path / folder.INDEX, path / folder.SAMPLES)


def samples_in(files: LogFiles, after: float) -> list[Sample]:
    """What was measured beside these files later than ``after`` (Unix seconds), oldest first."""
    return feedback.samples(files.samples.parent, after)


def _possible(wanted: Isolation, root: Path) -> Isolation:
    """The same with the engine's own folder hidden. Raises `EngineError` if this machine cannot do it."""
    wanted = replace(wanted, hide=(*wanted.hide, root))
    if reason := isolation.why_impossible(wanted):
        message = f"programs cannot be isolated with bubblewrap as the settings ask: {reason}"
        raise EngineError("ISOLATION_IMPOSSIBLE", message, retryable=False)
    return wanted


def _instance_id(root: Path) -> str:
    """The id that marks everything of this folder's attempts, made once."""
    known = folder.read(root, "instance.json")
    if not known:
        known = {"id": os.urandom(8).hex()}
        folder.write_durably(root, "instance.json", known)
    return str(known["id"])
