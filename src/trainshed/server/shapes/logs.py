"""Log pages (contract E b5)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainshed.server.shapes.common import Shape, Time


class LogItem(Shape):
    """One record: a line, or a piece of a long one. Keys without a value are left out."""

    id: str = Field(description="Unique in the Job.")
    content: str = Field(description="One record without its line end.")
    at: Time
    source: Literal["system", "runtime"]
    stream: Literal["stdout", "stderr"] | None = None
    level: Literal["info", "warning", "error"] | None = None
    code: str | None = None
    phase: str | None = None
    trial_id: str | None = None
    trial_name: str | None = None
    replica: int | None = Field(default=None, description="The rank of a training task's replica.")
    role: str | None = Field(default=None, description="Its role: master, worker, head, submitter.")
    attempt: int | None = Field(default=None, description="The number of its Attempt.")
    partial: bool | None = Field(
        default=None, description="True: the line goes on in the next record of the same stream."
    )
    content_base64: str | None = Field(
        default=None, description="The exact bytes, where they are not UTF-8; `content` then has U+FFFD."
    )


class LogSource(Shape):
    """Where records of this page come from."""

    name: str = Field(description="`system`, or the Trial's name.")
    trial_id: str | None = None
    replica: int | None = None
    role: str | None = None
    attempt: int | None = None
    collection_status: Literal["collecting", "complete", "partial", "failed", "unavailable"]
    truncated: bool
    dropped_bytes: int
    missing_reason: str | None


class LogPage(Shape):
    """Records in order of time; the order inside each stream is the program's."""

    items: list[LogItem]
    next_cursor: str | None
    has_more: bool = Field(description="True: read the next page at once.")
    eof: bool = Field(description="True: the Job has ended, collection has ended, all was delivered.")
    collection_status: Literal["collecting", "complete", "partial", "failed", "unavailable"]
    truncated: bool
    dropped_bytes: int
    missing_reason: str | None
    sources: list[LogSource]
