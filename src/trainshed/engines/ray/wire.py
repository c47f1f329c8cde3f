"""Launches and observations as JSON: between the server, its helper and the nodes of a cluster."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainshed.engines.contract import (
    EndedBy,
    Endpoint,
    Exit,
    ExitNotice,
    Gang,
    Host,
    Launch,
    Limits,
    Meeting,
    Mount,
    Observation,
    Phase,
    Precheck,
    Role,
    Ssh,
    TreeFile,
)
from trainshed.model.resources import Gpu

Json = dict[str, Any]
_FILES_BYTES = 64 << 20


def launch_to_json(launch: Launch) -> Json:
    """A launch with the bytes of its files in it; one that is carried has the paths of their sources.

    Raises `OSError`, and `ValueError` for too many bytes.
    """
    files, total = [], 0
    for file in launch.files:
        if launch.carry:
            files.append([file.path, str(file.source.absolute()), file.executable])
            continue
        content = file.source.read_bytes()
        total += len(content)
        if total > _FILES_BYTES:
            raise ValueError(f"its files have more than {_FILES_BYTES >> 20} MiB: mount them")
        files.append([file.path, base64.b64encode(content).decode(), file.executable])
    plain = asdict(replace(launch, files=()))
    plain["files"] = files
    plain["mounts"] = [{**asdict(mount), "source": str(mount.source)} for mount in launch.mounts]
    return plain


def launch_from_json(said: Mapping[str, Any], files: Path, carried: Path) -> Launch:
    """The launch again. Its files are written below ``files``; one that is carried has all in ``carried``.

    Raises `OSError`.
    """
    carry = bool(said.get("carry", False))
    tree = []
    for number, (path, content, executable) in enumerate(said["files"]):
        if carry:
            place = carried / file_place(number)
        else:
            place = files / str(number)
            place.touch(mode=0o600)
            place.write_bytes(base64.b64decode(content))
        tree.append(TreeFile(path, place, executable))
    sources = [
        carried / mount_place(number) if carry else Path(mount["source"])
        for number, mount in enumerate(said["mounts"])
    ]
    return Launch(
        attempt_id=said["attempt_id"],
        argv=tuple(said["argv"]),
        env=said["env"],
        files=tuple(tree),
        gpus=tuple(Gpu(**gpu) for gpu in said["gpus"]),
        limits=Limits(**said["limits"]),
        timeout_seconds=said["timeout_seconds"],
        stop_grace_seconds=said["stop_grace_seconds"],
        image=said["image"],
        mounts=tuple(
            Mount(**{**mount, "source": source})
            for mount, source in zip(said["mounts"], sources, strict=True)
        ),
        paths=said["paths"],
        gang=_gang(said["gang"]),
        secrets=said["secrets"],
        notice=ExitNotice(**said["notice"]) if said["notice"] else None,
        precheck=Precheck(**said["precheck"]) if said["precheck"] else None,
        endpoints=tuple(Endpoint(**each) for each in said["endpoints"]),
        sample_seconds=said["sample_seconds"],
        ssh=_ssh(said["ssh"]),
        node=said.get("node", ""),
        carry=carry,
    )


def file_place(number: int) -> str:
    """Where a file of a launch that is carried lies among what was brought."""
    return f"files/{number}"


def mount_place(number: int) -> str:
    """The same of what a mount shows."""
    return f"mounts/{number}"


def _gang(said: Json | None) -> Gang | None:
    if said is None:
        return None
    plain = {"role": Role(said["role"]), "meeting": meeting_from_json(said["meeting"])}
    return Gang(**{**said, **plain, "optional": tuple(said.get("optional", ()))})


def _ssh(said: Json | None) -> Ssh | None:
    if said is None:
        return None
    keys = {name: tuple(said[name]) for name in ("host_private_keys", "host_public_keys")}
    return Ssh(**{**said, **keys})


def meeting_from_json(said: Mapping[str, Any]) -> Meeting:
    """Where a gang meets."""
    hosts = tuple(Host(**host) for host in said["hosts"])
    return Meeting(hosts, said["port"], said.get("dashboard_port", 0))


def observation_to_json(seen: Observation) -> Json:
    return asdict(seen)


def observation_from_json(said: Mapping[str, Any]) -> Observation:
    """Raises `KeyError`, `TypeError`, `ValueError` for what is none."""
    ended = said["exit"]
    exit_ = None if ended is None else Exit(**{**ended, "ended_by": EndedBy(ended["ended_by"])})
    return Observation(**{**said, "phase": Phase(said["phase"]), "exit": exit_})
