"""A Recipe's definition: what ``recipe.toml`` declares about the code beside it (E100-E104).

::

    abi = "envloop.train-recipe/1"           # required
    entrypoint = "pev.train:main"            # required: module:function of the Recipe's Python code
    description = "Fine-tunes on one split"  # optional

    [inputs.data]                            # optional: what a Profile must bring, and nothing else
    kind = "dataset"                         # or "model"
    required = true                          # the default

    [dependencies.common]                    # optional: source of other Recipes, pinned for good
    uri = "envloop://recipes/envloop/common@1.2"
    manifest_sha256 = "..."                  # 64 hex digits

    [parameters]                             # optional: a JSON Schema 2020-12; without it there are none
    type = "object"
    additionalProperties = false
    [parameters.properties.steps]
    type = "integer"
    minimum = 1
    default = 100

Both sides of a publication apply these rules: the client before it uploads, the server before it believes.
"""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from trainshed.model.content import SHA256, ContentKind, ContentUri, parse_content_uri
from trainshed.model.errors import Fault, FaultList, Refusal
from trainshed.model.parameter_schema import schema_faults
from trainshed.model.parameters import MAX_DEPTH, cut, place_text, too_deep
from trainshed.model.strict_toml import decode_toml

RECIPE_ABI = "envloop.train-recipe/1"
RECIPE_FILE = "recipe.toml"
MAX_RECIPE_BYTES = 64 << 10
MAX_DEPENDENCIES = 32
MAX_INPUTS = 32
MAX_DESCRIPTION_CHARS = 1000
MAX_ENTRYPOINT_CHARS = 200
LOCAL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""What an input or a dependency is called: the name of its folder in a Trial."""
LOCAL_NAME_RULE = "must start with a letter, then letters, digits, `_`, `-`; at most 64"
NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({"type": "object", "additionalProperties": False})
_CODE = "INVALID_CONTENT"
_KEYS = ("abi", "entrypoint", "description", "inputs", "dependencies", "parameters")
_INPUT_KEYS = ("kind", "required", "description")
_DEPENDENCY_KEYS = ("uri", "manifest_sha256")
_INPUT_KINDS = {"dataset": ContentKind.DATASETS, "model": ContentKind.MODELS}


@dataclass(frozen=True, slots=True)
class Reference:
    """A content by URI, pinned by the SHA-256 of its manifest (E92, E99)."""

    uri: ContentUri
    manifest_sha256: str

    def document(self) -> dict[str, str]:
        return {"uri": str(self.uri), "manifest_sha256": self.manifest_sha256}


@dataclass(frozen=True, slots=True)
class RecipeInput:
    """One input that a Recipe asks for."""

    kind: ContentKind
    """``datasets`` or ``models``."""
    required: bool = True
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A valid definition of a Recipe."""

    entrypoint: str
    """``module:function``; a Runner that runs this Recipe declares the same (E100)."""
    inputs: Mapping[str, RecipeInput] | None = None
    """Name -> what it takes; ``None`` where the Recipe does not say, and takes any."""
    dependencies: Mapping[str, Reference] = field(default_factory=dict)
    """Name -> the Recipe whose source is needed (E101)."""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)
    """The JSON Schema of its parameters."""
    description: str | None = None

    @property
    def abi(self) -> str:
        return RECIPE_ABI

    def about(self) -> dict[str, Any]:
        """The definition as JSON values, for the manifest; `recipe_from_about` reads it again."""
        found: dict[str, Any] = {
            "abi": self.abi,
            "entrypoint": self.entrypoint,
            "dependencies": {name: each.document() for name, each in self.dependencies.items()},
            "parameters": _plain(self.parameters),
        }
        if self.inputs is not None:
            found["inputs"] = {name: _input_document(each) for name, each in self.inputs.items()}
        if self.description is not None:
            found["description"] = self.description
        return found

    def module_files(self) -> tuple[str, str]:
        """The files that can hold the entrypoint's module."""
        module = self.entrypoint.partition(":")[0].replace(".", "/")
        return f"{module}.py", f"{module}/__init__.py"

    def tree_faults(self, paths: Iterable[str]) -> list[Fault]:
        """What the Recipe's files lack for its definition; empty if nothing."""
        if not self.entrypoint:  # of a definition at fault
            return []
        if not set(self.module_files()).isdisjoint(paths):
            return []
        one, other = self.module_files()
        message = f"`entrypoint` is `{self.entrypoint}`, and neither `{one}` nor `{other}` is in the Recipe"
        return [Fault("entrypoint", _CODE, message)]


