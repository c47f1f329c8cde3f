"""`RayEngine`: the engine contract on a Ray cluster that others share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from trainshed.engines.contract import (
    EngineError,
    Host,
    Launch,
    Meeting,
    Observation,
    Release,
    Report,
    Sample,
)
from trainshed.engines.local import feedback, log_files
from trainshed.engines.ray import units, wire
from trainshed.engines.ray.channel import Channel, default_python
from trainshed.engines.ray.keeper import Keeper
from trainshed.engines.ray.mirror import GROUP, HANDED, INTENT, RELEASED, Mirror
from trainshed.engines.ray.pulling import Pull, is_plain
from trainshed.engines.shell import Shell
from trainshed.jobkit import folder, tree
from trainshed.model.logs import LogFiles
from trainshed.model.resources import Node

_MEETINGS = "meetings"
_NO_SHELLS = "no shell can be opened on the nodes of a shared Ray cluster"


class RayEngine:
    """Runs gangs on the nodes of a Ray cluster: one detached actor a replica, in one placement group.

    Everything it knows lies below ``root``; where the cluster cannot be reached, what is known stays as it
    was seen last. One engine on a folder at a time.

    Args:
        root: A folder of its own; created if missing, readable by us only.
        address: The cluster, as ``ray.init`` takes it: ``HOST:PORT`` of its head from a node of it,
            ``ray://HOST:10001`` from elsewhere.
        cluster_id: What people call it.
        python: The interpreter that has Ray, of the cluster's versions of both.
        node_selector: Labels that a node must have to count.
    """

    name = "ray"

    def __init__(
        self,
        root: Path,
        address: str,
        *,
        cluster_id: str = "ray",
        python: str | None = None,
        node_selector: Mapping[str, str] | None = None,
    ) -> None:
        self._root = root.resolve()
        self._attempts = self._root / "attempts"
        self._trash = self._root / "trash"
        for path in (self._root, self._attempts, self._trash, self._root / _MEETINGS):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._trash.iterdir():
            tree.remove(left)
        self.instance = _instance_id(self._root)
        """What our actors and placement groups carry in their names."""
        self.cluster_id = cluster_id
        self._selector = dict(node_selector or {})
        settings = {"namespace": f"trainshed-{self.instance}", "prefix": f"trainshed-{self.instance}-"}
        self._channel = Channel(address, python or default_python(), self._root, settings)
        self._keeper = Keeper(self._attempts, self._channel, self.instance)
        self._guard = threading.Lock()
        self._seen_alive: set[str] = set()

    @property
    def helper_pid(self) -> int | None:
        """The process that is connected to the cluster, if there is one now."""
        return self._channel.pid

    # What there is

    def nodes(self) -> Sequence[Node]:
        """The nodes that are alive, named by their addresses. Raises `EngineError`."""
        return [units.node_of(said) for said in self._alive()]

    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """The labels of each node that is alive. Raises `EngineError`."""
        return {said["address"]: said["labels"] for said in self._alive()}

    def _alive(self) -> list[wire.Json]:
        found = [
            said
            for said in self._channel.call("nodes")
            if said["alive"]
            and all(said["labels"].get(key) == value for key, value in self._selector.items())
        ]
        self._seen_alive |= {said["address"] for said in found}
        return found

    def faults(self) -> Mapping[str, str]:
        """See `Engine.faults`: nodes that the cluster declared dead, of those that were alive or are ours."""
        try:
            said = self._channel.call("nodes")
        except EngineError:
            return {}  # nothing is known; that is no fault of a node
        alive = {node["address"] for node in said if node["alive"]}
        ours = self._seen_alive | self._keeper.used_nodes()
        return {
            node["address"]: f"Ray declared the node dead: {node['why'] or 'no reason given'}"
            for node in said
            if node["address"] in ours - alive
        }

    def enforcement(self) -> Mapping[str, str]:
        """What the nodes can enforce shows in each attempt's `Observation`."""
        by_node = "as the node can; see each attempt"
        names = ("cpus", "memory", "pids", "shm", "mounts", "tree")
        return {**dict.fromkeys(names, by_node), "storage": "watched", "log": "shim", "isolation": "none"}

    def images(self) -> str | None:
        """See `Engine.images`."""
        return units.NO_IMAGES

    def prepare(self, image: str, on_progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        """See `Engine.prepare`: always refused."""
        del image, on_progress, cancelled
        raise EngineError("IMAGES_UNAVAILABLE", units.NO_IMAGES, retryable=False)

    # Starting

    def meet(self, gang_id: str, nodes: Sequence[str], slots: Sequence[int]) -> Meeting:
        """See `Engine.meet`: at the nodes' own addresses."""
        units.check_id(gang_id)
        with self._guard:
            place = self._root / _MEETINGS
            if known := folder.read(place, gang_id):
                return wire.meeting_from_json(known)
            taken = {(folder.read(place, path.name) or {}).get("port", 0) for path in place.iterdir()}
            decided = units.meeting(gang_id, nodes, slots, taken)
            folder.write_durably(place, gang_id, asdict(decided))
            return decided

    def launch(self, launch: Launch) -> None:
        """See `Engine.launch`."""
        for error in self.launch_many([launch]).values():
            raise error

    def launch_many(self, launches: Iterable[Launch]) -> Mapping[str, EngineError]:
        """See `Engine.launch_many`: the intents are durable; a thread brings them to the cluster."""
        launches = list(launches)
        ray_tasks = units.is_ray_task(launches)
        errors: dict[str, EngineError] = {}
        for launch in launches:
            try:
                mirror = self._mirror(launch.attempt_id)
                if any(mirror.has(name) for name in (HANDED, INTENT, RELEASED)) or mirror.is_over():
                    continue
                is_ray = launch.gang is not None and launch.gang.id in ray_tasks
                group = units.group_of(launch, is_ray=is_ray, now=time.time())
                mirror.write(GROUP, asdict(group))
                mirror.write(INTENT, wire.launch_to_json(launch))
            except (OSError, ValueError) as error:
                message = f"the launch cannot be recorded: {error}"
                errors[launch.attempt_id] = EngineError("ENGINE_DISK", message, retryable=True)
            except EngineError as error:
                errors[launch.attempt_id] = error
        self._keeper.wake()
        return errors

    # Watching

    def observe(self, attempt_ids: Collection[str]) -> Mapping[str, Observation]:
        """See `Engine.observe`: what the mirror holds."""
        return {attempt_id: self._mirror(attempt_id).observe() for attempt_id in attempt_ids}

    def changed(self, timeout: float) -> set[str]:
        """See `Engine.changed`."""
        return self._keeper.changed(timeout)

    def interrupt(self) -> None:
        """See `Engine.interrupt`."""
        self._keeper.interrupt()

    def reports(self, attempt_id: str, after: int) -> Sequence[Report]:
        """See `Engine.reports`."""
        return feedback.reports(self._mirror(attempt_id).path, after)

    def samples(self, attempt_id: str, after: float) -> Sequence[Sample]:
        """See `Engine.samples`."""
        return feedback.samples(self._mirror(attempt_id).path, after)

    def work_directory(self, attempt_id: str) -> Path:
        """See `Engine.work_directory`: a copy, once the program ended, where it is at most 64 MiB.

        Of a launch that is carried there is none: see `pull`.
        """
        return self._mirror(attempt_id).path / folder.WORK

    def pull(self, attempt_id: str, names: Iterable[str], into: Path) -> Sequence[str]:
        """Copy what lies below ``work/NAME`` on the node now to ``into/NAME``; the names of what stays there.

        While the program runs and after its end, until the release. Only what changed since the last copy
        travels, and what is gone there goes here. Links, devices and names that lead out stay behind. One at
        a time for each ``into``. Raises `EngineError`: ``ENGINE_UNREACHABLE`` where the node does not answer
        now, ``ATTEMPT_GONE`` where there is nothing to copy any more, ``ENGINE_DISK``.
        """
        mirror = self._mirror(attempt_id)
        if mirror.has(GROUP) and not mirror.has(HANDED) and not mirror.has(RELEASED):
            return []  # nothing of it has started
        if not mirror.has(GROUP) or mirror.has(RELEASED):
            raise EngineError("ATTEMPT_GONE", f"{attempt_id} is on no node (any more)", retryable=False)
        return Pull(self._channel, attempt_id, into).run(list(names))

    def ask(self, attempt_id: str, path: str) -> bool:
        """Make the empty file ``work/PATH`` on the node, in a folder that is there; whether that was done."""
        mirror = self._mirror(attempt_id)
        if not is_plain(path) or not mirror.has(HANDED) or mirror.has(RELEASED):
            return False
        try:
            answer = self._channel.call("tell", attempt_id, "ask", [path])
        except EngineError:
            return False
        return bool(answer.get("new"))

    def logs(self, attempt_id: str) -> LogFiles:
        """See `Engine.logs`."""
        units.check_id(attempt_id)
        return log_files(self._root, attempt_id)

    # Ending

    def stop(self, attempt_id: str, *, grace_seconds: float | None = None) -> None:
        """See `Engine.stop`. It reaches the node with the next look at it, within a second or so."""
        mirror = self._mirror(attempt_id)
        if not mirror.is_over():
            mirror.write(folder.STOP, {"grace": grace_seconds, "at": time.time()})
            self._keeper.wake(attempt_id)

    def shells(self) -> str | None:
        """See `Engine.shells`: what reaches a node of somebody else's cluster are actors, which have none."""
        return _NO_SHELLS

    def open_shell(self, attempt_id: str, *, rows: int, columns: int, terminal: bool = True) -> Shell:
        """See `Engine.open_shell`."""
        message = (
            f"{attempt_id} gets no {f'terminal of {rows} x {columns}' if terminal else 'shell'}: {_NO_SHELLS}"
        )
        raise EngineError("NOT_SUPPORTED_BY_ENGINE", message, retryable=False)

    def join(self, gang_id: str, rank: int, slots: int) -> Host:
        """See `Engine.join`: the bundles of a gang are reserved once."""
        message = f"{gang_id} has its bundles on a shared cluster: rank {rank} with {slots} slots cannot join"
        raise EngineError("NOT_SUPPORTED_BY_ENGINE", message, retryable=False)

    def notify(self, attempt_id: str, *, reason: str, deadline: float) -> None:
        """See `Engine.notify`."""
        mirror = self._mirror(attempt_id)
        if not mirror.has(HANDED):
            self.stop(attempt_id)
        elif not mirror.is_over() and not mirror.has(folder.NOTICE):
            mirror.write(folder.NOTICE, {"reason": reason, "deadline": deadline})
            self._keeper.wake()

    def kill(self, attempt_id: str) -> None:
        """See `Engine.kill`: past the shim, and past the host where that does not answer."""
        self.stop(attempt_id, grace_seconds=0)
        self._keeper.kill(attempt_id)

    def release(self, attempt_id: str) -> Release:
        """See `Engine.release`. Confirmed by the node itself, or by the cluster's word that it is dead."""
        mirror = self._mirror(attempt_id)
        self.stop(attempt_id, grace_seconds=0)
        outcome = self._keeper.release(attempt_id)
        if outcome.confirmed and mirror.path.is_dir():
            tree.remove(mirror.path / folder.WORK)
        return outcome

    def forget(self, attempt_id: str) -> None:
        """See `Engine.forget`."""
        mirror = self._mirror(attempt_id)
        if not mirror.path.is_dir():
            return
        if mirror.has(GROUP) and not mirror.has(RELEASED):
            raise EngineError("ATTEMPT_HELD", f"{attempt_id} is not released", retryable=True)
        gang = str((mirror.read(GROUP) or {}).get("gang", ""))
        grave = self._trash / f"{attempt_id}.{os.urandom(4).hex()}"
        with suppress(FileNotFoundError):
            mirror.path.rename(grave)
            folder.sync_directory(self._attempts)
        tree.remove(grave)
        if gang and not any(self._attempts.glob(f"{gang}.*")):
            (self._root / _MEETINGS / gang).unlink(missing_ok=True)

    def sweep(self, known: Collection[str]) -> Sequence[str]:
        """See `Engine.sweep`: folders of ours, actors and placement groups by our prefix."""
        return self._keeper.sweep(known)

    def close(self) -> None:
        """See `Engine.close`."""
        self._keeper.close()
        self._channel.close()

    def _mirror(self, attempt_id: str) -> Mirror:
        return Mirror(self._attempts / units.check_id(attempt_id))


def open_ray_engine(
    cluster_id: str,
    address: str,
    root: Path,
    *,
    python: str | None = None,
    node_selector: Mapping[str, str] | None = None,
) -> RayEngine:
    """The engine of a cluster of the catalogue (C1), with its folder at ``root``.

    Raises `EngineError` ``ENGINE_UNREACHABLE`` where the cluster, or Ray itself, is not to be had. ``python``
    is the interpreter that has Ray; the variable ``TRAINSHED_RAY_PYTHON``, or this one.
    """
    engine = RayEngine(root, address, cluster_id=cluster_id, python=python, node_selector=node_selector)
    try:
        engine.nodes()
    except EngineError:
        engine.close()
        raise
    return engine


def _instance_id(root: Path) -> str:
    known = folder.read(root, "instance.json")
    if not known:
        known = {"id": os.urandom(8).hex()}
        folder.write_durably(root, "instance.json", known)
    return str(known["id"])
