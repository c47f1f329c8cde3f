"""Training tasks as people send them to a site of the server's tests."""

from __future__ import annotations

import itertools
from typing import Any

_NUMBERS = itertools.count(1)


def task_document(**changes: Any) -> dict[str, Any]:
    """A task that the site accepts; keywords replace fields of its spec, `None` removes one."""
    spec = {
        "kind": "pytorch",
        "name_prefix": "sft",
        "image": "host",
        "cmd": "torchrun train.py",
        "resource_type": "ondemand",
        "instance": {"specs": ["h100x1"]},
    }
    spec = {key: value for key, value in {**spec, **changes}.items() if value is not None}
    return {"type": "train", "request_id": f"task-{next(_NUMBERS)}", "spec": spec}
