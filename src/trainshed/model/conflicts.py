"""What differs between two submissions under one request id, in the words of a conflict (E26-E28, C9)."""

from __future__ import annotations

import json
from typing import Any

from trainshed.model.errors import Fault

HIDDEN = "hidden"
"""Where the canonical form of a task holds keyed digests of its hidden values; nobody is shown them."""


def holds_hidden_values(canonical: str) -> bool:
    """Whether a canonical form is of a task with hidden values (C9)."""
    return bool(_hidden(json.loads(canonical)))


def differences(stored: str, sent: str, *, hidden: bool = True) -> list[Fault]:
    """Which fields of two canonical forms differ, as faults of a conflict (E26-E28).

    Of hidden values it says that they differ, no more; without ``hidden`` not even that (C9).
    """
    old, new = json.loads(stored), json.loads(sent)
    found: list[Fault] = []
    noun = "Job" if "trials" in old or old.get("spec", {}).get("kind") == "script" else "task"
    before, now = _hidden(old), _hidden(new)
    for form in (old, new):
        form.pop(HIDDEN, None)
    _compare(old, new, "", f"the stored {noun} has", found)
    if hidden:
        said = "the hidden value differs from that of the stored task"
        names = sorted(before.keys() & now.keys())
        found += [_conflict(f"spec.{name}", said) for name in names if before[name] != now[name]]
    return found


def _hidden(form: Any) -> dict[str, str]:
    found = form.get(HIDDEN)
    return found if isinstance(found, dict) else {}


def _compare(old: Any, new: Any, path: str, owner: str, found: list[Fault]) -> None:
    if type(old) is type(new) and isinstance(old, dict):
        for key in sorted(old.keys() | new.keys()):
            _compare(old.get(key), new.get(key), f"{path}.{key}" if path else key, owner, found)
    elif type(old) is type(new) and isinstance(old, list):
        if len(old) != len(new):
            noun = "Trials" if path == "trials" else "entry" if len(old) == 1 else "entries"
            found.append(_conflict(path, f"{owner} {len(old)} {noun}, this request {len(new)}"))
        for place, (left, right) in enumerate(zip(old, new, strict=False)):
            _compare(left, right, f"{path}[{place}]", owner, found)
    elif old != new or type(old) is not type(new):
        before, now = ("nothing" if each is None else shown(each) for each in (old, new))
        found.append(_conflict(path, f"{owner} {before}, this request {now}"))


def _conflict(path: str, message: str) -> Fault:
    return Fault(path, "JOB_REQUEST_CONFLICT", message)


def shown(value: Any) -> str:
    """A short, printable rendering of a value for a message."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - fits one line of a terminal
