"""gpu.yaml and arguments as one wish (section d, "Merge").

The file comes first, and each argument that is given replaces its key; `env` merges by name, `data` by mount,
`include` adds. Paths keep where they came from, because each is relative to a place of its own.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from trainshed.model.scripts.gpu_yaml import Wishes
from trainshed.model.scripts.validate import DataWish, DepsWish

DEFAULT_INTERVAL_MIN = 20
T = TypeVar("T")


class Origin(StrEnum):
    """Who said it, and so what its paths are relative to."""

    FILE = "file"
    """Relative to the directory of gpu.yaml."""
    ARGUMENT = "argument"
    """Relative to the project directory."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is to be started, as it was asked for: a line of text, or words."""

    origin: Origin
    line: str | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """The one wish. Nothing in it was looked up yet."""

    entry: Entry | None = None
    args: tuple[str, ...] = ()
    args_origin: Origin = Origin.ARGUMENT
    name: str | None = None
    """As given; ``None``: to be named after the entrypoint."""
    hours: float | None = None
    vram_gb: float | None = None
    gpu: str | None = None
    provider: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    deps: DepsWish = field(default_factory=DepsWish)
    data: tuple[tuple[Origin, DataWish], ...] = ()
    include: tuple[tuple[Origin, str], ...] = ()
    smoke: bool = False
    checkpoint_interval_min: int = DEFAULT_INTERVAL_MIN
    interactive: bool = False
    requires_approval: bool = False
    max_attempts: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def merge(file: Wishes, arguments: Wishes) -> Merged:
    """What is asked for in all. Pure: the same two give the same one."""
    entry = _entry(file, Origin.FILE)
    name = file.name
    if (given := _entry(arguments, Origin.ARGUMENT)) is not None:
        name = file.name if _same(entry, given) else None
        entry = given
    return Merged(
        entry=entry,
        args=_first(arguments.args, file.args, ()),
        args_origin=Origin.FILE if arguments.args is None else Origin.ARGUMENT,
        name=_first(arguments.name, name, None),
        hours=_first(arguments.hours, file.hours, None),
        vram_gb=_first(arguments.vram_gb, file.vram_gb, None),
        gpu=_first(arguments.gpu, file.gpu, None),
        provider=_first(arguments.provider, file.provider, None),
        env={**(file.env or {}), **(arguments.env or {})},
        secrets=_first(arguments.secrets, file.secrets, ()),
        deps=_first(arguments.deps, file.deps, DepsWish()),
        data=_data(file.data or (), arguments.data or ()),
        include=_include(file.include or (), arguments.include or ()),
        smoke=bool(_first(arguments.smoke, file.smoke, None)),
        checkpoint_interval_min=_first(
            arguments.checkpoint_interval_min, file.checkpoint_interval_min, DEFAULT_INTERVAL_MIN
        ),
        interactive=bool(_first(arguments.interactive, file.interactive, None)),
        requires_approval=bool(file.requires_approval or arguments.requires_approval),
        max_attempts=_first(arguments.max_attempts, file.max_attempts, None),
        labels={**(file.labels or {}), **(arguments.labels or {})},
        provider_options=_first(arguments.provider_options, file.provider_options, {}),
    )


def _entry(wishes: Wishes, origin: Origin) -> Entry | None:
    if wishes.script is not None:
        return Entry(origin, line=wishes.script)
    return None if wishes.command is None else Entry(origin, words=wishes.command)


def _same(one: Entry | None, other: Entry) -> bool:
    if one is None:
        return False
    if one.line is not None and other.line is not None:
        return posixpath.normpath(one.line) == posixpath.normpath(other.line)
    return one.words == other.words


def _first(argument: T | None, file: T | None, default: T) -> T:
    if argument is not None:
        return argument
    return default if file is None else file


def _data(file: tuple[DataWish, ...], arguments: tuple[DataWish, ...]) -> tuple[tuple[Origin, DataWish], ...]:
    """By mount, in the order of first naming; an argument wins."""
    found = {each.mount: (Origin.FILE, each) for each in file}
    found |= {each.mount: (Origin.ARGUMENT, each) for each in arguments}
    return tuple(found.values())


def _include(file: tuple[str, ...], arguments: tuple[str, ...]) -> tuple[tuple[Origin, str], ...]:
    both = [(Origin.FILE, each) for each in file] + [(Origin.ARGUMENT, each) for each in arguments]
    return tuple(dict.fromkeys(both))
