"""Lines of a log that is kept as frames (`trainshed.jobkit.frames`): reading them, and keeping lines so."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trainshed.engines.providers.contract import LogChunk
from trainshed.jobkit import frames
from trainshed.model.logs import LogFiles

MOST_BYTES = 1 << 20
"""Read at once."""
MARK = "::gpu:: "
"""How a line of the runner begins, on standard output alone."""


def read_lines(files: LogFiles, cursor: str | None, *, ended: bool) -> LogChunk:
    """Whole lines from ``cursor`` on, each once, whatever was read before.

    ``ended``: nobody writes any more, so a line without its end is one too.
    """
    start = int(cursor or 0)
    try:
        with files.frames.open("rb") as file:
            file.seek(start)
            data = file.read(MOST_BYTES + frames.MAX_PAYLOAD + frames.HEADER.size)
    except FileNotFoundError:
        return LogChunk((), str(start), finished=ended)
    return _lines_of(data, start, ended=ended)


def _lines_of(data: bytes, start: int, *, ended: bool) -> LogChunk:
    lines: list[str] = []
    at = done = 0
    held = b""
    """Pieces of a line whose end has not come, all of one stream."""
    stream = 0
    finished = False
    while at + frames.HEADER.size <= len(data) and done < MOST_BYTES:
        length, kind, flags, _, _ = frames.HEADER.unpack_from(data, at)
        end = at + frames.HEADER.size + length
        if end > len(data):
            break
        if held and kind != stream:
            lines += _texts(held, stream)
            held, done = b"", at
        if kind == frames.EOF:
            done, finished = end, True
            break
        if kind in frames.STREAM_NAMES:
            held, stream = held + data[at + frames.HEADER.size : end], kind
            if not flags & frames.CONTINUES or len(held) > frames.MAX_PAYLOAD:
                lines += _texts(held, stream)
                held, done = b"", end
        else:
            done = end
        at = end
    if held and ended and at == len(data):
        lines += _texts(held, stream)
        done = at
    return LogChunk(tuple(lines), str(start + done), finished=finished or (ended and done < MOST_BYTES))


def _texts(data: bytes, stream: int) -> list[str]:
    texts = data.decode("utf-8", "replace").removesuffix("\n").split("\n")
    if stream == frames.STDOUT:
        return texts
    # What a program writes to standard error is never a word of the runner.
    return [f" {text}" if text.startswith(MARK) else text for text in texts]


class LineLog:
    """Keeps lines of a run that is elsewhere as frames here, so that every log is read in one way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files = LogFiles(folder / "log.frames", folder / "log.index")

    def append(self, lines: Iterable[str], *, begins_at: int, at_ns: int) -> int:
        """Append lines from byte ``begins_at`` on, dropping what a crash left behind it; where they end.

        Durable when it returns. Raises `OSError`.
        """
        parts: list[bytes] = []
        for line in lines:
            whole = line.encode("utf-8", "replace") + b"\n"
            for begin in range(0, len(whole), frames.MAX_PAYLOAD):
                piece = whole[begin : begin + frames.MAX_PAYLOAD]
                last = begin + len(piece) == len(whole)
                parts += [
                    frames.header(len(piece), frames.STDOUT, 0 if last else frames.CONTINUES, at_ns),
                    piece,
                ]
        return self._write(b"".join(parts), begins_at)

    def end(self, *, begins_at: int, at_ns: int) -> int:
        """Say that nothing follows."""
        return self._write(frames.header(0, frames.EOF, 0, at_ns), begins_at)

    def _write(self, data: bytes, begins_at: int) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.files.frames, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, begins_at)
            at = begins_at
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, at)
                view, at = view[written:], at + written
            os.fdatasync(fd)
            return at
        finally:
            os.close(fd)
