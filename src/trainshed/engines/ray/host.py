"""The host of one replica on a node of a Ray cluster: a local engine of its own, inside a detached actor.

So a replica is started, watched, limited, measured and ended by the very code that does it on one machine.
Its files lie in a folder of the node, which goes with the release; a process of ours beside the actor ends
all that is left of the replica when the actor vanishes, whoever ended it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped] # nvidia-ml-py ships no types

from trainshed.engines.contract import EngineError, Launch, Phase, TreeFile
from trainshed.engines.local import LocalEngine, inventory
from trainshed.engines.ray import wire
from trainshed.engines.ray.bridge import EXTRA_SECONDS, Bridge, Exchange, Hub
from trainshed.engines.ray.carried import Arrivals, Leavings
from trainshed.jobkit import folder, tree
from trainshed.jobkit.ray_wire import CLUSTER, FOLDER
from trainshed.model.resources import Gpu

Json = dict[str, Any]
_PIECE_BYTES = 1 << 20
_WORK_BYTES = 64 << 20
_REPORTS_AT_ONCE = 1000
_TETHER = """
import os, sys
while os.read(0, 4096):
    pass
root, paths = sys.argv[1:]
if os.path.isdir(root):
    sys.path[:0] = paths.split(os.pathsep)
    from trainshed.engines.ray.host import clean
    clean(root)
