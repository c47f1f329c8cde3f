"""The mounts of a launch: whether they can be made here, and what the program's variables say of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EngineError, Launch, Mount
from trainshed.jobkit.mounts import RAY

_OF_THE_MACHINE = frozenset(
    ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr", "var")
)
"""Folders that a mount would take from programs, or that a program has of its own."""


def mounts(launch: Launch, engine_root: Path, *, may_mount: bool, stage: Path | None) -> list[list[Any]]:
    """The form in which a launch hands its mounts to the shim. Raises `EngineError`.

    ``stage`` is where folders of volumes are bound first (`staged`), ``None`` where nothing can be.
    """
    seen: list[str] = []
    for mount in launch.mounts:
        if not mount.source.is_absolute() or not _is_plain(mount.place):
            _refuse(f"the mount of {mount.source} at {mount.place!r} names no place below a folder")
        if mount.within and not _is_plain(mount.within):
            _refuse(f"{mount.within!r} is no plain path below {mount.source}")
        seen.append(f"/{mount.place}")
        if mount.target is not None:
            _check_target(mount.target, engine_root, may_mount=may_mount or mount.writable)
            seen.append(f"//{mount.target}")
    ordered = sorted(f"{each}/" for each in seen)
    for before, after in pairwise(ordered):
        if after.startswith(before):
            _refuse(f"{after.strip('/')} is mounted at or below {before.strip('/')}")
    return [
        [os.fspath(_shown(number, mount, stage)), mount.place, mount.target, mount.writable]
        for number, mount in enumerate(launch.mounts)
    ]


def staged(launch: Launch, *, may_mount: bool) -> list[list[Any]]:
    """Folders below a source, for `trainshed.jobkit.volumes.stage`."""
    return [
        [os.fspath(mount.source), mount.within, str(number) if may_mount else "", mount.writable]
        for number, mount in enumerate(launch.mounts)
        if mount.within
    ]


def _shown(number: int, mount: Mount, stage: Path | None) -> Path:
    if mount.within and stage is not None:
        return stage / str(number)
    return mount.source / mount.within


def elsewhere(launch: Launch, base: str) -> list[str]:
    """What is not at its absolute path where nobody may mount, with where it is instead."""
    return [
        f"The server may not mount here: what belongs at {mount.target} is at {base}/{mount.place}."
        for mount in launch.mounts
        if mount.target is not None
    ]


def variables(paths: Mapping[str, str], launched: Sequence[Mount], base: str) -> dict[str, str]:
    """Each variable of ``paths`` with where the program finds that; ``base`` is its folder of mounts."""
    for name, place in paths.items():
        if not any(f"{mount.place}/".startswith(f"{place}/") for mount in launched):
            _refuse(f"the variable {name} leads to `{place}`, where nothing is mounted")
    return {name: f"{base}/{place}" for name, place in paths.items()}


def _check_target(target: str, engine_root: Path, *, may_mount: bool) -> None:
    parts = target.split("/")
    if parts[0] or not _is_plain("/".join(parts[1:])):
        _refuse(f"`{target}` is not a plain absolute path")
    if parts[1] in _OF_THE_MACHINE and target != RAY:
        _refuse(f"a mount at `{target}` would hide what programs need of /{parts[1]}; use /mnt or /volume")
    if f"{engine_root}/".startswith(f"{target}/") or f"{target}/".startswith(f"{engine_root}/"):
        _refuse(f"a mount at `{target}` would hide the server's own folder {engine_root}")
    if not may_mount:
        message = (
            f"nothing can be shown at `{target}`: the server may not mount here. Run it with CAP_SYS_ADMIN, "
            "or set engine.isolation"
        )
        raise EngineError("MOUNT_IMPOSSIBLE", message, retryable=False)


def _is_plain(path: str) -> bool:
    return {"", ".", ".."}.isdisjoint(path.split("/")) and "\0" not in path


def _refuse(message: str) -> None:
    raise EngineError("LAUNCH_INVALID", message, retryable=False)
