"""What a shim has to say about its attempt, in numbered lines of a file (rule 17 of the engine contract)."""

from __future__ import annotations

import _thread
import json
import os
import time

from trainshed.jobkit import folder

INFO, WARNING, ERROR = "info", "warning", "error"
_MOST_BYTES = 4 << 20
"""Nothing more is said beyond that: a program must not be able to fill the disk through us."""
_MESSAGE_CHARS = 2000

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Reports:
    """Appends reports durably. May be used by several threads; whoever writes holds the attempt's lock."""

    def __init__(self, path: folder.StrPath, hint: Callable[[], object], hide: Callable[[str], str]) -> None:
        self._hint = hint
        self._hide = hide
        """Takes hidden values out of a text."""
        self._guard = _thread.allocate_lock()
        name = os.path.join(path, folder.REPORTS)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(name, flags, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._number = self._continue()

    def _continue(self) -> int:
        """The number of the last whole line; what an earlier shim tore off is cut."""
        data = os.pread(self._fd, min(self._size, _MOST_BYTES), 0)
        whole = data.rfind(b"\n") + 1
        if whole != self._size:
            os.ftruncate(self._fd, whole)
            self._size = whole
        return data[:whole].count(b"\n")

    def say(self, code: str, message: str, level: str = INFO, **data: object) -> None:
        """Report something. A disk that is full swallows it."""
        with self._guard:
            line = {
                "n": self._number + 1,
                "at": time.time(),
                "code": code,
                "message": self._hide(message)[:_MESSAGE_CHARS],
                "level": level,
                "data": self._hidden(data),
            }
            written = json.dumps(line).encode() + b"\n"
            if self._size + len(written) > _MOST_BYTES:
                return
            try:
                if os.write(self._fd, written) != len(written):
                    os.ftruncate(self._fd, self._size)
                    return
                os.fdatasync(self._fd)
            except OSError:
                os.ftruncate(self._fd, self._size)
                return
            self._size += len(written)
            self._number += 1
        self._hint()

    def _hidden(self, value: object) -> object:
        """The same without hidden values in its texts."""
        if isinstance(value, str):
            return self._hide(value)
        if isinstance(value, dict):
            return {self._hide(str(name)): self._hidden(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(each) for each in value]
        return value

    def close(self) -> None:
        """Say nothing more."""
        os.close(self._fd)