"""
"""Waits until the host is gone and ends what it left (P6); until then it has nothing loaded."""


class Host:
    """What the actor does. Methods take and return JSON values; all may be called again.

    ``setup``: ``unit``, ``gang``, ``rank``, ``size``, ``gpus`` (what Ray assigned), ``code`` (where the code
    lies), ``cluster`` (of Ray tasks: ``gcs``, ``dashboard``, ``node``, ``group``, ``logs``).
    """

    def __init__(self, root: str, setup: Json, exchange: Exchange | None = None) -> None:
        self._root = Path(root)
        self._setup = setup
        self._unit = str(setup["unit"])
        self._guard = threading.Lock()
        self._tether = _start_tether(root, setup["code"])
        self._engine = LocalEngine(self._root / "engine")
        self._exchange = exchange
        self._bridge: Bridge | None = None
        self._work: bytes | None = None
        self._carry = False
        self._id = os.urandom(8).hex()
        self._arrivals = Arrivals(self._root / "carried")
        self._leavings = Leavings(lambda: self._engine.work_directory(self._unit))
        self.hub = Hub()

    def launch(self, said: Json) -> Json:
        """Start it at most once; ``{"error": [code, message, retryable]}`` if it cannot be."""
        with self._guard:
            try:
                place = self._root / "files"
                place.mkdir(mode=0o700, exist_ok=True)
                launch = self._fitted(wire.launch_from_json(said, place, self._root / "carried"))
                self._carry = launch.carry
                if launch.gang is not None and self._bridge is None:
                    exchange = self._exchange or self.hub.exchange
                    gang = launch.gang
                    root = self._root / "engine"
                    self._bridge = Bridge(root, gang.id, gang.rank, gang.size, exchange)
                self._engine.launch(launch)
            except EngineError as error:
                return {"error": [error.code, error.message, error.retryable]}
            except OSError as error:
                return {"error": ["ENGINE_DISK", f"the launch cannot be recorded: {error}", True]}
        return {}

    def _fitted(self, launch: Launch) -> Launch:
        """The launch as it is on this node: its own GPUs, mounts that are there, time for the hub."""
        missing = [str(mount.source) for mount in launch.mounts if not mount.source.exists()]
        if missing:
            message = f"this node has no {', '.join(missing)}: mounts must be on a file system of all nodes"
            raise EngineError("LAUNCH_INVALID", message, retryable=False)
        gang = launch.gang
        if gang is not None and gang.rank:
            gang = replace(gang, start_seconds=gang.start_seconds + EXTRA_SECONDS)
        if self._setup.get("cluster"):  # a Ray task: its own tasks take the GPUs, Ray shows them
            file = self._root / "files" / CLUSTER
            file.touch(mode=0o600)
            cluster = {**self._setup["cluster"], "env": dict(launch.env), "hidden": list(launch.secrets)}
            file.write_text(json.dumps(cluster), encoding="utf-8")
            files = (*launch.files, TreeFile(f"{FOLDER}/{CLUSTER}", file))
            return replace(launch, files=files, gpus=(), gang=gang)
        return replace(launch, gpus=_gpus(launch.gpus, self._setup["gpus"]), gang=gang)

    def take(self, pieces: list[Json]) -> Json:
        """Keep pieces of what is brought here; how much of each one's file there is, and who keeps it."""
        try:
            return {"host": self._id, "sizes": self._arrivals.take(pieces)}
        except OSError as error:
            return {"host": self._id, "error": f"the node cannot keep its files: {error.strerror or error}"}

    # Watching

    def poll(self, log_at: int, report_after: int, sample_after: float) -> Json:
        """What is new: the observation, log bytes from ``log_at``, reports and samples after those."""
        engine, unit = self._engine, self._unit
        # The observation first: of one that ended nothing comes any more, so what follows is complete.
        seen = engine.observe([unit])[unit]
        ended = seen.phase in {Phase.EXITED, Phase.LOST}
        log = _read(engine.logs(unit).frames, log_at)
        reports = list(engine.reports(unit, report_after))[:_REPORTS_AT_ONCE]
        return {
            "host": self._id,
            "node": self._setup["address"],
            "seen": wire.observation_to_json(seen),
            "log": base64.b64encode(log).decode(),
            "log_more": len(log) == _PIECE_BYTES,
            "reports": [asdict(report) for report in reports],
            "samples": [asdict(sample) for sample in engine.samples(unit, sample_after)],
            "work_bytes": len(self._packed()) if ended and not self._carry else None,
        }

    def work(self, at: int) -> str:
        """A piece of the work directory's archive, in base64."""
        return base64.b64encode(self._packed()[at : at + _PIECE_BYTES]).decode()

    def _packed(self) -> bytes:
        """What the program left in its work directory, as a tar; empty where that is too much (C14)."""
        with self._guard:
            if self._work is None:
                place = self._engine.work_directory(self._unit)
                self._work = b""
                if place.is_dir() and tree.used_bytes(os.fspath(place), enough=_WORK_BYTES) <= _WORK_BYTES:
                    packed = io.BytesIO()
                    with tarfile.open(fileobj=packed, mode="w") as archive:
                        archive.add(place, arcname=".", filter=_plain)
                    self._work = packed.getvalue()
            return self._work

    def listed(self, names: list[str], after: str) -> Json | None:
        """See `Leavings.listed`."""
        return self._leavings.listed(names, after)

    def read(self, wanted: list[tuple[str, int]]) -> list[list[Any] | None] | None:
        """See `Leavings.read`."""
        return self._leavings.read(wanted)

    def ask(self, path: str) -> bool:
        """See `Leavings.ask`."""
        return self._leavings.ask(path)

    # Ending

    def stop(self, grace: float | None) -> Json:
        self._engine.stop(self._unit, grace_seconds=grace)
        return {}

    def notify(self, reason: str, deadline: float) -> Json:
        self._engine.notify(self._unit, reason=reason, deadline=deadline)
        return {}

    def kill(self) -> Json:
        self._engine.kill(self._unit)
        return {}

    def lost(self, rank: int, why: str) -> Json:
        """Tell the hub that a member's host is gone."""
        self.hub.lost(rank, why)
        return {}

    def release(self) -> Json:
        """End everything; the folder of the node goes once that is confirmed and all was handed over."""
        self._leavings.close()
        outcome = self._engine.release(self._unit)
        if outcome.confirmed and self._bridge is not None:
            self._bridge.close()
            self._bridge = None
        return {"confirmed": outcome.confirmed, "checks": dict(outcome.checks), "killed": outcome.killed}

    def leave(self) -> Json:
        """Remove what is left on the node; the actor is ended next."""
        self._leavings.close()
        self._arrivals.close()
        with contextlib.suppress(EngineError):
            self._engine.close()
        if self._tether.stdin is not None:
            self._tether.stdin.close()
        shutil.rmtree(self._root, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._root.parent.rmdir()
        return {}


def clean(root: str) -> Json:
    """Release all that a host which is gone left in ``root``; whether it is confirmed, and what was seen."""
    place = Path(root)
    if not place.is_dir():
        return {"confirmed": True, "checks": {"folder": "none on the node"}, "killed": 0}
    engine = LocalEngine(place / "engine")
    checks: dict[str, str] = {}
    confirmed, killed = True, 0
    try:
        for path in sorted((place / "engine" / "attempts").iterdir()):
            if not folder.exists(path, folder.LAUNCH):
                continue  # a stand-in
            outcome = engine.release(path.name)
            confirmed &= outcome.confirmed
            checks |= outcome.checks
            killed += outcome.killed
    finally:
        engine.close()
    if confirmed:
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            place.parent.rmdir()
    return {"confirmed": confirmed, "checks": checks, "killed": killed}


def _start_tether(root: str, code: str) -> subprocess.Popen[bytes]:
    # A shell in between makes it nobody's child: Ray ends the children of its workers.
    inner = 'exec 3<&0; "$@" <&3 3<&- & exit 0'
    paths = os.pathsep.join([code, *sys.path, str(Path(pynvml.__file__).parent.parent)])
    words = ["sh", "-c", inner, "sh", "setsid", sys.executable, "-c", _TETHER, root, paths]
    process = subprocess.Popen(  # noqa: S603 - our interpreter, our code
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    process.wait()
    return process


def _gpus(wanted: Sequence[Gpu], assigned: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs that Ray chose, as this node knows them. Raises `EngineError`."""
    if len(assigned) < len(wanted):
        message = f"Ray assigned {len(assigned)} GPUs to a replica of {len(wanted)}"
        raise EngineError("LAUNCH_INVALID", message, retryable=True)
    real = {str(gpu.index): gpu for gpu in inventory()} | {gpu.uuid: gpu for gpu in inventory()}
    return tuple(
        real.get(name) or replace(gpu, index=int(name) if name.isdecimal() else gpu.index)
        for gpu, name in zip(wanted, assigned, strict=False)
    )


def _read(path: Path, at: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(_PIECE_BYTES)
    except FileNotFoundError:
        return b""


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Folders, files and links; nothing else is an output."""
    return entry if entry.isdir() or entry.isfile() or entry.issym() else None
