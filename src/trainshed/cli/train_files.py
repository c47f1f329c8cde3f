"""Task and catalogue files: read with places, changed by ``--set``, faults told with line and column."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from trainshed.model.training.yaml_documents import YamlDocument
    from trainshed.sdk.errors import ApiError

MAX_FILE_BYTES = 4 << 20
_ROOT_KEYS = frozenset({"request_id", "type", "spec", "allow_duplicate"})
_OF_THE_FILE = frozenset({400, 409, 422})
"""Statuses that are about what was sent."""
_STEP = re.compile(r"([^.\[\]]+)|\[(\d{1,4})\]")
_PATH = re.compile(r"[^.\[\]]+(?:\[\d{1,4}\]|\.[^.\[\]]+)*")


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A document and where its values stand, for faults that the server finds."""

    name: str
    value: dict[str, Any]
    text: str = field(repr=False)
    overridden: Mapping[str, str] = field(default_factory=dict)
    """Paths that an option gave, and the option."""

    def place(self, path: str) -> str:
        """Where ``path`` was written: ``task.yaml:12:5`` or ``--set workers=0``; empty if nobody knows."""
        for given, option in self.overridden.items():
            if path == given or path.startswith((f"{given}.", f"{given}[")):
                return option
        position = self._document().locate(path)
        return f"{self.name}:{position.line}:{position.column}" if position else self.name

    def locate(self, path: str) -> tuple[int, int] | None:
        """Line and column of ``path``, from 1; ``None`` for what an option gave."""
        place = self.place(path).removeprefix(f"{self.name}:")
        line, _, column = place.partition(":")
        return (int(line), int(column)) if line.isdigit() and column.isdigit() else None

    def _document(self) -> YamlDocument:
        from trainshed.model.training.yaml_documents import (  # noqa: PLC0415 - only for faults
            Position,
            YamlDocument,
            YamlFault,
            read_yaml,
        )

        try:
            # JSON is YAML in all but oddities; the reader of YAML is the one that keeps places.
            return read_yaml(self.text)
        except YamlFault:
            return YamlDocument(None, {"": Position(1, 1)})


def read_document(name: str, what: str) -> GivenFile:
    """The one YAML or JSON document in a file (``-``: on stdin). Raises `click.UsageError` with a place."""
    from trainshed.model.training.yaml_documents import YamlFault, read_text  # noqa: PLC0415 - not for `--help`

    shown = "<stdin>" if name == "-" else name
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read {name}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise click.UsageError(f"{shown} is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise click.UsageError(f"{shown}:{line}:1: byte {error.start} is not UTF-8") from None
    try:
        found = read_text(text)
    except YamlFault as fault:
        raise click.UsageError(f"{shown}:{fault.line}:{fault.column}: {fault.message}") from None
    if len(found) > 1:
        place = found[1].positions[""]
        said = f"a second document begins; give each a file of its own, {what} is one"
        raise click.UsageError(f"{shown}:{place.line}:{place.column}: {said}")
    value = found[0].value if found else None
    if not isinstance(value, dict):
        raise click.UsageError(f"{shown}:1:1: {what} is a map of fields, and this is not")
    return GivenFile(shown, value, text)


def with_values(given: GivenFile, settings: Sequence[str]) -> GivenFile:
    """The document with every ``KEY=VALUE`` of ``--set`` in it; values are YAML. Raises `click.UsageError`.

    A key is a path such as ``workers``, ``spec.workers`` or ``env[0].value``; ``spec.`` may be left out.
    """
    value, places = given.value, dict(given.overridden)
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not _PATH.fullmatch(key):
            raise click.BadParameter(
                f"{setting!r} is not KEY=VALUE, such as workers=3 or env[0].value='\"5\"'", param_hint="--set"
            )
        path = key if re.split(r"[.\[]", key)[0] in _ROOT_KEYS else f"spec.{key}"
        value = _placed(value, _steps(path), _scalar(setting, text), setting)
        places[path] = f"--set {setting}"
    return replace(given, value=value, overridden=places)


def located(error: ApiError, given: GivenFile, *, for_people: bool) -> ApiError:
    """The refusal with the place of every fault: in its paths for people, beside them for programs."""
    if error.status not in _OF_THE_FILE:
        return error
    body = dict(error.body)
    body["places"] = [
        {"path": fault.path, "file": given.name, "line": found[0], "column": found[1]}
        for fault in error.faults
        if (found := given.locate(fault.path)) is not None
    ]
    faults = error.faults
    if for_people:
        faults = tuple(
            replace(fault, path=f"{given.place(fault.path)}: {fault.path}" if fault.path else fault.path)
            for fault in error.faults
        )
    return type(error)(
        error.status,
        error.code,
        error.message,
        faults=faults,
        hint=error.hint,
        retry_after=error.retry_after,
        body=body,
    )


def as_yaml(document: Mapping[str, Any]) -> str:
    """A document as YAML that `read_document` reads as the same; text of several lines as it is."""
    import yaml  # noqa: PLC0415 - only for what prints YAML

    from trainshed.model.training.yaml_documents import core_scalar  # noqa: PLC0415 - as above

    class Dumper(yaml.SafeDumper):
        """Quotes what this program's reader, of YAML 1.2, would take for something else than text."""

        def ignore_aliases(self, data: Any) -> bool:
            del data
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 - the library's form
            super().increase_indent(flow, indentless)

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        style = "|" if "\n" in value and value.strip() == value.strip("\n") else None
        try:
            plain = isinstance(core_scalar(value), str)
        except ValueError:
            plain = False
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style if plain else '"')

    Dumper.add_representer(str, text)
    return yaml.dump(
        dict(document),
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )


def _steps(path: str) -> list[str | int]:
    return [name or int(index) for name, index in _STEP.findall(path)]


def _scalar(setting: str, text: str) -> Any:
    from trainshed.model.training.yaml_documents import YamlFault, read_yaml  # noqa: PLC0415 - as above

    try:
        return read_yaml(text).value
    except YamlFault as fault:
        raise click.BadParameter(f"{setting!r}: {fault.message}", param_hint="--set") from None


def _placed(value: Any, steps: Sequence[str | int], new: Any, setting: str) -> Any:
    """``value`` with ``new`` at the end of ``steps``; maps on the way are made, lists grow by one at most."""
    if not steps:
        return new
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        if value is not None and not isinstance(value, dict):
            _no_place(setting, f"`{step}` would be a key of something that is not a map")
        old = value or {}
        return {**old, step: _placed(old.get(step), rest, new, setting)}
    if value is not None and not isinstance(value, list):
        _no_place(setting, f"[{step}] would be an entry of something that is not a list")
    entries = list(value or ())
    if step > len(entries):
        _no_place(setting, f"there is no entry [{step}]; the list has {len(entries)}")
    entries[step : step + 1] = [_placed(entries[step] if step < len(entries) else None, rest, new, setting)]
    return entries


def _no_place(setting: str, said: str) -> NoReturn:
    raise click.BadParameter(f"{setting!r}: {said}", param_hint="--set")
