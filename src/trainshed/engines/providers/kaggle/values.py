"""Values as Kaggle writes them in JSON, and as people write them for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from trainshed.engines.providers.contract import InvalidJob

_OPTIONS = {"internet": bool}


def hours(value: object) -> float | None:
    """A duration as JSON has it: ``"5400s"``."""
    try:
        return float(str(value).removesuffix("s")) / 3600.0
    except ValueError:
        return None


def moment(value: object) -> float | None:
    """A moment as Unix seconds; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def check_options(options: Mapping[str, object]) -> None:
    """``provider_options.kaggle`` of gpu.yaml; all faults at once."""
    faults = [
        f"{name} must be true or false" if name in _OPTIONS else f"there is no option {name}"
        for name, value in sorted(options.items())
        if not isinstance(value, _OPTIONS.get(name, ()))
    ]
    if faults:
        raise InvalidJob(f"provider_options.kaggle: {'; '.join(faults)}")
