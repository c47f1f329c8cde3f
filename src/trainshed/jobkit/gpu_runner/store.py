"""The checkpoint store: what of the program's checkpoints outlives the Attempt.

Its layout is in the package's docstring. Whatever is in it is complete: a checkpoint appears by one rename,
and `latest` names it after that.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
import uuid
from typing import Any, NamedTuple

KEEP = 3
MANIFEST, FILES, LATEST, OWNER = "manifest.json", "files", "latest", "owner.json"
_PART = ".part-"
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 64 << 20

_ODD = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What a manifest that somebody made up can lead to."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Damaged(Exception):
    """A stored checkpoint is not what its manifest says."""


class Changed(Exception):
    """A file was written while it was copied."""


class Superseded(Exception):
    """Another runner owns the store now."""


class Print(NamedTuple):
    """What tells that a file was written since: nothing here changes without one of these."""

    bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def written_at(self) -> float:
        """Unix seconds of the last change by the file system's clock."""
        return max(self.mtime_ns, self.ctime_ns) / 1e9


Entry = Any
"""``Dict[str, Print]``: the files of one thing directly below the checkpoint folder, by path."""


def scan(source: str, skip: str) -> dict[str, dict[str, Print]]:
    """What lies in a checkpoint folder: its entries, each with its files.

    ``skip`` is the name of the helper's folder for what is not finished. A link counts as the file it leads
    to, where that is inside; links to folders are not followed.
    """
    entries: dict[str, dict[str, Print]] = {}
    top = os.path.realpath(source)
    for folder, folders, names in os.walk(source):
        if folder == source and skip in folders:
            folders.remove(skip)
        for name in names:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, source)
            try:
                found = os.stat(path)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and os.path.realpath(path).startswith(top + os.sep):
                files = entries.setdefault(relative.split(os.sep, 1)[0], {})
                files[relative] = Print(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    return entries


class Stored(NamedTuple):
    """A checkpoint that was stored."""

    n: int
    bytes: int
    files: int


class Store:
    """The store as its owner uses it."""

    def __init__(self, path: str, job: str, attempt: int) -> None:
        self.path = path
        self._job = job
        self._attempt = attempt
        self._me = uuid.uuid4().hex
        self._last: dict[str, dict[str, Any]] = {}
        """The files of the checkpoint stored last, by path, as in its manifest."""
        self._last_n: int | None = None

    def claim(self) -> None:
        """Become the owner. Raises `Superseded` if a later Attempt is."""
        os.makedirs(self.path, exist_ok=True)
        owner = _json(os.path.join(self.path, OWNER))
        attempt = owner.get("attempt") if owner else None
        if isinstance(attempt, int) and attempt > self._attempt:
            raise Superseded(f"Attempt {attempt} has the checkpoint store")
        now = time.time()
        document = {"version": 1, "owner": self._me, "attempt": self._attempt, "since": now}
        _replace(os.path.join(self.path, OWNER), json.dumps(document).encode())
        for name in os.listdir(self.path):
            if name.startswith(_PART):
                shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)

    def _check_owner(self) -> None:
        owner = _json(os.path.join(self.path, OWNER))
        if not owner or owner.get("owner") != self._me:
            raise Superseded("another runner has the checkpoint store")

    def holds(self, name: str) -> bool:
        """Whether the checkpoint stored last has something of this entry."""
        return any(path.split(os.sep, 1)[0] == name for path in self._last)

    def differs(self, files: Mapping[str, Print]) -> bool:
        """Whether these files are others than those stored last."""
        return set(files) != set(self._last) or any(
            not _same(self._last[path], found) for path, found in files.items()
        )

    def save(self, source: str, files: Mapping[str, Print], reason: str, step: int | None) -> Stored:
        """Store these files of ``source``.

        Raises `Changed` if one was written meanwhile, `Superseded`, or `OSError` (no space, no access); the
        store is then as it was.
        """
        self._check_owner()
        part = os.path.join(self.path, _PART + uuid.uuid4().hex)
        os.makedirs(os.path.join(part, FILES))
        try:
            rows = [self._take(source, part, path, files[path]) for path in sorted(files)]
            n = max([*numbers(self.path), self._last_n or 0]) + 1
            document = {
                "version": 1,
                "n": n,
                "job": self._job,
                "attempt": self._attempt,
                "step": step,
                "reason": reason,
                "created_at": time.time(),
                "bytes": sum(row["bytes"] for row in rows),
                "files": rows,
            }
            text = json.dumps(document).encode()
            _write(os.path.join(part, MANIFEST), text)
            _sync_folders(part)
            self._check_owner()
            os.rename(part, os.path.join(self.path, str(n)))
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        _sync_folder(self.path)
        self._check_owner()
        pointer = {"n": n, "sha256": hashlib.sha256(text).hexdigest()}
        _replace(os.path.join(self.path, LATEST), json.dumps(pointer).encode())
        self._last, self._last_n = {row["path"]: row for row in rows}, n
        self._prune()
        return Stored(n, sum(row["bytes"] for row in rows), len(rows))

    def _take(self, source: str, part: str, path: str, before: Print) -> dict[str, Any]:
        """Copy one file, or link to the copy that is in the store already; its row for the manifest."""
        into = os.path.join(part, FILES, path)
        os.makedirs(os.path.dirname(into), exist_ok=True)
        row = {"path": path, "bytes": before.bytes, "mtime_ns": before.mtime_ns, "inode": before.inode}
        known = self._last.get(path)
        if known and _same(known, before) and self._link(path, into):
            return {**row, "sha256": known["sha256"], "ctime_ns": before.ctime_ns}
        original = os.path.join(source, path)
        digest = _copy(original, into)
        found = os.stat(original)
        after = Print(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        if after != before:
            raise Changed(path)
        os.utime(into, ns=(before.mtime_ns, before.mtime_ns))
        return {**row, "sha256": digest, "ctime_ns": before.ctime_ns}

    def _link(self, path: str, into: str) -> bool:
        try:
            os.link(os.path.join(self.path, str(self._last_n), FILES, path), into)
        except OSError:
            return False
        return True

    def _prune(self) -> None:
        """Remove all but the newest; a number disappears at once and not file by file."""
        for n in numbers(self.path)[:-KEEP]:
            away = os.path.join(self.path, _PART + uuid.uuid4().hex)
            try:
                os.rename(os.path.join(self.path, str(n)), away)
            except OSError:
                continue
            shutil.rmtree(away, ignore_errors=True)


def candidates(path: str, job: str) -> Iterator[tuple[str, str | None]]:
    """Stored checkpoints of a Job, best first: what the pointer names, then the others from the newest on.

    With each, the SHA-256 that its manifest must have, where the pointer says so.
    """
    pointer = _json(os.path.join(path, LATEST)) or {}
    named = pointer.get("n")
    known = numbers(path)
    if type(named) is int and named in known:
        known.remove(named)
        known.append(named)
    for n in reversed(known):
        folder = os.path.join(path, str(n))
        manifest = _json(os.path.join(folder, MANIFEST))
        if manifest is None or manifest.get("job") == job:
            sha256 = pointer.get("sha256") if n == named else None
            yield folder, sha256 if isinstance(sha256, str) else None


def numbers(path: str) -> list[int]:
    """The numbers of the stored checkpoints, ascending."""
    try:
        return sorted(int(name) for name in os.listdir(path) if name.isascii() and name.isdigit())
    except OSError:
        return []


def restore(folder: str, into: str, sha256: str | None = None) -> dict[str, Any]:
    """Copy a stored checkpoint to ``into``, which must not be there, each file verified; its manifest.

    Raises `Damaged`; ``into`` is then not there.
    """
    part = into + ".part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        manifest = _manifest(folder, sha256)
        os.makedirs(part)
        for row in manifest["files"]:
            _restore(os.path.join(folder, FILES), part, row)
        os.rename(part, into)
    except _ODD as problem:
        shutil.rmtree(part, ignore_errors=True)
        raise Damaged(f"{type(problem).__name__}: {problem}") from None
    except Damaged:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return manifest


def _manifest(folder: str, sha256: str | None) -> dict[str, Any]:
    path = os.path.join(folder, MANIFEST)
    if os.path.getsize(path) > _LARGEST_MANIFEST:
        raise Damaged("its manifest is too large")
    with open(path, "rb") as file:
        text = file.read()
    if sha256 is not None and hashlib.sha256(text).hexdigest() != sha256:
        raise Damaged("its manifest is another than the pointer names")
    manifest = json.loads(text.decode())
    if (
        not isinstance(manifest, dict)
        or manifest.get("version") != 1
        or not isinstance(manifest["files"], list)
    ):
        raise Damaged("its manifest cannot be read")
    return manifest


def _restore(files: str, part: str, row: dict[str, Any]) -> None:
    path = row["path"]
    parts = path.split("/")
    if "\0" in path or any(name in ("", ".", "..") for name in parts):
        raise Damaged(f"its manifest names {path!r}")
    original, into = os.path.join(files, path), os.path.join(part, path)
    if not os.path.realpath(original).startswith(os.path.realpath(files) + os.sep):
        raise Damaged(f"{path} leads out of it")
    os.makedirs(os.path.dirname(into), exist_ok=True)
    if _copy(original, into) != row["sha256"] or os.path.getsize(into) != row["bytes"]:
        raise Damaged(f"{path} is not what was stored")
    os.utime(into, ns=(row["mtime_ns"], row["mtime_ns"]))


def _same(row: Mapping[str, Any], found: Print) -> bool:
    return (row["bytes"], row["mtime_ns"], row["ctime_ns"], row["inode"]) == found


def _copy(original: str, into: str) -> str:
    """Copy one file to the disk; its SHA-256."""
    digest = hashlib.sha256()
    with open(original, "rb") as read, open(into, "xb") as written:
        for data in iter(lambda: read.read(_CHUNK), b""):
            digest.update(data)
            written.write(data)
        written.flush()
        os.fsync(written.fileno())
    return digest.hexdigest()


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: str, data: bytes) -> None:
    """Have a file say something else, at once."""
    part = f"{path}.{uuid.uuid4().hex}"
    _write(part, data)
    os.rename(part, path)
    _sync_folder(os.path.dirname(path))


def _sync_folders(path: str) -> None:
    for folder, _, _ in os.walk(path):
        _sync_folder(folder)


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems have no such thing
    finally:
        os.close(descriptor)


def _json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
