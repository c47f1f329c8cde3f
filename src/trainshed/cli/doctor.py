"""``trainshed doctor``: what this machine offers, and what is missing for what."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from trainshed.cli.output import Column, Fields, Table, count, size
from trainshed.cli.session import Session, json_option

OK, WARNING, MISSING = "ok", "warning", "missing"
MIN_FREE_BYTES = 2 << 30
_PROBE_SECONDS = 10


def _server_images(document: Mapping[str, Any]) -> str | None:
    """What runs images where the server in use is, or why nothing does."""
    found = (document.get("server") or {}).get("images")
    return found and (found.get("runtime") or f"none: {found.get('reason')}")


CHECKS = Table(
    (
        Column("CHECK", "name"),
        Column("STATE", "state"),
        Column("FOUND", "found", rank=2),
        Column("MATTERS FOR", "needed_for", rank=1),
    ),
    empty="Nothing was checked.",
    rows="checks",
)
REMEDIES = Table(
    (Column("FOR", "name"), Column("TO DO", "remedy", rank=1)),
    empty="Nothing is missing.",
    rows=lambda document: [check for check in document["checks"] if check["remedy"]],
)
SERVER = Fields(
    (
        ("server", "server.url"),
        ("version", "server.version"),
        ("role", "server.role"),
        ("database", "server.database"),
        ("data folder", "server.data_folder.path"),
        ("blobs in", "server.content_store.place"),
        ("isolation", "server.isolation"),
        ("images", _server_images),
        ("no server", "server_reason"),
    ),
)
NODES = Table(
    (
        Column("NODE", "name"),
        Column("GPUS", lambda row: _models(row.get("gpus") or ())),
        Column("FREE", lambda row: _amounts(row, "free"), rank=1),
        Column("TOTAL", lambda row: _amounts(row, "total"), rank=2),
    ),
    empty="The server has no nodes.",
    rows="server.nodes",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what was found, what it matters for, and the remedy if it is not well."""

    name: str
    state: str
    found: str
    needed_for: str
    remedy: str | None = None


@click.command()
@json_option
@click.pass_obj
def doctor(session: Session) -> None:
    """Say what this machine offers and what is missing for what.

    Looks at this machine itself and asks the server in use, if one runs; starts nothing.
    """
    server, reason = _server(session)
    checks = [
        _python(),
        _git(),
        _gpus(server),
        *_engine(),
        _bubblewrap(),
        _database(),
        _disk(),
        _home(),
    ]
    document: dict[str, Any] = {
        "machine": f"{platform.node()}: {platform.system()} {platform.release()}, {os.cpu_count()} CPUs",
        "checks": [asdict(check) for check in checks],
        "missing": [check.name for check in checks if check.state == MISSING],
        "server": server,
        "server_reason": reason,
    }
    nodes = [NODES] if server else []
    session.show(document, Fields((("machine", "machine"),)), CHECKS, REMEDIES, SERVER, *nodes)


def _python() -> Check:
    return Check("python", OK, f"{platform.python_version()} ({sys.executable})", "everything")


def _git() -> Check:
    found = _version("git", "--version")
    if found:
        return Check("git", OK, found, "publishing Runners")
    return Check("git", MISSING, "not installed", "publishing Runners, the demo", "Install git.")


def _gpus(server: Mapping[str, Any] | None) -> Check:
    from trainshed.engines.local import inventory  # noqa: PLC0415 - doctor may use server rooms

    found = inventory()
    if found:
        return Check("gpus", OK, ", ".join(f"{gpu.index}: {gpu.model}" for gpu in found), "real training")
    none, remedy = "none found through NVML", "Install the NVIDIA driver (libnvidia-ml)."
    asked = os.environ.get("TRAINSHED_SIMULATE_GPUS")
    if server and any(node.get("simulated") for node in server.get("nodes") or ()):
        none += "; the server in use simulates some"
    elif asked and server:
        none += "; the server in use simulates none"
        remedy += f" To have it simulate {asked}: `trainshed stop`; the next command starts it anew."
    elif asked:
        none += f"; a server of your own will simulate {asked}"
    else:
        stop = "`trainshed stop`, then " if server else ""
        remedy += f" To try things out: {stop}`export TRAINSHED_SIMULATE_GPUS=H100:8`."
    return Check("gpus", WARNING, none, "real training", remedy)


def _engine() -> list[Check]:
    """What the engine itself says, in a folder that goes away again: limits, and whether images run."""
    from trainshed.engines.local import LocalEngine  # noqa: PLC0415 - as in _gpus

    with tempfile.TemporaryDirectory(prefix="trainshed-doctor-") as folder:
        engine = LocalEngine(Path(folder) / "engine")
        try:
            limits = engine.enforcement()
            images = engine.image_facts()
        finally:
            engine.close()
    limited = [
        Check(
            f"limit: {name}",
            WARNING if how == "not enforced" else OK,
            how,
            _LIMITS.get(name, "limits of a Trial"),
            _LIMIT_REMEDY.get(name) if how == "not enforced" else None,
        )
        for name, how in limits.items()
        if name != "isolation"  # the server in use says which one is on, `_bubblewrap` what is possible
    ]
    return [*limited, _images(images)]


