"""YAML as people write it, bounded and with places: every value knows its line.

The rules of YAML 1.2's core schema: `yes` and `1:30` are text. Anchors, aliases, tags and keys given twice
are refused, so a document is exactly as large as it looks. Nothing here recurses.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainshed.model.errors import Refusal
from trainshed.model.strict_json import decode_json

if TYPE_CHECKING:
    import yaml

MAX_YAML_BYTES = 4 << 20
MAX_YAML_DEPTH = 32
MAX_YAML_VALUES = 100_000
MAX_YAML_DOCUMENTS = 16
_MAX_NUMBER_CHARS = 400
_MAX_KEY_SHOWN = 80
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class YamlFault(ValueError):
    """Text that is not YAML as it is taken here. ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.message = message
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a text, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """One document: its value (as JSON would have it) and where each value stands."""

    value: Any
    positions: Mapping[str, Position] = field(repr=False)
    """By path, as in a fault: ``spec.env[0].name``; a map's entry is where its key stands."""

    def locate(self, path: str) -> Position | None:
        """Where ``path`` is, or else the nearest value around it."""
        while path and path not in self.positions:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return self.positions.get(path)


@dataclass(frozen=True, slots=True)
class Twice:
    """A key that is given again, kept under a name of its own so that its value can be judged, too."""

    fault: YamlFault
    map: dict[str, Any] = field(repr=False)
    name: str
    """What it is called in ``map``."""
    key: str


def read_text(text: str) -> list[YamlDocument]:
    """The documents of a file that is YAML or JSON; JSON has no places. Raises `YamlFault`."""
    if text.lstrip().startswith("{"):
        try:
            return [YamlDocument(decode_json(text.encode()), {"": Position(1, 1)})]
        except (Refusal, UnicodeEncodeError):
            pass  # YAML has maps in braces too, and says where a fault is
    return read_yaml_documents(text)


def read_yaml(
    text: str, scalar: Callable[[str], Any] | None = None, twice: list[Twice] | None = None
) -> YamlDocument:
    """The one document of ``text``; empty text is the value ``None``. Raises `YamlFault`.

    With ``twice`` a key that is given again goes on that list, and the reading goes on.
    """
    found = read_yaml_documents(text, scalar, twice)
    if len(found) > 1:
        place = found[1].positions[""]
        raise YamlFault("a second document begins; there must be one", place.line, place.column)
    return found[0] if found else YamlDocument(None, {"": Position(1, 1)})


def read_yaml_documents(
    text: str, scalar: Callable[[str], Any] | None = None, twice: list[Twice] | None = None
) -> list[YamlDocument]:
    """Every document of ``text``. ``scalar`` says what a plain word means. Raises `YamlFault`."""
    # Only catalogues and task files are YAML; a server that has none never loads the parser.
    import yaml  # noqa: PLC0415 - see above

    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_YAML_BYTES:
        raise YamlFault(f"the text has {size} bytes; at most {MAX_YAML_BYTES}", 1, 1)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return list(_documents(yaml.parse(text, Loader=loader), scalar or core_scalar, twice))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        if mark and "\t" in _indent(text, mark.line):
            said = "a tab stands where YAML allows spaces only; indent with spaces"
        raise YamlFault(said, *((mark.line + 1, mark.column + 1) if mark else (1, 1))) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise _unreadable(text, error) from None


def _indent(text: str, number: int) -> str:
    """The white space at the beginning of a line, which is counted from 0."""
    line = "".join(text.split("\n")[number : number + 1])
    return line[: len(line) - len(line.lstrip())]


def _unreadable(text: str, error: Exception) -> YamlFault:
    place = getattr(error, "position", getattr(error, "start", None))
    if not isinstance(place, int):
        return YamlFault(str(error).splitlines()[0] or "not YAML", 1, 1)
    before = text[:place]
    letter = f"U+{ord(text[place]):04X}" if place < len(text) else "one"
    line, column = before.count("\n") + 1, place - before.rfind("\n")
    return YamlFault(f"the character {letter} is not allowed in YAML", line, column)


@dataclass(slots=True)
class _Open:
    """A list or map that is being read."""

    path: str
    value: Any
    key: str | None = None
    """The key whose value comes next, in a map."""


