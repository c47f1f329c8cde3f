"""Why a project cannot be packed: the words of contract G, every fault at once."""

from __future__ import annotations

from typing import Any

from trainshed.model.scripts.faults import INVALID_REQUEST, INVALID_SPEC, SpecError
from trainshed.sdk.errors import InvalidSpec

_SHOWN = 5


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


__all__ = ["InvalidSpec", "invalid_request", "invalid_spec", "of_faults"]
