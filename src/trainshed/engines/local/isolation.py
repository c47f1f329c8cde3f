"""Stronger isolation: an administrator's settings, whether this machine can hold them, and a launch's part.

What it does to a program is in `trainshed.jobkit.sandbox`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainshed
from trainshed.engines.contract import EngineError
from trainshed.engines.local import gpus
from trainshed.jobkit import mounts, sandbox
from trainshed.model.resources import Gpu

DEFAULT_USER = 65_533
"""User and group that Trials run as where the server is root. No system gives this id to anybody."""
_CODE_ROOT = Path(trainshed.__file__).resolve().parent.parent
_TRY = "import sys; sys.path.append(sys.argv.pop()); from trainshed.jobkit.rehearsal import main; main()"
_TRY_SECONDS = 20
_TRY_SHM_MB = 1


@dataclass(frozen=True, slots=True)
class Isolation:
    """How Trials are kept from the machine and from each other, with bubblewrap."""

    network: bool = True
    """Whether a Trial has a network of its own, with nothing in it but itself."""
    user: int = DEFAULT_USER
    """Numeric user and group id of the programs where the server is root; else they keep the server's."""
    hide: tuple[Path, ...] = ()
    """Folders that no Trial sees, beside the engine's own."""

    def sandbox(self, assigned: Sequence[Gpu]) -> dict[str, Any]:
        """The form in which a launch hands this to the shim. Raises `EngineError` if it is impossible now."""
        return {
            "program": _program(),
            "network": "private" if self.network else "host",
            "user": self.user if os.geteuid() == 0 else None,
            "hide": _outermost(self.hide),
            "devices": gpus.device_files(assigned),
        }


def why_impossible(isolation: Isolation | None = None) -> str | None:
    """Try a whole sandbox around a shell; ``None`` if it works here, else the reason.

    Takes some 50 ms.
    """
    with tempfile.TemporaryDirectory(prefix="trainshed-isolation-") as path:
        try:
            launch = {"sandbox": (isolation or Isolation()).sandbox(()), "shm_mb": _TRY_SHM_MB}
            done = subprocess.run(  # noqa: S603 - our interpreter, our code
                [sys.executable, "-I", "-S", "-c", _TRY, path, json.dumps(launch), str(_CODE_ROOT)],
                capture_output=True,
                text=True,
                timeout=_TRY_SECONDS,
                check=False,
            )
        except EngineError as error:
            return error.message
        except subprocess.TimeoutExpired:
            return f"bubblewrap did not get ready within {_TRY_SECONDS} seconds"
    if done.returncode == 0:
        return None
    last_words = done.stderr.strip().rpartition("\n")[2]
    return done.stdout.strip() or last_words or f"the try ended with status {done.returncode}"


def _program() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise EngineError(
            "ISOLATION_IMPOSSIBLE",
            "bubblewrap is not installed (there is no bwrap on the PATH)",
            retryable=True,
        )
    return found


def _outermost(folders: Sequence[Path]) -> list[str]:
    """The folders as the kernel names them, without those inside others."""
    found: list[Path] = []
    for folder in sorted(folder.resolve() for folder in folders):
        if not found or not folder.is_relative_to(found[-1]):
            found.append(folder)
    return [os.fspath(folder) for folder in found]


def describe(settings: Isolation | None) -> str:
    """One sentence for people: whose eyes a Trial sees the machine with."""
    if settings is None:
        there = "installed" if shutil.which("bwrap") else "not installed"
        return f"none: Trials run as the server's own user and see the host's files; bubblewrap is {there}"
    user = f"user {settings.user}" if os.geteuid() == 0 else "the server's own user"
    network = "a network of its own" if settings.network else "the host's network"
    return (
        f"bubblewrap: a Trial runs as {user} with {network}, sees no other Trial, "
        "none of the server's data, and the host's files read-only"
    )


def enforced(settings: Isolation | None) -> Mapping[str, str]:
    """What becomes of the engine's enforcement report."""
    if settings is None:
        return {"isolation": sandbox.NONE}
    return {"isolation": sandbox.NAME, "shm": "mount", "mounts": mounts.MOUNT}
