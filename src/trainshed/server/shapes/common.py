"""What all resources share: the model base, pages, errors, times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")

Time = Annotated[
    str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-11-29T12:00:00.000000+00:00"])
]
"""ISO 8601 with offset (contract E b0)."""


class Shape(BaseModel):
    """A JSON object of the API. Keys that are not declared do not exist."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Shape, Generic[T]):
    """One page of a list, newest first unless the operation says otherwise."""

    items: list[T]
    next_cursor: str | None = Field(
        default=None, description="Give this as `cursor` to get the next page; null on the last one."
    )


class ErrorItem(Shape):
    """One fault of a refused request."""

    path: str = Field(description="Where in the request, e.g. `trials[0].spec.image`; empty for the whole.")
    code: str
    message: str


class Error(BaseModel):
    """Every refusal has this shape and at most 8,192 bytes. Nothing was changed."""

    model_config = ConfigDict(extra="allow", frozen=True)

    code: str = Field(description="UPPER_SNAKE; the first of `errors` in the order of importance.")
    message: str
    hint: str = Field(description="What to do next.")
    errors: list[ErrorItem]
    errors_not_shown: int | None = Field(default=None, description="Faults that found no room.")
    request_id: str | None = Field(default=None, description="Names this request in the server's log.")


class Reason(Shape):
    """A code and a sentence."""

    code: str
    message: str


class Empty(Shape):
    """An object without keys."""


def iso(seconds: float) -> str:
    """Unix seconds as ISO 8601 with offset."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def iso_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)
