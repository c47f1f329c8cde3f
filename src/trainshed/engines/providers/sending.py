"""What is sent to a session of a notebook provider, and what its program left (`jobkit.session_start`)."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from trainshed.engines.providers.contract import Fetched, Phase, Status

SUFFIX = ".trainshed"
"""Of every archive: one that a provider knows as an archive, it unpacks by its own rules."""
END = "trainshed_end.json"
_FOLDERS = {"outputs": "outputs", "checkpoint_store": "checkpoints"}
_SETTINGS = "SETTINGS: dict[str, Any] = {}\n"
_CHUNK = 1 << 20
_CODES, _LATEST = 256, 1e11
"""No exit code is that large, and no time that late."""


def start_text(settings: Mapping[str, Any]) -> str:
    """The program with its settings in it."""
    text = resources.files("trainshed.jobkit").joinpath("session_start.py").read_text(encoding="utf-8")
    before, mark, after = text.partition(_SETTINGS)
    if not mark:
        raise ValueError("session_start.py has no place for its settings")
    literal = json.dumps(json.dumps(settings, sort_keys=True))
    return f"{before}SETTINGS: dict[str, Any] = json.loads({literal})\n{after}"


def pack_tree(folder: Path, target: Path) -> None:
    """Pack a folder of plain files so that equal trees have equal bytes. Raises `OSError`."""
    files = sorted(
        (Path(place, name) for place, _, names in os.walk(folder) for name in names),
        key=lambda path: os.fsencode(path.relative_to(folder).as_posix()),
    )
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT, dereference=True) as archive:
        for path in files:
            facts = archive.gettarinfo(path, path.relative_to(folder).as_posix())
            facts.uid = facts.gid = facts.mtime = 0
            facts.uname = facts.gname = facts.linkname = ""
            facts.type, facts.size = tarfile.REGTYPE, path.stat().st_size
            facts.mode = 0o755 if facts.mode & 0o100 else 0o644
            with path.open("rb") as content:
                archive.addfile(facts, content)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def masked(values: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Values as two halves of equal length; either alone is noise (a one-time pad)."""
    text = json.dumps(dict(values), sort_keys=True).encode()
    pad = os.urandom(len(text))
    return bytes(a ^ b for a, b in zip(text, pad, strict=True)), pad


def status_of(end: Mapping[str, Any] | None, message: str = "") -> Status:
    """How a session that is over ended, by the record its program left; without one nobody saw it end."""
    if end is None:
        return Status(Phase.LOST, message=message or "the session ended and its program left no record")
    code = end.get("code")
    code = code if type(code) is int and abs(code) < _CODES else None
    started, finished = _moment(end.get("started_at")), _moment(end.get("finished_at"))
    said = str(end.get("message") or "")[:300]
    if end.get("ended_by") == "deadline":
        return Status(Phase.LOST, None, started, finished, message="the session's time was over")
    if end.get("ended_by") == "signal":
        killed = "a signal ended the runner"
        return Status(Phase.LOST, code, started, finished, message=killed)
    if end.get("ended_by") == "asked":
        return Status(Phase.CANCELLED, code, started, finished, message=said)
    phase = Phase.SUCCEEDED if code == 0 else Phase.FAILED
    return Status(phase, code, started, finished, message=said)


def _moment(value: object) -> float | None:
    """Unix seconds, if it is a time: a program can write the record too."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _LATEST:
        return None
    return float(value)


@dataclass(slots=True)
class Landing:
    """The folder that files of a run are brought to; nothing lands outside it, and no link is followed."""

    into: Path
    files: int = 0
    size: int = 0
    """Bytes."""
    skipped: tuple[str, ...] = ()

    def place(self, name: str) -> Path | None:
        """Where a file of the session belongs; ``None``: nowhere."""
        path = PurePosixPath(name)
        parts = path.parts
        if ".." in parts or "\0" in name or path.is_absolute() or not _is_text(name):
            self.skip(name)
            return None
        if len(parts) < 2 or parts[0] not in _FOLDERS:  # noqa: PLR2004 - a folder and a name
            return None
        place = self.into.joinpath(_FOLDERS[parts[0]], *parts[1:])
        if any(parent.is_symlink() for parent in self._between(place)):
            self.skip(name)
            return None
        return place

    def skip(self, name: str) -> None:
        self.skipped = (*self.skipped, name)

    def write(self, place: Path, blocks: Iterator[bytes]) -> None:
        """Write a file: wholly there or not at all. Raises `OSError`."""
        place.parent.mkdir(parents=True, exist_ok=True)
        # A name may be as long as names can be; the next try finds the same part.
        part = place.with_name(f".{hashlib.sha256(os.fsencode(place.name)).hexdigest()[:32]}.part")
        size = 0
        with part.open("wb") as file:
            for block in blocks:
                size += file.write(block)
        part.replace(place)
        self.files, self.size = self.files + 1, self.size + size

    def fetched(self) -> Fetched:
        return Fetched(self.files, self.size, self.skipped)

    def _between(self, place: Path) -> Iterator[Path]:
        yield place
        for parent in place.parents:
            if parent == self.into:
                return
            yield parent


def _is_text(name: str) -> bool:
    """Whether it can be the name of a file here."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True
