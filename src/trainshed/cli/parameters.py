"""Types of options and arguments, with refusals in our own words."""

from __future__ import annotations

from typing import Any

import click


class Whole(click.ParamType[int]):
    """A whole number between two bounds, each included."""

    name = "integer"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        self.least = least
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a whole number{self._bounds()}", param, ctx)
        low = self.least is not None and number < self.least
        high = self.most is not None and number > self.most
        if low or high:
            self.fail(f"{number} is not a whole number{self._bounds()}", param, ctx)
        return number

    def _bounds(self) -> str:
        if self.least is None:
            return ""
        return f" of at least {self.least}" if self.most is None else f" from {self.least} to {self.most}"


class Seconds(click.ParamType[float]):
    """A number of seconds, with or without a fraction."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"{value!r} is not a number of seconds of at least 0", param, ctx)
        return number


class IdOf(click.ParamType[str]):
    """An id of one kind of thing; that of another kind is refused with the command to use instead."""

    name = "id"
    _KINDS = (
        ("job_", "Job", "job get"),
        ("trial_", "Trial", "trial get"),
        ("ckpt_", "Checkpoint", "checkpoint show"),
    )

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.strip():
            self.fail(f"the id of the {self.kind} is empty", param, ctx)
        program = ctx.find_root().info_name if ctx else "trainshed"
        for prefix, kind, command in self._KINDS:
            if text.startswith(prefix) and kind != self.kind:
                said = f"{text} is a {kind}, and a {self.kind} is meant here"
                self.fail(f"{said}; see `{program} {command} {text}`", param, ctx)
        return text


POSITIVE = Whole(1)
SECONDS = Seconds()
JOB = IdOf("Job")
TRIAL = IdOf("Trial")
CHECKPOINT = IdOf("Checkpoint")
