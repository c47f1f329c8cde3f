"""A Ray runtime environment as its owner wrote it: parsed as Ray does it, checked before the start (C47)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from trainshed.model.training.codes import SpecFaults
from trainshed.model.training.field_table import MAX_RUNTIME_ENV_BYTES
from trainshed.model.training.sections import clean, kind_of, shown_short
from trainshed.model.training.spec import Kind
from trainshed.model.training.variables import RESERVED, env_name_fault
from trainshed.model.training.yaml_documents import YamlFault, read_yaml

KEYS = (
    "working_dir",
    "py_modules",
    "py_executable",
    "excludes",
    "pip",
    "uv",
    "conda",
    "container",
    "image_uri",
    "env_vars",
    "config",
    "worker_process_setup_hook",
    "java_jars",
)
INSTALLERS = ("pip", "uv", "conda")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL_REQUIREMENT = re.compile(r"\s*(?:[./~]|-r\b|-c\b|--requirement\b|--constraint\b|-e\s*[./~]|.*\bfile:)")
_CONDA_FILE = re.compile(r".*(?:/|\.ya?ml$)")
_MAX_NUMBER_CHARS = 400


def read_runtime_env(text: str, path: str, faults: SpecFaults) -> Mapping[str, Any]:
    """What ``text`` says; faults carry the path of the field and of the key in it. Blank is empty."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_RUNTIME_ENV_BYTES:
        said = f"the runtime environment has {size} bytes; at most {MAX_RUNTIME_ENV_BYTES}"
        faults.add(path, "RUNTIME_ENV_YAML", said)
        return {}
    try:
        value = read_yaml(text, ray_scalar).value
    except YamlFault as error:
        faults.add(path, "RUNTIME_ENV_YAML", f"not YAML: {error}")
        return {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        faults.add(path, "RUNTIME_ENV_NOT_A_MAP", f"it must be a map of Ray's keys, not {kind_of(value)}")
        return {}
    for key in value:
        if key not in KEYS:
            said = f"Ray has no runtime environment key `{clean(key)}`; known: {', '.join(KEYS)}"
            faults.add(f"{path}.{clean(key)}", "RUNTIME_ENV_KEY", said)
    given = [key for key in INSTALLERS if key in value]
    if len(given) > 1:
        said = f"{' and '.join(given)} cannot be used together"
        faults.add(path, "RUNTIME_ENV_CONFLICT", said)
    for where, local in _local_paths(value):
        said = f"{shown_short(local)} is a path of this machine, which no other node has"
        faults.add(f"{path}.{where}", "RUNTIME_ENV_LOCAL_PATH", said)
    _variables(value.get("env_vars"), f"{path}.env_vars", faults)
    return value


def runtime_env(text: str) -> Mapping[str, Any]:
    """The runtime environment of a text that `read_runtime_env` found nothing wrong with."""
    return read_runtime_env(text, "runtime_env_yaml", SpecFaults())


def ray_scalar(text: str) -> Any:
    """What a plain word means to Ray, which reads YAML 1.1: `yes` is true, `1:30` is 90."""
    import yaml  # noqa: PLC0415 - as in `yaml_documents`

    if len(text) > _MAX_NUMBER_CHARS:
        return text
    resolver: Any = yaml.resolver.Resolver()
    node = yaml.ScalarNode(resolver.resolve(yaml.ScalarNode, text, (True, False)), text)
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{shown_short(text)} cannot be read: {str(error).splitlines()[0]}") from None
    if isinstance(value, date):
        raise ValueError(f"{shown_short(text)} is a date in YAML; put it into quotes")  # noqa: TRY004 - a value
    if isinstance(value, float) and not (value == value and abs(value) != float("inf")):  # noqa: PLR0124 - NaN
        raise ValueError(f"{shown_short(text)} is not a number that can be used here")
    return value


def _local_paths(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in ("working_dir", "py_modules", "java_jars"):
        for where, text in _texts(value, key):
            if not _URI.match(text) or text.lower().startswith("file:"):
                yield where, text
    for key in ("pip", "uv"):
        given = value.get(key)
        if isinstance(given, str):
            yield key, given
        packages = given.get("packages") if isinstance(given, dict) else given
        for where, text in _texts({key: packages}, key):
            if isinstance(packages, list) and _LOCAL_REQUIREMENT.match(text):
                yield where, text
    conda = value.get("conda")
    if isinstance(conda, str) and _CONDA_FILE.match(conda):
        yield "conda", conda


def _texts(value: Mapping[str, Any], key: str) -> Iterator[tuple[str, str]]:
    given = value.get(key)
    if isinstance(given, str):
        yield key, given
    elif isinstance(given, list):
        for place, text in enumerate(given):
            if isinstance(text, str):
                yield f"{key}[{place}]", text


def _variables(value: Any, path: str, faults: SpecFaults) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        faults.add(path, "RUNTIME_ENV_VALUE", f"`env_vars` must be a map, not {kind_of(value)}")
        return
    for name, text in value.items():
        where = f"{path}.{clean(name)}"
        if fault := env_name_fault(name):
            faults.add(where, "ENV_NAME_INVALID", f"{shown_short(name)}: {fault}")
        elif name in RESERVED[Kind.RAY]:
            said = f"{name} is given to every replica by the platform and cannot be set"
            faults.add(where, "ENV_NAME_RESERVED", said)
        if not isinstance(text, str):
            faults.add(where, "RUNTIME_ENV_VALUE", f"a variable is text; this is {kind_of(text)}")
