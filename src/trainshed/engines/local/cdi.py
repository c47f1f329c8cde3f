"""Which GPUs containers can be given by the Container Device Interface: what its specifications here name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainshed.model.resources import Gpu

KIND = "nvidia.com/gpu"
FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where runtimes look by themselves; what the later one names wins."""
_SUFFIXES = {".yaml", ".json"}
_HOW = "make one with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"
_MAX_BYTES = 16 << 20
_read: dict[Path, tuple[tuple[int, int], tuple[str, ...]]] = {}
"""By the path of a specification: size and time of the file that was read, and the names in it."""


def names(gpus: Sequence[Gpu], folders: Iterable[Path] = FOLDERS) -> tuple[list[str], str | None]:
    """The names under which a runtime knows these GPUs, or why it does not know them all."""
    folders = list(folders)
    found = _devices(folders)
    places = " or ".join(map(str, folders))
    if not found:
        return [], f"no CDI specification in {places} names a device of the kind {KIND} ({_HOW})"
    named, missing = [], []
    for gpu in gpus:
        # An index means another GPU where one was taken out since the specification was made.
        name = next((each for each in (gpu.uuid, str(gpu.index)) if each in found), None)
        if name is None:
            missing.append(f"{gpu.index} ({gpu.uuid})")
        else:
            named.append(f"{KIND}={name}")
    if missing:
        words = f"the CDI specifications in {places} do not name GPU {', '.join(missing)}"
        return [], f"{words} among their devices of the kind {KIND} ({_HOW})"
    return named, None


def _devices(folders: Iterable[Path]) -> set[str]:
    """Names of GPUs in all specifications. What two files of one folder name, runtimes refuse."""
    found: set[str] = set()
    for place in folders:
        counted: Counter[str] = Counter()
        with suppress(OSError):
            for file in sorted(place.iterdir()):
                if file.suffix in _SUFFIXES:
                    counted.update(_names_in(file))
        found |= {name for name, count in counted.items() if count == 1}
        found -= {name for name, count in counted.items() if count > 1}
    return found


def _names_in(file: Path) -> tuple[str, ...]:
    """Names of the GPUs in one specification; none in a broken or empty one, or in one of other devices."""
    try:
        facts = file.stat()
        stamp = (facts.st_size, facts.st_mtime_ns)
        if (known := _read.get(file)) is not None and known[0] == stamp:
            return known[1]
        found = _names(_load(file)) if facts.st_size <= _MAX_BYTES else ()
    except (OSError, ValueError, RecursionError):
        return ()
    _read[file] = (stamp, found)
    return found


def _load(file: Path) -> Any:
    """The document of a file. Raises `OSError` and `ValueError`."""
    import yaml  # noqa: PLC0415 - only machines with GPUs read one

    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return json.loads(text)
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _names(document: Any) -> tuple[str, ...]:
    if not isinstance(document, dict) or document.get("kind") != KIND:
        return ()
    devices = document.get("devices")
    if not isinstance(document.get("cdiVersion"), str) or not isinstance(devices, list):
        return ()
    whole = all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and each.get("containerEdits")
        for each in devices
    )
    return tuple(each["name"] for each in devices) if whole else ()
