"""Copies what a program wrote from its node, in pieces: the server's side of `trainshed.engines.ray.carried`.

A copy has the size and the time of what it was made of, so the next one knows what changed. The thread that
watches all attempts goes on meanwhile: only each message has the channel for itself.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EngineError
from trainshed.engines.ray.channel import Channel
from trainshed.jobkit import tree

_PIECES_AT_ONCE = 200
_MOST_TRIES = 3
"""For a file that somebody replaces while it is read; the next copy has it."""
_UNNAMEABLE = frozenset((errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL))
_MOST_PATH_BYTES = 4096 - 64
"""With room for the name of a part."""


@dataclass(slots=True)
class _File:
    """One file on its way."""

    path: str
    part: Path
    size: int = 0
    at: int = 0
    inode: int = -1
    mtime_ns: int = 0
    tries: int = 1


class Pull:
    """One copy of a unit's work folder, or of parts of it."""

    def __init__(self, channel: Channel, unit: str, into: Path) -> None:
        self._channel = channel
        self._unit = unit
        self._into = into
        self._skipped: set[str] = set()

    def run(self, names: Sequence[str]) -> list[str]:
        """See `RayEngine.pull`."""
        wanted = [name for name in names if is_plain(name)]
        self._skipped |= set(names) - set(wanted)
        try:
            there = self._listed(wanted)
            for name in wanted:
                _clear(self._into, name, there)
            self._fetch(path for path, facts in there.items() if not self._has(path, facts))
        except OSError as error:
            message = f"what {self._unit} wrote cannot be kept here: {error}"
            raise EngineError("ENGINE_DISK", message, retryable=True) from error
        return sorted(self._skipped)

    def _listed(self, names: list[str]) -> dict[str, tuple[int, int]]:
        there: dict[str, tuple[int, int]] = {}
        after = ""
        while True:
            page = self._ask("listed", names, after)
            self._skipped |= set(page["skipped"])
            for path, size, mtime_ns in page["files"]:
                if is_plain(path) and any(path.startswith(f"{name}/") for name in names):
                    there[path] = (size, mtime_ns)
                else:
                    self._skipped.add(path)
            if page["more"] is None:
                return there
            after = page["more"]

    def _has(self, path: str, facts: tuple[int, int]) -> bool:
        place = self._into / path
        try:
            if len(os.fsencode(place)) > _MOST_PATH_BYTES:
                raise OSError(errno.ENAMETOOLONG, "its path is too long here", path)  # noqa: TRY301 - as below
            here = os.lstat(place)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _UNNAMEABLE:
                raise
            self._skipped.add(path)
            return True  # it cannot be
        return (here.st_size, here.st_mtime_ns) == facts

    def _fetch(self, paths: Iterable[str]) -> None:
        coming = iter(paths)
        going: deque[_File] = deque()
        while True:
            while len(going) < _PIECES_AT_ONCE and (path := next(coming, None)) is not None:
                going.append(self._begin(path))
            if not going:
                return
            # A host answers for as many as fit into one piece, for one at least.
            answers = self._ask("read", [[file.path, file.at] for file in going])
            taken = [(going.popleft(), answer) for answer in answers]
            going.extendleft(reversed([file for file, answer in taken if not self._take(file, answer)]))

    def _begin(self, path: str) -> _File:
        place = self._into / path
        place.parent.mkdir(parents=True, exist_ok=True)
        # A name may be as long as names can be.
        digest = hashlib.sha256(os.fsencode(place.name)).hexdigest()[:32]
        return _File(path, place.with_name(f".{digest}.part"))

    def _take(self, file: _File, answer: Sequence[Any] | None) -> bool:
        """Keep a piece; whether that was the last one."""
        if answer is None:  # it is gone, or no file any more
            file.part.unlink(missing_ok=True)
            return True
        data, inode, size, mtime_ns = base64.b64decode(answer[0]), *answer[1:]
        if file.at and inode != file.inode:
            file.part.unlink(missing_ok=True)
            file.at, file.tries = 0, file.tries + 1
            return file.tries > _MOST_TRIES
        if not file.at:
            file.inode, file.size, file.mtime_ns = inode, size, mtime_ns
        # What grows is had as it was when it was begun: it is another one the next time.
        data = data[: file.size - file.at]
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if file.at else os.O_TRUNC)
        fd = os.open(file.part, flags, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        file.at += len(data)
        if data and file.at < file.size:
            return False
        os.utime(file.part, ns=(file.mtime_ns, file.mtime_ns))
        file.part.replace(self._into / file.path)
        return True

    def _ask(self, method: str, *arguments: Any) -> Any:
        answer = self._channel.call("tell", self._unit, method, list(arguments))
        if "new" in answer and answer["new"] is not None:
            return answer["new"]
        if "new" in answer or "gone" in answer:
            message = (
                f"what {self._unit} wrote is gone from its node: {answer.get('gone') or 'it is released'}"
            )
            raise EngineError("ATTEMPT_GONE", message, retryable=False)
        message = f"the host of {self._unit} does not answer now: {answer.get('failed') or 'it is slow'}"
        raise EngineError("ENGINE_UNREACHABLE", message, retryable=True)


def _clear(into: Path, name: str, there: Mapping[str, Any]) -> None:
    """Remove from the copy what is not there any more, and folders that hold nothing."""
    top = into / name
    if top.is_symlink() or top.is_file():
        top.unlink()
    for folder, folders, files in os.walk(top, topdown=False):
        for each in files:
            path = Path(folder, each)
            if path.relative_to(into).as_posix() not in there:
                path.unlink()
        for each in folders:
            path = Path(folder, each)
            if path.is_symlink():
                tree.remove(path)
            elif not any(path.iterdir()):
                path.rmdir()


def is_plain(path: str) -> bool:
    """Whether it names something below a folder."""
    return {"", ".", ".."}.isdisjoint(path.split("/")) and "\0" not in path
