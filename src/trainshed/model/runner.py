"""A Runner's definition: what ``runner.toml`` declares about the program beside it (contract E b8).

::

    image = "repository:tag"            # optional, before the first table
    abi = ["envloop.train-recipe/1"]    # optional: which Job Profiles it reads (E91, E100); text or a list
    [recipe]
    entrypoint = "pev.train:main"       # which Recipes it runs: those with this entrypoint (E100)
    optional = true                     # it can also be run without a Job Profile
    [execution]
    entrypoint = "main.sh"              # or "main.py"; the only key that is required
    outputs = ["outputs/**"]            # which files become artifacts (E73)
    timeout_seconds = 3600
    [resources]                         # the request's keys, used where a request names none (E57)
    gpu_type = "H100"
    gpus = 1
    [params.run_command]                # makes `--command` possible (E47)
    default = "echo hello"              # optional, always text
    [env]
    OMP_NUM_THREADS = "1"
    [checkpoints]                       # see `trainshed.model.checkpoints`
    resume = true

``schema_version`` and ``[runner] name`` are accepted and not needed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trainshed.model.checkpoints import METRIC_NAME, Best, CheckpointRules, Mode
from trainshed.model.errors import Fault, FaultList
from trainshed.model.globs import MAX_PATTERNS, OutputPatterns, pattern_fault
from trainshed.model.recipe import RECIPE_ABI, entrypoint_fault
from trainshed.model.selectors import MAX_NAME_PART_CHARS, NAME_PART, image_fault
from trainshed.model.strict_toml import decode_toml
from trainshed.model.submission import (
    GPU_TYPE,
    MAX_COMMAND_BYTES,
    RESOURCE_COUNTS,
    RESOURCE_KEYS,
    count_fault,
)

DEFINITION_NAMES = ("runner.toml", "task.toml")
"""The definition's file name and its older name; a Runner has exactly one of them."""
ENTRYPOINTS = ("main.sh", "main.py")
RUN_COMMAND = "run_command"
MAX_DEFINITION_BYTES = 64 << 10
MAX_ABIS = 8
MAX_PARAMS = 256
MAX_VARIABLES = 256
_CODE = "INVALID_RUNNER"
_TOP_KEYS = (
    "schema_version",
    "image",
    "abi",
    "recipe",
    "runner",
    "execution",
    "resources",
    "params",
    "env",
    "checkpoints",
)
_EXECUTION_KEYS = ("entrypoint", "outputs", "timeout_seconds")
_MAX_WORD_CHARS = 200
_PARAM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OWN_PREFIXES = ("TRAINSHED_", "ENVLOOP_")
_PLACEMENT_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})


