"""What callers hand over, looked at before it is used: a wrong type is told in words of this API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def request_of(given: Any) -> dict[str, Any]:
    """A copy of a request, of type ``train`` unless it names another. Raises ``TypeError`` for no mapping."""
    if not isinstance(given, Mapping):
        raise TypeError(f'a request is a mapping such as {{"spec": {{...}}}}, not {type(given).__name__}')
    return {"type": "train", **given}
