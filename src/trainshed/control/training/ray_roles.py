"""What each member of a Ray task with a cluster of its own is started with (C19, C46-C52).

Pure but for `member_files`, which writes what a member finds in its work directory. The controller makes each
member's `Launch` from a `RayPart` and adds the task's variables, hidden values, mounts, GPUs and limits:

    task = RayTask(...)                          # once an Attempt, the same after a restart
    part = ray_part(task, rank)
    files = member_files(folder / str(rank), part)
    launch = Launch(unit_id, part.argv, {**task_env, **part.env}, files, …,
                    mounts=(*mounts, *part.mounts), gang=Gang(…, role=part.role))

Ranks: the head is 0, workers are 1 to N, the submitter is N + 1 (`TaskSpec.roles`). **To stop a task, stop
the submitter alone**: it ends the driver within its grace, then the cluster; whoever is left is stopped then.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trainshed
from trainshed.engines.contract import Meeting, Mount, Role, TreeFile
from trainshed.jobkit import ray_node, ray_wire
from trainshed.jobkit.volumes import open_beneath
from trainshed.model.resources import Amounts

SHARED_TARGET = ray_node.SHARED
"""Where the shared storage is mounted (C48)."""
DRIVER_ENDED, RETAINING, DASHBOARD_LIMITED = "DRIVER_ENDED", "RETAINING", "DASHBOARD_LIMITED"
"""Reports of the head. ``data`` has ``exit_code``; or ``until`` (Unix seconds), ``exit_code`` and ``url``."""
DASHBOARD_READY = "DASHBOARD_READY"
"""Report of the head: ``data["url"]`` is where Ray's dashboard listens (the door proxies to it, C50)."""
LACKS_RAY = "IMAGE_LACKS_RAY"
"""Begins the head's `Exit.detail` when its image has no Ray; the exit code is then 78 (C7)."""
_CODE = Path(trainshed.__file__).parent
_MODULES = (
    "jobkit/__init__.py",
    "jobkit/linux.py",
    "jobkit/ray_wire.py",
    "jobkit/reporting.py",
    "jobkit/ray_node.py",
    "jobkit/ray_member.py",
    "jobkit/ray_head.py",
    "jobkit/ray_demand.py",
    "jobkit/ray_load.py",
    "jobkit/ray_scaling.py",
    "jobkit/ray_worker.py",
    "jobkit/ray_submitter.py",
    "jobkit/ray_driver.py",
    "jobkit/ray_capture.py",
)
_FIND_PYTHON = (
    'for p in python python3; do if command -v "$p" >/dev/null 2>&1; then exec "$p" -u "$0"; fi; done; '
    f"mkdir -p {ray_wire.FOLDER}; "
    "echo 'IMAGE_LACKS_RAY: there is no python on the PATH' | "
    f"tee {ray_wire.FOLDER}/detail >&2; exit {ray_wire.LACKS_RAY}"
)
_BOOT = b"""import os, sys
place = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.join(place, "code")
from trainshed.jobkit.%s import main
main(%s)
"""
_MIB = 1 << 20
_LEAST_STORE_BYTES = 80 * _MIB
"""Ray refuses less than 75 MiB."""
_STORE_SHARE = 0.3
"""Of a member's memory, as Ray's own default."""
_SHORT_CHARS = 8


