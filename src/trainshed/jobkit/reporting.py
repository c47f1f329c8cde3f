"""What a program of ours beside user code has to say to its shim: two files in its work directory.

The shim makes numbered reports of the first (events of the task, c2) and takes the second for the detail of
the exit record. User code can write there as well: what it says is text for people, and decides nothing.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time

FOLDER, REPORTS, DETAIL = ".trainshed", "reports.jsonl", "detail"
_DETAIL_CHARS = 1000
_MOST_BYTES = 1 << 20
"""Of what is said in one Attempt."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]


def report(code: str, message: str, level: str = "info", data: Json | None = None) -> None:
    """Say something that becomes an event of the task; it stands in the log, too."""
    line = json.dumps(
        {"at": time.time(), "code": code, "message": message, "level": level, "data": data or {}}
    )
    _append(REPORTS, f"{line}\n")
    sys.stderr.write(f"trainshed: {code}: {message}\n")
    sys.stderr.flush()


def fail(detail: str) -> None:
    """Say why this program is about to end with another code than zero."""
    _append(DETAIL, detail[:_DETAIL_CHARS])


def _append(name: str, text: str) -> None:
    try:
        os.makedirs(FOLDER, exist_ok=True)
        with open(os.path.join(FOLDER, name), "a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return  # a full disk; the log has it


def said(work: str, after: int) -> tuple[list[Json], int]:
    """What was reported in the work directory beyond ``after`` bytes of the file, and its new end.

    For the shim: nothing but plain files is read, no link is followed, and what is malformed is left out.
    """
    text = _read(work, REPORTS)[after:]
    lines, _, rest = text.rpartition(b"\n")
    found = []
    for line in lines.split(b"\n"):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and isinstance(content.get("code"), str):
            found.append(content)
    return found, after + len(text) - len(rest)


def reason(work: str) -> str:
    """Why the program says that it ends, for the detail of the exit record; empty if it does not."""
    return _read(work, DETAIL).decode(errors="replace").strip()[:_DETAIL_CHARS]


def _read(work: str, name: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        above = os.open(os.path.join(work, FOLDER), flags | os.O_DIRECTORY)
    except OSError:
        return b""
    try:
        fd = os.open(name, flags, dir_fd=above)
    except OSError:
        return b""
    finally:
        os.close(above)
    try:
        return os.read(fd, _MOST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
