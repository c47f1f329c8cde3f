"""Symbolic links of an image at places where a container gets folders of ours: no container is made of it."""

from __future__ import annotations

import os
import secrets
import tarfile
from collections.abc import Sequence

from trainshed.engines.local import runtimes
from trainshed.engines.local.runtimes import Runtime

_FIND = """
image=$1; shift
root=$("$0" image mount "$image") || exit
for place; do [ ! -L "$root$place" ] || { echo "$place"; break; }; done
"$0" image unmount "$image" >&2
"""
_TYPE = slice(156, 157)
"""Where a header of tar has the type of its entry."""


_LOOP = b"too many links"


def find(runtime: Runtime, image: str, places: Sequence[str]) -> str | None:
    """The first of these places that is a symbolic link in an image; nothing of the image runs."""
    if runtime.name == "docker":
        return _find_by_copying(runtime, image, places)
    # Without root the files of an image are to be seen in podman's user namespace only.
    inside = [runtime.program, "unshare"] if os.geteuid() else []
    command = [*inside, "sh", "-c", _FIND, runtime.program, image, *places]
    return runtimes.call(command, runtime.environment).stdout.strip() or None


def _find_by_copying(runtime: Runtime, image: str, places: Sequence[str]) -> str | None:
    name = f"trainshed-links-{secrets.token_hex(8)}"
    create = [runtime.program, "create", f"--name={name}", "--network=none", image, "true"]
    if runtimes.call(create, runtime.environment).returncode != 0:
        return None
    try:
        return next((place for place in places if _is_link(runtime, f"{name}:{place}")), None)
    finally:
        runtime.remove(name)


def _is_link(runtime: Runtime, place: str) -> bool:
    """A copy begins with the place itself; what lies below it is not waited for. A loop cannot be copied."""
    with runtimes.process([runtime.program, "cp", place, "-"], runtime.environment) as running:
        assert running.stdout is not None  # noqa: S101 - it was started with a pipe
        said = running.stdout.read(tarfile.BLOCKSIZE)
        return said[_TYPE] == tarfile.SYMTYPE or _LOOP in said
