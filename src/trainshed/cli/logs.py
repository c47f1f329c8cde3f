"""Printing a log: program output where it belongs, platform sentences beside it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from trainshed.sdk.objects import LogRecord

_SEQUENCE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    rb"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and other strings: titles, clipboard
    rb"|\x1b[ -/]*[0-~]?"  # every other escape
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]",  # the C1 controls as UTF-8
)
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*m")
_DIM, _RESET = b"\x1b[2m", b"\x1b[0m"


def safe_for_terminal(data: bytes) -> bytes:
    """``data`` without control sequences, colours excepted: a program may not steer the reader's terminal."""
    return _SEQUENCE.sub(lambda match: match[0] if _COLOUR.fullmatch(match[0]) else b"", data)


@dataclass(frozen=True, slots=True)
class LogStyle:
    """How records are printed."""

    stream: str | None = None
    """Only ``stdout`` or ``stderr`` of the program."""
    timestamps: bool = False
    names: bool = False
    """Say before each line which Trial wrote it."""
    raw: bool = False
    """The program's bytes and nothing else, unfiltered."""
    json: bool = False
    """One JSON document a record and line."""
    all_to_stderr: bool = False
    """Keep stdout free for the command's own document."""


@dataclass
class LogPrinter:
    """Prints records one by one; remembers which unfinished line stands on each of the two streams."""

    style: LogStyle
    out: BinaryIO = field(default_factory=lambda: sys.stdout.buffer)
    err: BinaryIO = field(default_factory=lambda: sys.stderr.buffer)
    _open: dict[int, str] = field(default_factory=dict)

    def print_all(self, records: Iterable[LogRecord]) -> None:
        """Print every record as it comes."""
        for record in records:
            self.print(record)
        self.finish()

    def print(self, record: LogRecord) -> None:
        style = self.style
        system = record.source == "system"
        if style.stream and record.stream != style.stream:
            return
        if style.json:
            line = json.dumps(record.raw, ensure_ascii=True).encode() + b"\n"
            self._write(self._target(self.out), line)
        elif system:
            if not style.raw:
                self._sentence(record)
        else:
            self._output(record)

    def finish(self) -> None:
        """End an unfinished last line of a decorated log; raw bytes stay as they are."""
        for file in (self.out, self.err):
            if self._open.pop(id(file), None) and not self.style.raw and _terminal(file):
                self._write(file, b"\n")

    def _target(self, file: BinaryIO) -> BinaryIO:
        return self.err if self.style.all_to_stderr else file

    def _output(self, record: LogRecord) -> None:
        file = self._target(self.err if record.stream == "stderr" else self.out)
        writer = self._writer(record)
        data = record.data
        if not self.style.raw:
            if _terminal(file):
                data = safe_for_terminal(data)
            standing = self._open.get(id(file))
            if standing is not None and standing != writer:
                self._write(file, b"\n")
            if standing != writer:
                data = self._prefix(record) + data
        self._write(file, data if record.partial else data + b"\n")
        if record.partial:
            self._open[id(file)] = writer
        else:
            self._open.pop(id(file), None)

    def _sentence(self, record: LogRecord) -> None:
        if self._open.pop(id(self.err), None):
            self._write(self.err, b"\n")
        if self._open.get(id(self.out)) and _terminal(self.out):
            del self._open[id(self.out)]
            self._write(self.out, b"\n")
        line = self._prefix(record) + b"-- " + safe_for_terminal(record.data)
        self._write(self.err, (_DIM + line + _RESET if _terminal(self.err) else line) + b"\n")

    def _prefix(self, record: LogRecord) -> bytes:
        parts = []
        if self.style.timestamps and record.at is not None:
            parts.append(_local(record.at))
        if self.style.names and (label := self._label(record)):
            parts.append(label)
        return "".join(f"{part} " for part in parts).encode()

    def _writer(self, record: LogRecord) -> str:
        """Whose lines a record belongs to."""
        return f"{record.trial_id}/{record.stream}"

    def _label(self, record: LogRecord) -> str:
        """Who wrote a record, as each line begins."""
        return f"[{record.trial_name}]" if record.trial_name else ""

    def _write(self, file: BinaryIO, data: bytes) -> None:
        file.write(data)
        file.flush()


def _terminal(file: BinaryIO) -> bool:
    return file.isatty()


def _local(moment: datetime) -> str:
    return moment.astimezone().isoformat(sep=" ", timespec="milliseconds")
