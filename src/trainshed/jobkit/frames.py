"""The log file of a replica: an append-only sequence of frames. Standard library only.

A frame is a 16-byte little-endian header and its payload::

    u32 length   payload bytes (0 for EOF)
    u8  stream   1 stdout, 2 stderr, 3 EOF (nothing follows), 4 gap (payload: u64 dropped bytes)
    u8  flags    bit 0: the payload does not end at a line end; the line goes on in the next
                 frame of the same stream
    u16 zero
    u64 time     nanoseconds since the epoch when the bytes were read from the program

The writer ends a frame at a line end whenever it can, so a record (one line, or one piece of a long
or slow line) never crosses a frame. A reader that sees fewer bytes than ``length`` promises has met a
frame still being written, or a torn tail after a crash, and stops before it.

Beside the frames lies an index of u64 frame offsets, one about every `INDEX_EVERY` bytes, so that the
end of a long log is found without reading it all. The index is a help: a missing one costs only time.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<IBBHQ")
OFFSET = struct.Struct("<Q")
STDOUT, STDERR, EOF, GAP = 1, 2, 3, 4
STREAM_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
CONTINUES = 1
INDEX_EVERY = 1 << 18
MAX_PAYLOAD = 1 << 16
"""A writer never makes a longer frame: 64 KiB."""
HOLD_SECONDS = 0.1
"""How long a writer may keep an unfinished line before it writes it as a piece."""


def header(length: int, stream: int, flags: int, time_ns: int) -> bytes:
    """The 16 bytes in front of a payload of ``length`` bytes."""
    return HEADER.pack(length, stream, flags, 0, time_ns)
