"""Why a project cannot be packed: the words of contract G, every fault at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainshed.model.scripts.faults import INVALID_REQUEST, INVALID_SPEC, SpecError
from trainshed.sdk.errors import TrainshedError

_SHOWN = 5


class InvalidSpec(TrainshedError):
    """Nothing was sent. ``code`` is ``invalid_spec`` or ``invalid_request``; ``detail`` holds JSON values."""

    def __init__(
        self, code: str, message: str, hint: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.detail: Mapping[str, Any] = detail or {}

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def invalid_spec(message: str, hint: str = "", **detail: Any) -> InvalidSpec:
    return InvalidSpec(INVALID_SPEC, message, hint, detail)


def invalid_request(message: str, hint: str = "", **detail: Any) -> InvalidSpec:
    return InvalidSpec(INVALID_REQUEST, message, hint, detail)


def of_faults(error: SpecError) -> InvalidSpec:
    """All faults of ``error`` in one: a fault of the request decides its code."""
    faults = error.faults
    more = f" (and {len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
    message = "; ".join(map(str, faults[:_SHOWN])) + more
    code = INVALID_REQUEST if any(each.code == INVALID_REQUEST for each in faults) else INVALID_SPEC
    hint = next((each.hint for each in faults if each.hint), "")
    return InvalidSpec(code, message, hint, {"errors": [each.document() for each in faults]})
