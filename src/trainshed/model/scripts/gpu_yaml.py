"""Reading gpu.yaml, version 1, and the arguments that go beside it: every fault at once (section d)."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainshed.model.scripts.faults import (
    ARGUMENT,
    INVALID_REQUEST,
    INVALID_SPEC,
    SpecError,
    SpecFault,
    shown,
)
from trainshed.model.scripts.secret_names import SECRET_NAME, reserved
from trainshed.model.scripts.validate import ARGUMENTS, FIELDS, LISTS, DataWish, DepsWish, Plain, bare
from trainshed.model.training.yaml_documents import Twice, YamlDocument, YamlFault, core_scalar, read_yaml

FILE_NAME = "gpu.yaml"
MAX_BYTES = 256 << 10
_ENTRYPOINT_KEYS = frozenset({"script", "include", "data"})
"""What is wrong with these arguments is wrong with the spec, and not with the request (a.1)."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What gpu.yaml or the arguments ask for; ``None`` where they say nothing."""

    name: str | None = None
    script: str | None = None
    """A Python file or a command line (e.10)."""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    vram_gb: float | None = None
    hours: float | None = None
    provider: str | None = None
    gpu: str | None = None
    env: Mapping[str, str] | None = None
    secrets: tuple[str, ...] | None = None
    deps: DepsWish | None = None
    data: tuple[DataWish, ...] | None = None
    include: tuple[str, ...] | None = None
    checkpoint_interval_min: int | None = None
    interactive: bool | None = None
    requires_approval: bool | None = None
    smoke: bool | None = None
    max_attempts: int | None = None
    labels: Mapping[str, str] | None = None
    provider_options: Mapping[str, Mapping[str, object]] | None = None


def read_gpu_yaml(content: bytes, file: str = FILE_NAME) -> Wishes:
    """What the file asks for; ``file`` is its name in messages. Raises `SpecError` with every fault."""
    twice: list[Twice] = []
    document = _document(content, file, twice)
    if bare(document.value) is None:
        return Wishes()
    if not isinstance(document.value, dict):
        raise SpecError([SpecFault(f"{file}:1", "", "the file must hold a map of keys and values")])
    return _Reading(document, file, twice).wishes()


class _Reading:
    """One file that holds a map."""

    def __init__(self, document: YamlDocument, file: str, twice: Sequence[Twice] = ()) -> None:
        self._document = document
        self._given: dict[str, Any] = document.value
        self._file = file
        self._faults = [_of_yaml(file, each.fault) for each in twice]
        self._again = {each.name: each.key for each in twice if each.map is self._given}
        for each in twice:
            if each.map is not self._given:
                del each.map[each.name]  # whoever reads the map around it knows keys that are given once

    def wishes(self) -> Wishes:
        read = ((key, self._read(key, value)) for key, value in self._given.items())
        found = {key: value for key, value in read if value is not None}
        self._not_both("script", "command", "is given beside")
        self._not_both("vram", "vram_gb", "says the same as")
        if self._faults:
            raise SpecError(sorted(self._faults, key=lambda fault: int(fault.place.rpartition(":")[2])))
        found.pop("version", None)
        if "vram" in found:
            found["vram_gb"] = found.pop("vram")
        return Wishes(**found)

    def _read(self, name: str, value: Any) -> Any:
        key = self._again.get(name, name)
        if key not in FIELDS:
            if key == name:
                self._fault(key, key, "is no key of gpu.yaml", _nearest(key, FIELDS))
        elif bare(value) is None:
            self._fault(name, key, "has no value; give it one, or leave the key out")
        else:
            try:
                return FIELDS[key](value)
            except ValueError as error:
                self._fault(_where(name, value, str(error)), key, str(error), code=_code_of(key, value))
        return None

    def _not_both(self, one: str, other: str, said: str) -> None:
        if {one, other} <= self._given.keys():
            places = self._document.positions
            first, later = sorted((one, other), key=lambda key: (places[key].line, places[key].column))
            self._fault(later, later, f"{said} `{first}`", "Keep one of them.")

    def _fault(self, path: str, key: str, message: str, hint: str = "", code: str = INVALID_SPEC) -> None:
        place = self._document.locate(path)
        line = place.line if place else 1
        self._faults.append(SpecFault(f"{self._file}:{line}", key, message, hint, code))


def read_arguments(given: Mapping[str, Any], known: Mapping[str, Callable[[Any], Any]] = ARGUMENTS) -> Wishes:
    """What the arguments ask for; those that are ``None`` say nothing. Raises `SpecError`, all faults."""
    faults: list[SpecFault] = []
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            hint = _nearest(key, known)
            faults.append(SpecFault(ARGUMENT, key, "is no argument here", hint, INVALID_REQUEST))
        elif value is not None:
            try:
                found[key] = known[key](_decoded(key, value))
            except ValueError as error:
                code = INVALID_SPEC if key in _ENTRYPOINT_KEYS else INVALID_REQUEST
                faults.append(SpecFault(ARGUMENT, key, str(error), code=code))
    if faults:
        raise SpecError(faults)
    return Wishes(**found)


def _document(content: bytes, file: str, twice: list[Twice]) -> YamlDocument:
    if len(content) > MAX_BYTES:
        raise SpecError([SpecFault(f"{file}:1", "", f"the file has more than {MAX_BYTES} bytes")])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError([SpecFault(f"{file}:{line}", "", "the file is not UTF-8")]) from None
    try:
        return read_yaml(text, _scalar, twice)
    except YamlFault as error:
        before = (each.fault for each in twice)
        raise SpecError([_of_yaml(file, each) for each in (*before, error)]) from None


def _of_yaml(file: str, fault: YamlFault) -> SpecFault:
    return SpecFault(f"{file}:{fault.line}", "", shown(fault.message))


def _scalar(text: str) -> Any:
    """Plain words with how they were written: a number may be meant as text."""
    try:
        value = core_scalar(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else Plain(value, text)


def _decoded(key: str, value: Any) -> Any:
    """A list that was written as JSON in a text counts as that list (a.0.7)."""
    if key in LISTS and isinstance(value, str) and value.lstrip().startswith("["):
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return decoded if isinstance(decoded, list) else value
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a number")
    return value


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key[:40].lower().replace("-", "_"), known, n=1, cutoff=0.5)
    return f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(known)}."


def _where(key: str, value: Any, said: str) -> str:
    """The path of the entry that a message of a reader is about, for its line."""
    first = said.split(" ", 1)[0]
    if first.startswith("["):
        return f"{key}{first}"
    if isinstance(value, dict):
        named = next((each for each in value if each == first or f"`{each}`" in said), None)
        return key if named is None else f"{key}.{named[:80]}"
    return key


def _code_of(key: str, value: Any) -> str:
    """A reserved secret is refused as a request: no gpu.yaml makes it possible (a.1)."""
    if key == "secrets" and isinstance(value, list | str):
        names = [value] if isinstance(value, str) else [bare(each) for each in value]
        if any(isinstance(each, str) and SECRET_NAME.fullmatch(each) and reserved(each) for each in names):
            return INVALID_REQUEST
    return INVALID_SPEC
