"""Values as Kaggle writes them in JSON, and as people write them for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from trainshed.engines.providers.contract import InvalidJob

_OPTIONS = {"internet": bool}


def word(value: object, known: Collection[str], default: str) -> str:
    """One of Kaggle's words, in capitals; it may come in camel case, or behind the name of its kind."""
    if not value:
        return default  # the first word of a kind is what an answer leaves out
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(value)[:100]).upper()
    return next((each for each in known if text == each or text.endswith(f"_{each}")), text)


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