@dataclass(frozen=True, slots=True)
class RayScaling:
    """Between what the workers of a cluster go up and down with its load (C51)."""

    least: int
    most: int
    idle_seconds: float
    """So long a worker has nothing to do before it leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTask:
    """One Attempt of a Ray task. Amounts are those of one replica; seconds."""

    attempt_id: str
    submission_id: str
    """The Ray Job's id: the engine name of the Attempt (C3), new with every Attempt."""
    token: str
    """A secret of the Attempt, 16 to 128 characters; the same whenever it is asked for again."""
    meeting: Meeting
    """Of all N + 2 members."""
    nodes: Sequence[str] | Mapping[int, str]
    """Where each member was placed, by rank: starts take turns on each."""
    cmd: str
    head: Amounts
    workers: Amounts
    runtime_env: Mapping[str, Any] | None = None
    """`model.training.runtime_env.runtime_env` of the spec's text (C47)."""
    metadata: Mapping[str, str] | None = None
    """Of the Ray Job: project, labels. No hidden values (C9)."""
    shared_storage: Path | None = None
    """`shared_folder` of the volume and the task (C48)."""
    retention_seconds: int = 0
    """0 without debug (C50)."""
    start_seconds: float = 600.0
    """How long members wait for all nodes to be alive."""
    grace_seconds: float = 10.0
    """Between the driver's SIGTERM and SIGKILL; the members' own `Launch.stop_grace_seconds` must be
    longer by `GRACE_MARGIN_SECONDS`, as the logs are collected after it."""
    scaling: RayScaling | None = None
    joined: Mapping[int, str] = field(default_factory=dict)
    """Addresses of workers that join the cluster later, by rank (C51)."""


GRACE_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RayPart:
    """What one member is started with."""

    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str]
    contents: Mapping[str, bytes]
    """Files of its work directory, by relative path."""
    mounts: tuple[Mount, ...]


def ray_part(task: RayTask, rank: int) -> RayPart:
    """The part of one member. Raises `ValueError` for a rank that the gang does not have."""
    members = len(task.meeting.hosts)
    if not 0 <= rank < members and rank not in task.joined:
        raise ValueError(f"a task of {members} members has no rank {rank}")
    role = Role.HEAD if rank == 0 else Role.SUBMITTER if rank == members - 1 else Role.WORKER
    amounts = task.head if role is Role.HEAD else task.workers
    own = hashlib.sha256(f"{task.attempt_id}.{rank}".encode()).hexdigest()[:_SHORT_CHARS]
    memory, store = _memory(amounts)
    config = {
        "role": role.value,
        "rank": rank,
        "token": task.token,
        "head": task.meeting.hosts[0].address,
        "port": task.meeting.port,
        "dashboard_port": task.meeting.dashboard_port,
        "address": task.joined[rank] if rank in task.joined else task.meeting.hosts[rank].address,
        "machine": task.nodes[rank],
        "workers": members - 2,
        "scaling": _scaling(task) if role is not Role.SUBMITTER else None,
        "cpus": amounts.cpus,
        "gpus": amounts.gpus,
        "memory_bytes": memory,
        "object_store_bytes": store,
        "short": own,
        "shared": task.shared_storage is not None,
        "start_seconds": task.start_seconds,
        "grace_seconds": task.grace_seconds,
        "retain_seconds": task.retention_seconds,
        "submission_id": task.submission_id,
        "runtime_env": dict(task.runtime_env or {}),
        "metadata": dict(task.metadata or {}),
    }
    contents = {f"{ray_wire.FOLDER}/{ray_wire.CONFIG}": json.dumps(config).encode()}
    contents |= _code()
    if role is Role.HEAD:
        contents[f"{ray_wire.FOLDER}/{ray_wire.COMMAND}"] = task.cmd.encode("utf-8", "surrogateescape")
    mounts: tuple[Mount, ...] = ()
    if task.shared_storage is not None and role is not Role.SUBMITTER:
        # Programs may write all of the volume elsewhere: it is found below the volume when it is mounted.
        volume, *below = task.shared_storage.parents[1], *task.shared_storage.parts[-2:]
        within = "/".join(below)
        mounts = (Mount(volume, "ray-shared", SHARED_TARGET, writable=True, within=within),)
    argv = ("bash", "-c", _FIND_PYTHON, f"{ray_wire.FOLDER}/member.py")
    return RayPart(role, argv, {}, contents, mounts)