class _Builder:
    """Makes one document of its events."""

    def __init__(
        self, start: yaml.Event, scalar: Callable[[str], Any], twice: list[Twice] | None = None
    ) -> None:
        self._scalar = scalar
        self._twice = twice
        self._open: list[_Open] = []
        self._count = 0
        self._positions = {"": _position(start)}
        self._root: Any = None

    def document(self) -> YamlDocument:
        return YamlDocument(self._root, self._positions)

    def close(self) -> None:
        self._open.pop()

    def add(self, event: yaml.NodeEvent) -> None:
        """A value, a key, or the beginning of a list or map."""
        import yaml  # noqa: PLC0415 - as in `read_yaml_documents`

        self._count += 1
        if isinstance(event, yaml.AliasEvent):
            raise _fault(event, f"the alias `*{_short(event.anchor)}` is not taken; write the value out")
        if event.anchor is not None:
            raise _fault(event, f"the anchor `&{_short(event.anchor)}` is not taken; write each value out")
        if self._count > MAX_YAML_VALUES:
            raise _fault(event, f"more than {MAX_YAML_VALUES} values")
        if len(self._open) >= MAX_YAML_DEPTH:
            raise _fault(event, f"nested deeper than {MAX_YAML_DEPTH} levels")
        value = self._value(event)
        parent = self._open[-1] if self._open else None
        if parent is not None and isinstance(parent.value, dict) and parent.key is None:
            self._key(parent, event)
            return
        path = self._place(parent, value)
        self._positions.setdefault(path, _position(event))
        if isinstance(value, (list, dict)):
            self._open.append(_Open(path, value))

    def _value(self, event: yaml.NodeEvent) -> Any:
        import yaml  # noqa: PLC0415 - as in `read_yaml_documents`

        tag = getattr(event, "tag", None)
        if tag not in {None, "!", "tag:yaml.org,2002:str"}:
            raise _fault(event, f"the tag `{_short(tag)}` is not taken")
        if isinstance(event, yaml.SequenceStartEvent):
            return []
        if isinstance(event, yaml.MappingStartEvent):
            return {}
        if not isinstance(event, yaml.ScalarEvent) or event.style or not event.implicit[0]:
            return getattr(event, "value", None)
        try:
            return self._scalar(event.value)
        except ValueError as error:
            raise _fault(event, str(error)) from None

    def _key(self, parent: _Open, event: yaml.NodeEvent) -> None:
        text = getattr(event, "value", None)
        if not isinstance(text, str):
            raise _fault(event, "a key must be text, not a list or a map")
        if text in parent.value:
            text = self._again(parent, text, event)
        parent.key = text
        parent.value[text] = None
        self._positions[_below(parent.path, text)] = _position(event)

    def _again(self, parent: _Open, key: str, event: yaml.NodeEvent) -> str:
        """The name for a key that is there already. Raises `YamlFault` where nobody collects them."""
        fault = _fault(event, f"the key `{_short(key)}` is given twice in one map")
        if self._twice is None:
            raise fault
        number = len(self._twice)
        while (name := f"{key[: _MAX_KEY_SHOWN // 2]}\0{number}") in parent.value:
            number += 1
        self._twice.append(Twice(fault, parent.value, name, key))
        return name

    def _place(self, parent: _Open | None, value: Any) -> str:
        if parent is None:
            self._root = value
            return ""
        if isinstance(parent.value, list):
            parent.value.append(value)
            return f"{parent.path}[{len(parent.value) - 1}]"
        key, parent.key = str(parent.key), None
        parent.value[key] = value
        return _below(parent.path, key)


def _below(path: str, key: str) -> str:
    # Cut, so that what is remembered of a document does not grow with the square of its keys.
    return f"{path}.{key[:_MAX_KEY_SHOWN]}" if path else key[:_MAX_KEY_SHOWN]


def _documents(
    events: Iterator[yaml.Event], scalar: Callable[[str], Any], twice: list[Twice] | None
) -> Iterator[YamlDocument]:
    import yaml  # noqa: PLC0415 - as in `read_yaml_documents`

    builder: _Builder | None = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > MAX_YAML_DOCUMENTS:
                raise _fault(event, f"more than {MAX_YAML_DOCUMENTS} documents")
            builder = _Builder(event, scalar, twice)
        elif builder is None:
            continue
        elif isinstance(event, yaml.DocumentEndEvent):
            yield builder.document()
        elif isinstance(event, yaml.CollectionEndEvent):
            builder.close()
        elif isinstance(event, yaml.NodeEvent):
            builder.add(event)


def core_scalar(text: str) -> Any:
    """What a plain word means in YAML 1.2's core schema; raises `ValueError` for numbers JSON has not."""
    if _NULL.fullmatch(text):
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text[0] not in "+-.0123456789":
        return text
    if _SPECIAL.fullmatch(text):
        raise ValueError(f"{text} is not a number that can be used here")
    for pattern, base in ((_INT, 10), (_OCTAL, 8), (_HEX, 16)):
        if pattern.fullmatch(text):
            return _bounded(text, functools.partial(int, base=base))
    if _FLOAT.fullmatch(text):
        number = _bounded(text, float)
        if not math.isfinite(number):
            raise ValueError(f"the number {_short(text)} is too large")
        return number
    return text


def _bounded(text: str, convert: Callable[[str], Any]) -> Any:
    if len(text) > _MAX_NUMBER_CHARS:
        raise ValueError(f"a number of {len(text)} digits is too large")
    return convert(text)


def _fault(event: yaml.Event, message: str) -> YamlFault:
    place = _position(event)
    return YamlFault(message, place.line, place.column)


def _position(event: yaml.Event) -> Position:
    mark = event.start_mark
    return Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)


def _short(text: object) -> str:
    return str(text)[:40].encode("unicode_escape").decode("ascii")
