"""Job Profiles as callers write them: ``envloop.job-profile/v1`` and ``/v2`` (E91-E99, E104, A16-A18).

Every rule that needs no lookup. Whether what a Profile names exists, may be read and fits is judged by
``control.profiles``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trainshed.model.content import SCHEME, SHA256, ContentKind, ContentUri, parse_content_uri
from trainshed.model.errors import FaultList
from trainshed.model.parameters import CUT, local_faults, name_text, place_text, too_deep, value_faults
from trainshed.model.recipe import LOCAL_NAME, LOCAL_NAME_RULE, Reference, wrong_kind
from trainshed.model.strict_json import canonical_json

PROFILE_V1 = "envloop.job-profile/v1"
PROFILE_V2 = "envloop.job-profile/v2"
MAX_PROFILE_BYTES = 64 << 10
"""Of its canonical JSON."""
MAX_INPUTS = 32
MAX_PLUGINS = 32
MAX_LABEL_CHARS = 128
_CODE = "INVALID_PROFILE"
_KEYS = {
    PROFILE_V1: ("schema", "recipe", "inputs", "plugins"),
    PROFILE_V2: ("schema", "recipe", "parameters", "inputs", "plugins"),
}
_REFERENCE_KEYS = ("uri", "manifest_sha256")
_INPUT_KEYS = (*_REFERENCE_KEYS, "config", "split")
_PINNED_KINDS = frozenset({ContentKind.RECIPES, ContentKind.PLUGINS})
"""What is executed: its URI ends in its digest, too (A18)."""
_INPUT_KINDS = (ContentKind.DATASETS, ContentKind.MODELS)
_CHOICES = frozenset({"provider", "executor", "backend"})
"""Of the parameters of v1: no schema says that they mean anything else (E60, E96)."""
_PROVIDER_KEYS = frozenset(
    {"provider", "executor", "backend", "engine", "cluster", "node", "region", "placement", "storage"}
)
_LOCAL_KEYS = frozenset(
    {"path", "paths", "local_path", "file", "files", "dir", "directory", "folder", "mount"}
)
_LOCAL_PATH = re.compile(r"file:|[/\\~]|\.{1,2}(?:[/\\]|$)|[A-Za-z]:[/\\]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ProfileInput:
    """One input: a Dataset or a Model, and which part of a Dataset."""

    reference: Reference
    config: str | None = None
    split: str | None = None


@dataclass(frozen=True, slots=True)
class JobProfile:
    """A well-formed Profile."""

    schema: str
    inputs: Mapping[str, ProfileInput]
    plugins: tuple[Reference, ...]
    parameters: Mapping[str, Any]
    """As given: ``recipe`` of v1, ``parameters`` of v2. JSON values, none with a fraction (E97)."""
    recipe: Reference | None = None
    """The Recipe of v2; v1 names none."""
    given_inputs: frozenset[str] = frozenset()
    """The names of all inputs, those included whose reference is at fault and not in ``inputs``."""


def parse_profile(value: Mapping[str, Any], path: str, faults: FaultList) -> JobProfile | None:
    """Check a Profile. Adds every fault with its place below ``path``; then the answer is ``None``."""
    before = len(faults.faults)
    profile = read_profile(value, path, faults)
    return profile if len(faults.faults) == before else None


def read_profile(value: Mapping[str, Any], path: str, faults: FaultList) -> JobProfile | None:
    """`parse_profile`, but of a Profile at fault the answer is what could be read of it all the same.

    It is of use for finding more faults, and for nothing else.
    """
    return _Checker(path, faults).profile(value)


@dataclass(slots=True)
class _Checker:
    """Reads one part at a time; of a part at fault it answers what is of use for finding more faults."""

    path: str
    faults: FaultList

    def add(self, place: tuple[str | int, ...], message: str, code: str = _CODE) -> None:
        name = place[-1] if place else "profile"
        if isinstance(name, int) or name == CUT:
            shown = place_text("", place[-2:] if isinstance(name, int) else place)
        else:
            shown = name_text(name)
        self.faults.add(place_text(self.path, place), code, f"`{shown}` {message}")

    def profile(self, value: Mapping[str, Any]) -> JobProfile | None:
        schema = value.get("schema")
        if not isinstance(schema, str) or schema not in _KEYS:
            said = f"not {str(schema)[:80]!r}" if "schema" in value else "and it is missing"
            self.add(("schema",), f'must be "{PROFILE_V1}" or "{PROFILE_V2}", {said}')
            return None
        if (size := len(canonical_json(value))) > MAX_PROFILE_BYTES:
            self.add((), f"has {size} bytes; at most {MAX_PROFILE_BYTES}. Large input is a Dataset")
            return None
        self.known_keys((), value, _KEYS[schema])
        for key in _KEYS[schema]:
            if key not in value:
                self.add(
                    (key,), f"is missing; write {'[]' if key == 'plugins' else '{...}'} where there is none"
                )
        inputs = value.get("inputs", {})
        return JobProfile(
            schema=schema,
            inputs=MappingProxyType(dict(self.inputs(inputs))),
            plugins=tuple(self.plugins(value.get("plugins", []))),
            parameters=self.parameters("recipe" if schema == PROFILE_V1 else "parameters", value),
            recipe=self.recipe(value["recipe"]) if schema == PROFILE_V2 and "recipe" in value else None,
            given_inputs=frozenset(inputs if isinstance(inputs, dict) else ()),
        )

    def known_keys(
        self, place: tuple[str | int, ...], table: Mapping[str, Any], known: tuple[str, ...]
    ) -> None:
        for key in table:
            if key in known:
                continue
            if key.lower() in _PROVIDER_KEYS:
                said = (
                    "is not taken: the platform chooses where a Trial runs and where its content comes from"
                )
            elif key.lower() in _LOCAL_KEYS:
                said = "is not taken: content is published and named by its URI, nothing local is read"
            elif near := difflib.get_close_matches(key, known, n=1):
                said = f"is not known here; did you mean `{near[0]}`?"
            else:
                said = f"is not known here; known keys: {', '.join(known)}"
            self.add((*place, key), said)

    def inputs(self, value: Any) -> Iterator[tuple[str, ProfileInput]]:
        if not isinstance(value, dict):
            self.add(("inputs",), "must be an object: name -> reference")
            return
        if len(value) > MAX_INPUTS:
            self.add(("inputs",), f"holds {len(value)} inputs; at most {MAX_INPUTS}")
            return
        spelled: dict[str, str] = {}
        for name, entry in value.items():
            place = ("inputs", name)
            if not LOCAL_NAME.fullmatch(name):
                self.add(place, f"is no name of an input: it {LOCAL_NAME_RULE}")
            elif (other := spelled.setdefault(name.lower(), name)) != name:
                self.add(place, f"differs from `{other}` only in case, and both name a folder")
            reference = self.reference(place, entry, _INPUT_KINDS, _INPUT_KEYS)
            if not isinstance(entry, dict):
                continue
            config, split = (self.label(place, entry, key) for key in ("config", "split"))
            if reference is not None:
                if reference.uri.kind is not ContentKind.DATASETS and (config or split):
                    part = "config" if config else "split"
                    self.add((*place, part), f"is not taken: a {reference.uri.kind.noun} has no {part}s")
                yield name, ProfileInput(reference, config, split)

    def plugins(self, value: Any) -> Iterator[Reference]:
        if not isinstance(value, list):
            self.add(("plugins",), "must be a list of references")
            return
        if len(value) > MAX_PLUGINS:
            self.add(("plugins",), f"holds {len(value)} plugins; at most {MAX_PLUGINS}")
            return
        named: dict[str, int] = {}
        for number, entry in enumerate(value):
            place = ("plugins", number)
            reference = self.reference(place, entry, (ContentKind.PLUGINS,), _REFERENCE_KEYS)
            if reference is None:
                continue
            self.pinned(place, reference.uri)
            if (other := named.setdefault(reference.uri.full_name.lower(), number)) != number:
                self.add(place, f"is the same plugin as entry {other}: {reference.uri.full_name}")
            yield reference

    def recipe(self, value: Any) -> Reference | None:
        reference = self.reference(("recipe",), value, (ContentKind.RECIPES,), _REFERENCE_KEYS)
        if reference is not None:
            self.pinned(("recipe",), reference.uri)
        return reference

    def pinned(self, place: tuple[str | int, ...], uri: ContentUri) -> None:
        """A18: what is executed is named by its digest in the URI, too."""
        if not uri.pinned:
            wanted = f"{SCHEME}{uri.kind}/{uri.full_name}@<manifest_sha256>"
            self.add((*place, "uri"), f"must end in the manifest's SHA-256: write {wanted}")

    def reference(
        self,
        place: tuple[str | int, ...],
        value: Any,
        kinds: tuple[ContentKind, ...],
        keys: tuple[str, ...],
    ) -> Reference | None:
        if not isinstance(value, dict):
            local = "; a local path is never read" if isinstance(value, str) and _is_local(value) else ""
            self.add(place, f'must be an object {{"uri": ..., "manifest_sha256": ...}}{local}')
            return None
        self.known_keys(place, value, keys)
        uri = self.uri((*place, "uri"), value.get("uri"), kinds)
        digest = value.get("manifest_sha256")
        if not isinstance(digest, str) or not SHA256.fullmatch(digest):
            said = "is missing" if digest is None else f"is {str(digest)[:80]!r}"
            self.add(
                (*place, "manifest_sha256"),
                f"{said}; it must be the whole SHA-256 of the published manifest: 64 lower-case hex digits",
            )
            return None
        if uri is None:
            return None
        if uri.pinned and uri.ref != digest:
            self.add(
                (*place, "manifest_sha256"),
                f"is {digest}, and the URI beside it names {uri.ref}",
                "PROFILE_HASH_MISMATCH",
            )
        return Reference(uri, digest)

    def uri(
        self, place: tuple[str | int, ...], value: Any, kinds: tuple[ContentKind, ...]
    ) -> ContentUri | None:
        if not isinstance(value, str):
            said = "is missing" if value is None else "must be a string"
            ref = "<manifest_sha256>" if kinds[0] in _PINNED_KINDS else "version"
            self.add(place, f"{said}; write {SCHEME}{kinds[0]}/namespace/name@{ref}")
            return None
        if _is_local(value):
            publish = f"trainshed {kinds[0].noun.lower()} publish"
            self.add(place, f"is a path, {value[:80]!r}; nothing local is read: publish it with `{publish}`")
            return None
        try:
            uri = parse_content_uri(value)
        except ValueError as error:
            ref = "; after its `@` stands the manifest's SHA-256" if kinds[0] in _PINNED_KINDS else ""
            self.add(place, f"is malformed: {error}{ref}")
            return None
        if fault := wrong_kind(uri, kinds):
            self.add(place, fault)
            return None
        return uri

    def label(self, place: tuple[str | int, ...], entry: Mapping[str, Any], key: str) -> str | None:
        if key not in entry:
            return None
        value = entry[key]
        if isinstance(value, str) and 0 < len(value) <= MAX_LABEL_CHARS:
            return value
        self.add((*place, key), f"must be a string of 1 to {MAX_LABEL_CHARS} characters, or left out")
        return None

    def parameters(self, key: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
        given = value.get(key, {})
        if not isinstance(given, dict):
            self.add((key,), "must be an object: parameter -> value")
            return {}
        found = value_faults(given)
        for place, message in found:
            self.add((key, *place), message)
        if too_deep(given) is None:
            if key == "recipe":
                for place in _choices(given):
                    self.add((key, *place), "is not taken: the platform chooses where a Trial runs")
            for place, message in local_faults(given):
                self.add((key, *place), message)
        return MappingProxyType(given)


def _is_local(text: str) -> bool:
    return _LOCAL_PATH.match(text) is not None


def _choices(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where a parameter is called as what only the platform chooses."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key.lower() in _CHOICES:
                yield (*place, key)
            yield from _choices(each, (*place, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _choices(each, (*place, number))
