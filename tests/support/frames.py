"""Log files for tests, frame by frame (see ``trainshed.jobkit.frames``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from trainshed.engines.contract import LogFiles
from trainshed.jobkit import frames

_times = count(1_800_000_000_000_000_000, 1_000_000)


def frame(stream: int, payload: bytes, *, at_ns: int | None = None) -> bytes:
    """One frame; without a time, later than every frame before it."""
    flags = 0 if payload.endswith(b"\n") else frames.CONTINUES
    return frames.header(len(payload), stream, flags, next(_times) if at_ns is None else at_ns) + payload


def gap(dropped: int, *, at_ns: int | None = None) -> bytes:
    payload = frames.OFFSET.pack(dropped)
    return frames.header(len(payload), frames.GAP, 0, next(_times) if at_ns is None else at_ns) + payload


def end() -> bytes:
    return frames.header(0, frames.EOF, 0, next(_times))


def write_log(folder: Path, parts: Sequence[bytes], *, index_every: int | None = None) -> LogFiles:
    """A log file of these parts; with ``index_every``, an index of about every so many bytes."""
    files = LogFiles(folder / "frames", folder / "index")
    files.frames.write_bytes(b"".join(parts))
    if index_every is not None:
        offset = indexed = 0
        entries = []
        for part in parts:
            if offset - indexed >= index_every:
                indexed = offset
                entries.append(frames.OFFSET.pack(offset))
            offset += len(part)
        files.index.write_bytes(b"".join(entries))
    return files