class DefinitionError(Exception):
    """The definition cannot be used; ``faults`` holds everything that is wrong with it."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.message for fault in self.faults))


@dataclass(frozen=True, slots=True)
class RunnerDefinition:
    """A valid definition. Absent values are ``None`` or empty: the request or the server decides then."""

    entrypoint: str
    """``main.sh`` or ``main.py``, always at the top of the Runner (E10)."""
    outputs: tuple[str, ...] = ()
    timeout_seconds: int | None = None
    resources: Mapping[str, str | int] = field(default_factory=dict)
    """Some of ``gpu_type``, ``gpus``, ``cpus``, ``memory_mb``, ``storage_mb``, ``shm_mb`` (MiB)."""
    params: Mapping[str, str | None] = field(default_factory=dict)
    """Declared name, as written -> default; ``None`` where a parameter has no default."""
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    abis: tuple[str, ...] = ()
    """What it declares to read, ``envloop.job-profile/v1`` for one (E91)."""
    recipe_entrypoint: str | None = None
    """``[recipe] entrypoint``: the Recipes that it runs have the same (E100)."""
    recipe_optional: bool = False
    """``[recipe] optional``: its program also does something without a Job Profile."""
    name: str | None = None
    """``[runner] name``, ``namespace/name``."""
    schema_version: str | None = None
    checkpoints: CheckpointRules = field(default_factory=CheckpointRules)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The document as plain JSON values; `definition_from_document` accepts it again."""

    @property
    def patterns(self) -> OutputPatterns:
        """The compiled ``outputs``."""
        return OutputPatterns(self.outputs)

    @property
    def needs_profile(self) -> bool:
        """Whether its program has nothing to run without a Job Profile that names a Recipe (E100)."""
        return RECIPE_ABI in self.abis and self.recipe_entrypoint is not None and not self.recipe_optional

    @property
    def takes_command(self) -> bool:
        """Whether ``--command`` may be used with this Runner (E47, E49)."""
        return self.declared_param(RUN_COMMAND) is not None

    def declared_param(self, name: str) -> str | None:
        """The declared spelling of a parameter; names compare without case."""
        return next((known for known in self.params if known.lower() == name.lower()), None)

    def variables(self, values: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment variables that carry ``env`` and the parameters to the program.

        ``values`` replace defaults. A parameter with neither sets no variable (E54). Raises `KeyError` for a
        parameter that is not declared.
        """
        given = {name.lower(): value for name, value in (values or {}).items()}
        if unknown := given.keys() - {name.lower() for name in self.params}:
            raise KeyError(f"not declared by the Runner: {', '.join(sorted(unknown))}")
        found = dict(self.env)
        for name, default in self.params.items():
            value = given.get(name.lower(), default)
            if value is not None:
                found[param_variable(name)] = value
        return found


def param_variable(name: str) -> str:
    """The environment variable through which the program reads the parameter ``name``."""
    return f"TRAINSHED_PARAM_{name.upper()}"


def definition_file(paths: Iterable[str]) -> str:
    """Which of a Runner's files is its definition; raises `DefinitionError` unless there is exactly one."""
    present = set(paths)
    found = [name for name in DEFINITION_NAMES if name in present]
    if len(found) == 1:
        return found[0]
    if found:
        message = "both `runner.toml` and its older name `task.toml` are there; keep one"
    else:
        nested = sorted(path for path in present if path.rpartition("/")[2] in DEFINITION_NAMES)
        near = f"; there is `{nested[0]}`: publish that directory instead" if nested else ""
        message = f"there is no `runner.toml` at the top of the Runner{near}"
    raise DefinitionError([Fault("runner.toml", _CODE, message)])


def parse_definition(content: bytes) -> RunnerDefinition:
    """Parse the bytes of ``runner.toml``; raises `DefinitionError` with every fault at once."""
    try:
        document = decode_toml(content, MAX_DEFINITION_BYTES)
    except ValueError as error:
        raise DefinitionError([Fault("", _CODE, f"the definition {error}")]) from None
    return definition_from_document(document)


def definition_from_document(document: Mapping[str, Any]) -> RunnerDefinition:
    """Check a definition given as plain values; raises `DefinitionError` with every fault at once."""
    check = _Checker(FaultList())
    check.known_keys("", document, _TOP_KEYS)
    runner = check.table(document, "runner")
    check.known_keys("runner", runner, ("name",))
    recipe = check.table(document, "recipe")
    check.known_keys("recipe", recipe, ("entrypoint", "optional"))
    execution = check.table(document, "execution")
    check.known_keys("execution", execution, _EXECUTION_KEYS)
    definition = RunnerDefinition(
        entrypoint=check.entrypoint(execution),
        outputs=check.outputs(execution.get("outputs")),
        timeout_seconds=check.count("execution.timeout_seconds", execution.get("timeout_seconds")),
        resources=MappingProxyType(check.resources(check.table(document, "resources"))),
        params=MappingProxyType(check.params(check.table(document, "params"))),
        env=MappingProxyType(check.env(check.table(document, "env"))),
        image=check.text("image", document.get("image"), image_fault),
        abis=check.abis(document.get("abi")),
        recipe_entrypoint=check.text("recipe.entrypoint", recipe.get("entrypoint"), entrypoint_fault),
        recipe_optional=check.flag("recipe.optional", recipe.get("optional", False)),
        name=check.text("runner.name", runner.get("name"), _name_fault),
        schema_version=check.text("schema_version", document.get("schema_version"), _word_fault),
        checkpoints=check.checkpoints(check.table(document, "checkpoints")),
        raw=MappingProxyType(dict(document)),
    )
    if check.faults:
        raise DefinitionError(check.faults.faults)
    return definition


@dataclass(slots=True)
class _Checker:
    """Reads one value at a time; what it answers counts only if ``faults`` stays empty."""

    faults: FaultList

    def add(self, path: str, message: str) -> None:
        self.faults.add(path, _CODE, f"`{path}` {message}" if path else message)

    def known_keys(self, path: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in table:
            if key in known:
                continue
            where = f"{path}.{key}" if path else key
            if path and key in _TOP_KEYS:
                hint = f"`{key}` belongs above the first [table]"
            elif not path and key in _EXECUTION_KEYS:
                hint = f"write it under [execution]: `execution.{key}`"
            elif near := difflib.get_close_matches(key.lower(), known, n=1):
                hint = f"did you mean `{near[0]}`?"
            else:
                hint = f"known here: {', '.join(known)}"
            self.add(where, f"is not a key of the definition: {hint}")

    def table(self, document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = document.get(key, {})
        if isinstance(value, Mapping):
            return value
        self.add(key, f"must be a table, as in [{key}]")
        return {}

    def text(self, path: str, value: Any, fault_of: Callable[[str], str | None]) -> str | None:
        if value is None:
            return None
        fault = fault_of(value) if isinstance(value, str) else f"must be text in quotes, not {_kind(value)}"
        if fault:
            self.add(path, f"{fault}")
            return None
        return str(value)

    def flag(self, path: str, value: Any) -> bool:
        if not isinstance(value, bool):
            self.add(path, f"must be true or false, not {_kind(value)}")
        return value is True

    def count(self, path: str, value: Any) -> int | None:
        if value is None:
            return None
        if not isinstance(value, int | str | float | bool):
            self.add(path, f"must be a positive integer, not {_kind(value)}")
            return None
        if fault := count_fault(value):
            self.add(path, fault)
            return None
        return int(value)

    def abis(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            one = self.text("abi", value, _word_fault)
            return () if one is None else (one,)
        if len(value) > MAX_ABIS:
            self.add("abi", f"names {len(value)}; at most {MAX_ABIS}")
        for place, each in enumerate(value):
            self.text(f"abi[{place}]", each, _word_fault)
            if each in value[:place]:
                self.add(f"abi[{place}]", "is named twice")
        return tuple(each for each in value if isinstance(each, str))

    def entrypoint(self, execution: Mapping[str, Any]) -> str:
        value = execution.get("entrypoint")
        if isinstance(value, str) and value in ENTRYPOINTS:
            return value
        expected = " or ".join(f'"{name}"' for name in ENTRYPOINTS)
        found = f", not {_kind(value)}" if "entrypoint" in execution else "; it is missing"
        self.add("execution.entrypoint", f"must be {expected}{found}")
        return ""

    def outputs(self, value: Any) -> tuple[str, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            self.add(
                "execution.outputs", f'must be a list of patterns such as ["outputs/**"], not {_kind(value)}'
            )
            return ()
        if len(value) > MAX_PATTERNS:
            self.add("execution.outputs", f"has {len(value)} patterns; at most {MAX_PATTERNS}")
        for place, pattern in enumerate(value):
            self.text(f"execution.outputs[{place}]", pattern, pattern_fault)
        return tuple(pattern for pattern in value if isinstance(pattern, str))

    def resources(self, table: Mapping[str, Any]) -> dict[str, str | int]:
        self.known_keys("resources", table, RESOURCE_KEYS)
        found: dict[str, str | int] = {}
        if gpu_type := self.text("resources.gpu_type", table.get("gpu_type"), _gpu_type_fault):
            found["gpu_type"] = gpu_type
        for key in RESOURCE_COUNTS:
            if (amount := self.count(f"resources.{key}", table.get(key))) is not None:
                found[key] = amount
        return found

    def params(self, table: Mapping[str, Any]) -> dict[str, str | None]:
        if len(table) > MAX_PARAMS:
            self.add("params", f"declares {len(table)} parameters; at most {MAX_PARAMS}")
        found: dict[str, str | None] = {}
        spelled: dict[str, str] = {}
        for name, declaration in table.items():
            path = f"params.{name}"
            if not _PARAM_NAME.fullmatch(name):
                self.add(path, "must start with a letter or `_`, then letters, digits, `_`; at most 64")
            elif (other := spelled.setdefault(name.lower(), name)) != name:
                self.add(path, f"is also declared as `{other}`; names compare without case")
            if not isinstance(declaration, Mapping):
                self.add(path, f'must be a table: write [{path}] and under it default = "..."')
                continue
            self.known_keys(path, declaration, ("default",))
            found[name] = self.text(f"{path}.default", declaration.get("default"), _value_fault)
        return found

    def env(self, table: Mapping[str, Any]) -> dict[str, str]:
        if len(table) > MAX_VARIABLES:
            self.add("env", f"sets {len(table)} variables; at most {MAX_VARIABLES}")
        found = {}
        for name, value in table.items():
            if fault := _variable_fault(name):
                self.add(f"env.{name}", fault)
            text = self.text(f"env.{name}", value, _value_fault)
            if text is not None:
                found[name] = text
        return found

    def checkpoints(self, table: Mapping[str, Any]) -> CheckpointRules:
        self.known_keys("checkpoints", table, ("resume", "keep_last", "best"))
        best = table.get("best")
        return CheckpointRules(
            resume=self.flag("checkpoints.resume", table.get("resume", False)),
            keep_last=self.count("checkpoints.keep_last", table.get("keep_last")),
            best=None if best is None else self.best(best),
        )

    def best(self, rule: Any) -> Best | None:
        path = "checkpoints.best"
        if not isinstance(rule, Mapping):
            self.add(path, f'must be a table: {{metric = "eval_loss", mode = "min"}}, not {_kind(rule)}')
            return None
        self.known_keys(path, rule, ("metric", "mode", "keep"))
        metric = self.text(f"{path}.metric", rule.get("metric"), _metric_fault)
        mode = self.text(f"{path}.mode", rule.get("mode"), _mode_fault)
        keep = self.count(f"{path}.keep", rule.get("keep", 1))
        for key in ("metric", "mode"):
            if key not in rule:
                self.add(f"{path}.{key}", "is missing")
        return None if metric is None or mode is None or keep is None else Best(metric, Mode(mode), keep)


def _metric_fault(value: str) -> str | None:
    well_formed = METRIC_NAME.fullmatch(value)
    return None if well_formed else "must be 1 to 128 letters, digits, `_`, `.`, `@`, `/`, `-`"


def _mode_fault(value: str) -> str | None:
    return None if value in set(Mode) else 'must be "min" or "max"'


def _variable_fault(name: str) -> str | None:
    if not _VARIABLE_NAME.fullmatch(name):
        return "must start with a letter or `_`, then letters, digits, `_`; at most 128"
    if name.startswith(_OWN_PREFIXES):
        return "is a name the platform sets; names starting TRAINSHED_ or ENVLOOP_ are its own"
    if name in _PLACEMENT_VARIABLES:
        return "is set by the platform: it decides which GPUs a Trial gets"
    return None


def _value_fault(value: str) -> str | None:
    if "\x00" in value:
        return "must not contain NUL"
    if (size := len(value.encode())) > MAX_COMMAND_BYTES:
        return f"has {size} UTF-8 bytes; at most {MAX_COMMAND_BYTES}"
    return None


def _word_fault(value: str) -> str | None:
    if not value.strip() or not value.isprintable() or len(value) > _MAX_WORD_CHARS:
        return f"must be printable text of 1 to {_MAX_WORD_CHARS} characters"
    return None


def _name_fault(value: str) -> str | None:
    parts = value.split("/")
    well_formed = len(parts) == 2 and all(map(NAME_PART.fullmatch, parts))  # noqa: PLR2004 - namespace, name
    said = f"must be namespace/name, each of 1 to {MAX_NAME_PART_CHARS} letters, digits, `.`, `_`, `-`"
    return None if well_formed else said


def _gpu_type_fault(value: str) -> str | None:
    return None if GPU_TYPE.fullmatch(value) else "must be a GPU model such as H100"


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"`{value[:60]}`"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")
