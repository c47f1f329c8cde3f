"""What the watcher of an attempt has to say, read from the files that it appends to (rule 17)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from trainshed.engines.contract import Report, Sample
from trainshed.jobkit import folder

_MOST_BYTES = 64 << 20
_TAIL_BYTES = 1 << 16
_MOST_SAMPLES = 10_000
_MESSAGE_CHARS = 2000
_LEVELS = {"info", "warning", "error"}


def reports(path: Path, after: int) -> list[Report]:
    """Reports of the attempt folder ``path`` with a number greater than ``after``."""
    found = [report for line in _lines(path / folder.REPORTS) if (report := _report(line))]
    return [report for report in found if report.number > after]


def newest(path: Path) -> int:
    """The number of the newest report; 0 if there is none."""
    for line in reversed(list(_lines(path / folder.REPORTS, tail=_TAIL_BYTES))):
        if report := _report(line):
            return report.number
    return 0


def samples(path: Path, after: float) -> list[Sample]:
    """Samples of the attempt folder ``path`` taken later than ``after``: the newest, oldest first."""
    found: list[Sample] = []
    for name in (folder.OLDER_SAMPLES, folder.SAMPLES):
        found += [sample for line in _lines(path / name) if (sample := _sample(line)) and sample.at > after]
    return found[-_MOST_SAMPLES:]


def _lines(path: Path, tail: int | None = None) -> Iterator[dict[str, Any]]:
    """The whole lines of a file that somebody may be appending to; what is no JSON object is left out."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        begin = max(0, size - (tail or _MOST_BYTES))
        file.seek(begin)
        lines = file.read(size - begin).split(b"\n")
    for line in lines[1 if begin else 0 : -1]:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            yield content


def _report(line: dict[str, Any]) -> Report | None:
    try:
        number, at = int(line["n"]), float(line["at"])
        code, message = str(line["code"]), str(line["message"])[:_MESSAGE_CHARS]
        level, data = line.get("level", "info"), line.get("data", {})
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if level not in _LEVELS or not isinstance(data, dict) or not isfinite(at):
        return None
    return Report(number, at, code, message, level, data)


def _sample(line: dict[str, Any]) -> Sample | None:
    try:
        at, endpoint = float(line["at"]), str(line.get("endpoint", ""))
        values = {str(name): float(value) for name, value in line["values"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    return Sample(at, values, endpoint) if isfinite(at) else None
