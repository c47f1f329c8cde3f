"""Values as Kaggle writes them in JSON."""

from __future__ import annotations

from datetime import UTC, datetime


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
