"""What differs between two submissions under one request id, in the words of a conflict (E26-E28)."""

from __future__ import annotations

import json
from typing import Any

from trainshed.model.errors import Fault


def differences(stored: str, sent: str) -> list[Fault]:
    """Which fields of two canonical forms differ, as faults of a conflict (E26-E28)."""
    found: list[Fault] = []
    _compare(json.loads(stored), json.loads(sent), "", found)
    return found


def _compare(old: Any, new: Any, path: str, found: list[Fault]) -> None:
    if type(old) is type(new) and isinstance(old, dict):
        for key in sorted(old.keys() | new.keys()):
            _compare(old.get(key), new.get(key), f"{path}.{key}" if path else key, found)
    elif type(old) is type(new) and isinstance(old, list):
        if len(old) != len(new):
            found.append(_conflict(path, f"the stored Job has {len(old)} Trials, this request {len(new)}"))
        for place, (left, right) in enumerate(zip(old, new, strict=False)):
            _compare(left, right, f"{path}[{place}]", found)
    elif old != new or type(old) is not type(new):
        before, now = ("nothing" if each is None else shown(each) for each in (old, new))
        found.append(_conflict(path, f"the stored Job has {before}, this request {now}"))


def _conflict(path: str, message: str) -> Fault:
    return Fault(path, "JOB_REQUEST_CONFLICT", message)


def shown(value: Any) -> str:
    """A short, printable rendering of a value for a message."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits one line of a terminal