def parse_recipe(content: bytes) -> Recipe:
    """Parse the bytes of ``recipe.toml``; raises `Refusal` ``INVALID_CONTENT`` with every fault at once."""
    recipe, faults = read_recipe(content)
    if faults:
        raise Refusal(faults)
    return recipe


def read_recipe(content: bytes) -> tuple[Recipe, list[Fault]]:
    """What can be read of ``recipe.toml``, and its faults, each of which names the file."""
    try:
        document = decode_toml(content, MAX_RECIPE_BYTES)
    except ValueError as error:
        raise Refusal.of(_CODE, f"{RECIPE_FILE} {error}", path=RECIPE_FILE) from None
    recipe, faults = judge_recipe(document, published=False)
    return recipe, [replace(fault, message=f"{RECIPE_FILE}: {fault.message}") for fault in faults]


def recipe_from_about(about: Mapping[str, Any]) -> Recipe:
    """Check a definition given as plain values, such as those of `Recipe.about`.

    Raises `Refusal` ``INVALID_CONTENT`` with every fault at once.
    """
    recipe, faults = judge_recipe(about)
    if faults:
        raise Refusal(faults)
    return recipe


def judge_recipe(about: Mapping[str, Any], *, published: bool = True) -> tuple[Recipe, list[Fault]]:
    """What can be read of a definition, and every fault of it; its entrypoint is empty if that is one.

    One that is ``published`` may hold what was not looked for then (`parameter_schema.schema_faults`); the
    bytes of ``recipe.toml`` are judged as new ones by both sides of every publication.
    """
    if (place := too_deep(about)) is not None:
        where = place_text("", cut(place))
        message = f"`{where}` is nested deeper than {MAX_DEPTH} levels"
        return Recipe(entrypoint=""), [Fault(where, _CODE, message)]
    check = _Checker(FaultList(), published)
    check.known_keys("", about, _KEYS)
    if about.get("abi") != RECIPE_ABI:
        check.add("abi", f'must be "{RECIPE_ABI}"{check.instead(about, "abi")}')
    recipe = Recipe(
        entrypoint=check.entrypoint(about),
        inputs=check.inputs(about),
        dependencies=MappingProxyType(check.dependencies(about)),
        parameters=check.parameters(about),
        description=check.description("description", about.get("description")),
    )
    return recipe, check.faults.faults


def missing_source(
    name: str, needed: Reference, digest_of: Callable[[ContentUri], str | None]
) -> Fault | None:
    """Why the dependency ``name`` is not there, readable, and the one meant (E102); or ``None``.

    ``digest_of`` answers the SHA-256 of the manifest that a URI names, ``None`` where it names none that may
    be read.
    """
    found = digest_of(needed.uri)
    if found != needed.manifest_sha256:
        # The digest names it for good; on another server its label may be that of something else.
        found = digest_of(replace(needed.uri, ref=needed.manifest_sha256)) or found
    where = place_text("dependencies", (name,))
    if found is None:
        hint = "List the Recipes that you may read with `trainshed recipe list`."
        return Fault(f"{where}.uri", "CONTENT_NOT_FOUND", f"there is no readable {needed.uri}", hint)
    if found != needed.manifest_sha256:
        said = f"{needed.uri} is {found}, not {needed.manifest_sha256}"
        return Fault(f"{where}.manifest_sha256", "CONTENT_HASH_MISMATCH", said)
    return None


def wrong_kind(uri: ContentUri, kinds: Collection[ContentKind]) -> str | None:
    """Why ``uri`` cannot stand where ``kinds`` are taken, or ``None`` (E104)."""
    if uri.kind in kinds:
        return None
    return f"names {uri.kind}, and this place takes {' or '.join(kinds)} only: {str(uri)[:200]}"


