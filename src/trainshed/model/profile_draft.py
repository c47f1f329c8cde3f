"""A Job Profile v2 put together from what a person names, complete or with what is still to be filled in.

Pure: references were looked up already. What comes of it is judged by the same rules as a submission, so what
is said here is said before anything is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainshed.model.content import SCHEME, ContentKind
from trainshed.model.errors import FaultList
from trainshed.model.parameters import apply_schema, place_text, resolved
from trainshed.model.profile import PROFILE_V2, parse_profile
from trainshed.model.recipe import Recipe
from trainshed.model.splits import DEFAULT_CONFIG

_BOUNDS = ("minimum", "maximum", "enum", "const", "pattern", "minLength", "maxLength", "minItems", "maxItems")


@dataclass(frozen=True, slots=True)
class DraftInput:
    """One input as it was named, and what its version says of itself."""

    kind: ContentKind
    reference: Mapping[str, str] = field(default_factory=dict)
    """``uri``, ``manifest_sha256``, and ``config`` and ``split`` where they were given.

    Empty for one that was not found, which the caller tells.
    """
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Config -> split -> patterns, of a Dataset."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A Profile, and what keeps it from being submitted."""

    document: dict[str, Any]
    missing: list[str]
    """What has to be given, each as a sentence; the document has a placeholder for it."""
    faults: list[str]
    """What was given and is wrong, each as a sentence."""


def parameter_value(schema: Mapping[str, Any], name: str, text: str) -> Any:
    """The value of a parameter given as text, as its schema reads it: text stays text where text is taken.

    What is no JSON of the type stays text, which the schema then refuses by name.
    """
    types = _types(_property(schema, name))
    if types == {"string"}:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # A decimal is given as text (E97); of several types text is the one for what is none of the others.
    if isinstance(value, float) or ("string" in types and isinstance(value, str)):
        return text
    return value


def draft_profile(
    recipe_reference: Mapping[str, str],
    recipe: Recipe,
    inputs: Mapping[str, DraftInput],
    plugins: Sequence[Mapping[str, str]],
    parameters: Mapping[str, Any],
) -> Draft:
    """A Profile with the Recipe's defaults, and a placeholder for each thing that has to be given (E98)."""
    missing, faults = [], list(_input_faults(recipe, inputs))
    placed: dict[str, Any] = {name: dict(each.reference) for name, each in inputs.items()}
    for name, wanted in (recipe.inputs or {}).items():
        if name not in inputs and wanted.required:
            noun = wanted.kind.noun
            told = f": {wanted.description}" if wanted.description else ""
            missing.append(f"input `{name}`, a {noun}{told}: --input {name}=NAMESPACE/NAME[@VERSION]")
            placed[name] = {
                "uri": f"{SCHEME}{wanted.kind}/NAMESPACE/NAME@VERSION",
                "manifest_sha256": f"<manifest_sha256 of that {noun}>",
            }
    wanted_parameters, unset = dict(parameters), set()
    filled, _ = apply_schema(recipe.parameters, parameters)
    for name in recipe.parameters.get("required", ()):
        if name not in filled:
            told = _told(_property(recipe.parameters, name))
            missing.append(f"parameter `{name}`, {told}: --param {name}=VALUE")
            wanted_parameters[name] = f"<{told}>"
            unset.add(name)
    merged, found = apply_schema(recipe.parameters, wanted_parameters)
    document = {
        "schema": PROFILE_V2,
        "recipe": dict(recipe_reference),
        "parameters": merged,
        "inputs": placed,
        "plugins": [dict(each) for each in plugins],
    }
    known = {name: dict(each.reference) for name, each in inputs.items() if each.reference}
    rules = FaultList()
    parse_profile({**document, "inputs": known}, "", rules)
    faults += [f"{fault.path} {fault.message}" for fault in rules.faults]
    judged = {fault.path for fault in rules.faults}
    for place, message in found:
        where = place_text("parameters", place)
        if where not in judged and (not place or place[0] not in unset):
            faults.append(f"{where} {message}")
    return Draft(document, missing, faults)


def _input_faults(recipe: Recipe, inputs: Mapping[str, DraftInput]) -> Iterator[str]:
    for name, given in inputs.items():
        wanted = None if recipe.inputs is None else recipe.inputs.get(name)
        if recipe.inputs is not None and wanted is None:
            known = ", ".join(sorted(recipe.inputs)) or "none"
            yield f"input `{name}` is none of the Recipe's; its inputs: {known}"
        elif wanted is not None and wanted.kind is not given.kind:
            yield f"input `{name}` is a {given.kind.noun}, and the Recipe takes a {wanted.kind.noun} here"
        elif given.kind is ContentKind.DATASETS and given.reference:
            yield from _part_faults(name, given)


def _part_faults(name: str, given: DraftInput) -> Iterator[str]:
    """What of config and split is not in the Dataset."""
    config, split = given.reference.get("config"), given.reference.get("split")
    if config is None and split is not None:
        only = len(given.configs) == 1 and DEFAULT_CONFIG not in given.configs
        config = next(iter(given.configs)) if only else DEFAULT_CONFIG
    if config is not None and config not in given.configs:
        yield f"input `{name}` has no config `{config}`; it has {', '.join(sorted(given.configs)) or 'none'}"
    elif config is not None and split is not None and split not in given.configs[config]:
        splits = ", ".join(sorted(given.configs[config]))
        yield f"input `{name}` has no split `{split}`; config `{config}` has {splits}"


def _property(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What a schema says of one property, behind a `$ref` too; nothing where it does not."""
    found = schema.get("properties", {}).get(name)
    seen: set[str] = set()
    while isinstance(found, Mapping) and isinstance(reference := found.get("$ref"), str):
        if reference in seen:
            break
        seen.add(reference)
        found = resolved(schema, reference)
    return found if isinstance(found, Mapping) else {}


def _types(said: Mapping[str, Any]) -> set[str]:
    kinds = said.get("type", [])
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _told(said: Mapping[str, Any]) -> str:
    """What a parameter takes, in a few words."""
    kinds = " or ".join(sorted(_types(said))) or "any value"
    bounds = [f"{key} {json.dumps(said[key])}" for key in _BOUNDS if key in said]
    words = [kinds, *bounds]
    if isinstance(about := said.get("description"), str):
        words.append(about)
    return ", ".join(words)