def _scaling(task: RayTask) -> dict[str, Any] | None:
    if task.scaling is None:
        return None
    amounts, (_, store) = task.workers, _memory(task.workers)
    return {
        "least": task.scaling.least,
        "most": task.scaling.most,
        "idle_seconds": task.scaling.idle_seconds,
        # What Ray counts of a worker that is not there yet.
        "shape": {
            "CPU": amounts.cpus,
            "GPU": amounts.gpus,
            "memory": _memory(amounts)[0],
            "object_store_memory": store,
        },
    }


def _memory(amounts: Amounts) -> tuple[int, int]:
    """Bytes for programs and for the object store of a member."""
    memory = amounts.memory_mb * _MIB
    store = max(_LEAST_STORE_BYTES, int(memory * _STORE_SHARE))
    if amounts.shm_mb:
        store = max(_LEAST_STORE_BYTES, min(store, int(amounts.shm_mb * _MIB * 0.95)))
    return max(_LEAST_STORE_BYTES, memory - store), store


def _code() -> dict[str, bytes]:
    """The programs of ours, as a package of their own: the image need not have Trainshed."""
    base = f"{ray_wire.FOLDER}/code/trainshed"
    found = {f"{base}/{name}": (_CODE / name).read_bytes() for name in _MODULES}
    found[f"{base}/__init__.py"] = b""
    found[f"{ray_wire.FOLDER}/member.py"] = _BOOT % (b"ray_member", b"place")
    found[f"{ray_wire.FOLDER}/capture/sitecustomize.py"] = found[f"{base}/jobkit/ray_capture.py"]
    found[f"{ray_wire.FOLDER}/load.py"] = _BOOT % (b"ray_load", b"sys.argv[1]")
    found[f"{ray_wire.FOLDER}/driver.py"] = _BOOT % (b"ray_driver", b"*sys.argv[1:]")
    return found


def member_files(folder: Path, part: RayPart) -> tuple[TreeFile, ...]:
    """Write the files of a member below ``folder``, which only we may read, for the engine to copy.

    Idempotent. The folder may be removed once the member is released.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = []
    for name, content in sorted(part.contents.items()):
        place = folder / name.replace("/", "~")
        if not place.exists() or place.read_bytes() != content:
            fresh = place.with_name(f".{place.name}.new")
            fresh.touch(mode=0o600)
            fresh.write_bytes(content)
            fresh.replace(place)
        found.append(TreeFile(name, place))
    return tuple(found)


def shared_folder(volume: Path, task_uuid: str) -> Path:
    """Where a task's data lies in its shared storage: ``ray/<TASK_UUID>`` (C48). Raises `ValueError`."""
    if not task_uuid or task_uuid in {".", ".."} or "/" in task_uuid or "\0" in task_uuid:
        raise ValueError(f"{task_uuid!r} is no task uuid")
    return volume / "ray" / task_uuid


def make_shared_folder(volume: Path, task_uuid: str) -> Path:
    """Have it there before the launch; everybody who may run the task may write. Raises `OSError`."""
    place = shared_folder(volume, task_uuid)
    volume.mkdir(parents=True, exist_ok=True)
    fd = open_beneath(volume, place.relative_to(volume).as_posix(), make=True)
    try:
        Path(f"/proc/self/fd/{fd}").chmod(0o1777)
    finally:
        os.close(fd)
    return place


def clean_shared_folder(volume: Path, task_uuid: str) -> None:
    """Delete this task's data and nothing else (C49). Repeatable. Raises `OSError` if something is left.

    Nothing is followed out of it: a link is removed, not what it leads to.
    """
    place = shared_folder(volume, task_uuid)
    try:
        above = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        _remove(place.name, above)
    finally:
        os.close(above)


def _remove(name: str, above: int) -> None:
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        try:
            for each in os.listdir(inner):  # noqa: PTH208 - of an open folder, which no path names safely
                _remove(each, inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=above)