_LIMITS: Mapping[str, str] = {
    "cpus": "a Trial cannot take more CPU than it asked for",
    "memory": "a Trial cannot take more memory than it asked for",
    "pids": "a fork bomb stays inside its Trial",
    "shm": "shared memory of the size asked for",
    "storage": "a Trial cannot fill the disk",
    "log": "a Trial cannot fill the disk with output",
    "tree": "every process of a Trial is ended with it",
}
_IMAGES_REMEDY = "Install podman (and runc or crun); see docs/images.md."
_CGROUPS = "Run where control groups are writable: as root, or in a systemd user session with Delegate=yes."
_LIMIT_REMEDY: Mapping[str, str] = {
    "cpus": _CGROUPS,
    "memory": _CGROUPS,
    "pids": _CGROUPS,
    "shm": "Run as root or where user namespaces are allowed.",
}


def _bubblewrap() -> Check:
    """Whether Trials could be isolated here. It is tried: an installed bwrap may not be allowed to."""
    from trainshed.engines.local import why_impossible  # noqa: PLC0415 - as in _gpus

    matters = "`engine.isolation`: keeping the host from Trials"
    reason = why_impossible()
    if reason is None:
        return Check("isolation", OK, f"possible: {_version('bwrap', '--version')}", matters)
    remedy = "Install bubblewrap, and allow user namespaces or run as root."
    return Check("isolation", WARNING, f"not possible: {reason}", matters, remedy)


def _images(facts: Mapping[str, str | None]) -> Check:
    """Whether images run here. It is tried, by the engine."""
    matters = "Trials that name an image (`--docker`)"
    reason = facts["images"]
    if reason is None:
        note = f"; {each}" if (each := facts.get("image_runtime_note")) else ""
        return Check("images", OK, f"run by {facts['image_runtime']}{note}", matters)
    return Check("images", WARNING, f"not possible: {reason}", matters, _IMAGES_REMEDY)


def _database() -> Check:
    programs = _version("postgres", "--version") or _version("psql", "--version")
    found = f"SQLite, embedded{f'; here is also {programs}' if programs else ''}"
    return Check("database", OK, found, "keeping Jobs")


def _disk() -> Check:
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as in the other commands

    place = find_home().server_data
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    found = f"{size(usage.free)} free of {size(usage.total)} at {place}"
    if not os.access(place, os.W_OK):
        return Check(
            "disk", MISSING, f"{place} cannot be written", "a server of yours", "Set TRAINSHED_HOME."
        )
    if usage.free < MIN_FREE_BYTES:
        return Check("disk", WARNING, found, "work folders, logs and artifacts", "Free space.")
    return Check("disk", OK, found, "work folders, logs and artifacts")


def _home() -> Check:
    from trainshed.sdk.discovery import load_login  # noqa: PLC0415 - as in the other commands
    from trainshed.sdk.errors import ConfigurationError  # noqa: PLC0415 - as above
    from trainshed.sdk.home import find_home  # noqa: PLC0415 - as above

    home = find_home()
    try:
        login = load_login(home)
    except ConfigurationError as error:
        return Check("login", MISSING, error.message, "commands without TRAINSHED_URL", error.hint)
    found = f"saved for {login.url}" if login else "none saved"
    return Check("login", OK, found, "commands without TRAINSHED_URL")


def _server(session: Session) -> tuple[dict[str, Any] | None, str | None]:
    """What the server in use says of itself, or why there is nothing to say."""
    from trainshed.sdk.client import Client  # noqa: PLC0415 - as in the other commands
    from trainshed.sdk.discovery import find_connection  # noqa: PLC0415 - as above
    from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - as above
    from trainshed.sdk.transport import RetryPolicy  # noqa: PLC0415 - as above

    try:
        used = find_connection(session.url, project=session.project, start=False)
        with Client(connection=used, retry=RetryPolicy(attempts=1), timeout=5.0) as client:
            return {"url": used.url, "source": used.source, **client.system()}, None
    except TrainshedError as error:
        return None, str(error)


def _version(program: str, *arguments: str) -> str | None:
    """The first line that a program prints, or ``None`` if it is not there or fails."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a program of the PATH with fixed arguments, no shell
            [path, *arguments], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _models(gpus: Any) -> str | None:
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[str(gpu.get("model"))] = counts.get(str(gpu.get("model")), 0) + 1
    simulated = " simulated" if any(gpu.get("simulated") for gpu in gpus) else ""
    return ", ".join(f"{count}x{model}{simulated}" for model, count in counts.items()) or None


def _amounts(node: Mapping[str, Any], which: str) -> str:
    """Amounts of a node; simulated GPUs bring CPU, memory and disk that exist in the accounting only."""
    given = node.get(which) or {}
    names = {"memory_mb": "memory", "storage_mb": "disk", "shm_mb": "shared memory"}
    parts = [count(given.get("gpus") or 0, "GPU"), count(given.get("cpus") or 0, "CPU core")]
    parts += [f"{size(given[key] << 20)} {name}" for key, name in names.items() if given.get(key)]
    return ", ".join(parts) + (" (incl. simulated)" if node.get("simulated") else "")