@dataclass(slots=True)
class _Checker:
    """Reads one value at a time; what it answers counts only if ``faults`` stays empty."""

    faults: FaultList
    published: bool

    def add(self, path: str, message: str) -> None:
        self.faults.add(path, _CODE, f"`{path}` {message}")

    def instead(self, table: Mapping[str, Any], key: str) -> str:
        return f", not {str(table[key])[:80]!r}" if key in table else "; it is missing"

    def known_keys(self, path: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
                self.add(place_text(path, (key,)), f"is not a key of a Recipe: {hint}")

    def entrypoint(self, about: Mapping[str, Any]) -> str:
        value = about.get("entrypoint")
        if isinstance(value, str) and (fault := entrypoint_fault(value)) is None:
            return value
        said = fault if isinstance(value, str) else f"must be text{self.instead(about, 'entrypoint')}"
        self.add("entrypoint", said or "")
        return ""

    def description(self, path: str, value: Any) -> str | None:
        if value is None:
            return None
        if isinstance(value, str) and len(value) <= MAX_DESCRIPTION_CHARS and "\x00" not in value:
            return value
        self.add(path, f"must be text of at most {MAX_DESCRIPTION_CHARS} characters")
        return None

    def tables(
        self, about: Mapping[str, Any], key: str, most: int
    ) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
        """The named tables below ``key``, as in ``[inputs.data]``: name, place and table.

        One with a bad name is among them: what is wrong inside of it is told, too.
        """
        value = about.get(key, {})
        if not isinstance(value, Mapping):
            self.add(key, f"must hold tables, as in [{key}.NAME]")
            return
        if len(value) > most:
            self.add(key, f"holds {len(value)} entries; at most {most}")
            return
        spelled: dict[str, str] = {}
        for name, table in value.items():
            path = place_text(key, (name,))
            if not LOCAL_NAME.fullmatch(name):
                self.add(path, f"is no name: it {LOCAL_NAME_RULE}")
            elif (other := spelled.setdefault(name.lower(), name)) != name:
                self.add(path, f"differs from `{other}` only in case, and both name a folder")
            if isinstance(table, Mapping):
                yield name, path, table
            else:
                self.add(path, f"must be a table: [{path}]")

    def inputs(self, about: Mapping[str, Any]) -> Mapping[str, RecipeInput] | None:
        if "inputs" not in about:
            return None
        found = {}
        for name, path, table in self.tables(about, "inputs", MAX_INPUTS):
            self.known_keys(path, table, _INPUT_KEYS)
            kind = table.get("kind")
            if not isinstance(kind, str) or kind not in _INPUT_KINDS:
                self.add(f"{path}.kind", f'must be "dataset" or "model"{self.instead(table, "kind")}')
                kind = "dataset"
            required = table.get("required", True)
            if not isinstance(required, bool):
                self.add(f"{path}.required", "must be true or false")
            description = self.description(f"{path}.description", table.get("description"))
            found[name] = RecipeInput(_INPUT_KINDS[kind], bool(required), description)
        return MappingProxyType(found)

    def dependencies(self, about: Mapping[str, Any]) -> dict[str, Reference]:
        found = {}
        for name, path, table in self.tables(about, "dependencies", MAX_DEPENDENCIES):
            self.known_keys(path, table, _DEPENDENCY_KEYS)
            uri = self.dependency_uri(f"{path}.uri", table.get("uri"))
            digest = table.get("manifest_sha256")
            if not isinstance(digest, str) or not SHA256.fullmatch(digest):
                said = "must be the whole SHA-256 of the published manifest, 64 lower-case hex digits"
                self.add(f"{path}.manifest_sha256", f"{said}{self.instead(table, 'manifest_sha256')}")
            elif uri is not None and uri.pinned and uri.ref != digest:
                self.add(f"{path}.manifest_sha256", f"is not the digest in its URI, {uri.ref}")
            elif uri is not None:
                found[name] = Reference(uri, digest)
        return found

    def dependency_uri(self, path: str, value: Any) -> ContentUri | None:
        try:
            uri = parse_content_uri(value if isinstance(value, str) else "")
        except ValueError as error:
            self.add(path, f"is no URI of a Recipe: {error}")
            return None
        if fault := wrong_kind(uri, (ContentKind.RECIPES,)):
            self.add(path, fault)
            return None
        return uri

    def parameters(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        if "parameters" not in about:
            return NO_PARAMETERS
        schema = about["parameters"]
        for place, message in schema_faults(schema, published=self.published):
            self.add(place_text("parameters", place), message)
        return MappingProxyType(dict(schema)) if isinstance(schema, Mapping) else NO_PARAMETERS


def entrypoint_fault(text: str) -> str | None:
    """Why ``text`` is no entrypoint (``module:function``, as in Python packaging), or ``None``."""
    module, colon, function = text.partition(":")
    names = [*module.split("."), function]
    well_formed = all(
        name.isascii() and name.isidentifier() and not keyword.iskeyword(name) for name in names
    )
    if colon and well_formed and len(text) <= MAX_ENTRYPOINT_CHARS:
        return None
    return f"must be module:function such as `pev.train:main`, not {text[:80]!r}"


def _input_document(each: RecipeInput) -> dict[str, Any]:
    noun = next(noun for noun, kind in _INPUT_KINDS.items() if kind is each.kind)
    found: dict[str, Any] = {"kind": noun, "required": each.required}
    return found if each.description is None else {**found, "description": each.description}


def _plain(value: Any) -> Any:
    """Ordinary dictionaries and lists all the way down."""
    if isinstance(value, Mapping):
        return {key: _plain(below) for key, below in value.items()}
    return [_plain(below) for below in value] if isinstance(value, list) else value
