"""Which installer of packages a program finds."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

UV = Path(sysconfig.get_path("scripts")) / "uv"


def path_with(installer: str, place: Path) -> str:
    """A ``PATH`` with ``uv``, from a folder made below ``place``, or for ``pip`` with none."""
    programs = place / "programs"
    programs.mkdir()
    if installer == "uv":
        (programs / "uv").symlink_to(UV)
    plain = [folder for folder in os.environ["PATH"].split(":") if not Path(folder, "uv").exists()]
    return ":".join([str(programs), *plain])
