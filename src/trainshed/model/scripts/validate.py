"""The rules of every key of gpu.yaml and of every argument, one reader each (sections a.1 and d).

A reader takes a value as it was given and answers it as it is used, or raises `ValueError` with the end of a
sentence that begins with the key. Values of YAML come as `Plain` where they were plain words, so that a
number that is meant as text keeps the form in which it was written.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.model.scripts.faults import shown
from trainshed.model.scripts.include_patterns import include_fault
from trainshed.model.scripts.secret_names import SECRET_NAME, refusal, reserved
from trainshed.model.scripts.spec import (
    MAX_HOURS,
    MAX_INCLUDES,
    MAX_NAME,
    MAX_SCRIPT,
    MAX_VRAM_GB,
    OWN_ENGINES,
)

MAX_WORDS, MAX_WORD_CHARS = 1000, 32_768
MAX_ENV, MAX_ENV_CHARS = 256, 32_768
MAX_DATA, MAX_SECRETS, MAX_LABELS = 64, 64, 64
MAX_OPTIONS_CHARS = 16_384
_PRINTED = 10**18
MAX_ATTEMPTS, MAX_INTERVAL_MIN = 50, 1440
MOUNT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MOUNT_RULE = "lower-case letters, digits and `.`, `_`, `-`, no more than 64 characters"
HUB_URI = re.compile(
    r"hf://datasets/([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?:@([A-Za-z0-9][A-Za-z0-9._%-]*))?(/\S*)?"
)
"""Repository, revision, and a path in it that begins with ``/``."""
_OURS = re.compile(
    r"(?:TRAINSHED|GPU_ROUTER)_.*|GPU_(?:OUTPUT|DATA|CHECKPOINT|RESUME)_DIR|GPU_CHECKPOINT_STORE"
)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,63}")
_PROVIDER = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class Plain:
    """A plain word of YAML that is no text: what it means, and how it was written."""

    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class DepsWish:
    """Where packages are to be taken from: ``auto``, ``none``, or a named file."""

    kind: str = "auto"
    file: str | None = None


@dataclass(frozen=True, slots=True)
class DataWish:
    """One dataset that was asked for; exactly one of path and uri."""

    mount: str
    path: str | None = None
    uri: str | None = None


def bare(value: Any) -> Any:
    """``value`` without what is remembered of its form, at every depth."""
    if isinstance(value, Plain):
        return value.value
    if isinstance(value, Mapping):
        return {key: bare(item) for key, item in value.items()}
    return [bare(item) for item in value] if isinstance(value, list | tuple) else value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {_kind(value)}")  # noqa: TRY004 - one error for every reader
    if "\0" in value:
        raise ValueError("holds a NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8") from None
    return value


def as_text(value: Any) -> str:
    """Text, or a number in the form in which it was written; a boolean as ``true`` or ``false``."""
    if isinstance(value, Plain):
        if value.value is None:
            raise ValueError('has no value; write "" for an empty text')
        return str(value.value).lower() if isinstance(value.value, bool) else value.text
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else text(value)


def name(value: Any) -> str | None:
    """A label for people, without control characters; ``None`` if nothing is left (G59)."""
    given = "".join(letter for letter in as_text(value) if letter.isprintable()).strip()
    if len(given) > MAX_NAME:
        raise ValueError(f"has {len(given)} characters; at most {MAX_NAME}")
    return given or None


def script(value: Any) -> str:
    given = text(value).strip()
    if not given:
        raise ValueError("is empty")
    if len(given) > MAX_SCRIPT:
        raise ValueError(f"has {len(given)} characters; at most {MAX_SCRIPT}")
    if given[0] in "-/~":
        raise ValueError(
            f"must not begin with `{given[0]}`; write a path relative to the project, as in `train.py`"
        )
    if ".." in re.split(r"[/\s]", given):
        raise ValueError("must not hold `..`; write a path below the project")
    return given


def words(value: Any) -> tuple[str, ...]:
    """A list of texts and numbers, or a text that is split like a shell does."""
    if isinstance(value, str):
        return split_words(value)
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list, or text that is split like a shell does, not {_kind(value)}")  # noqa: TRY004 - as above
    found = []
    for place, item in enumerate(value):
        try:
            found.append(item.text if isinstance(item, Plain) and item.value is not None else as_text(item))
        except ValueError as fault:
            raise ValueError(f"[{place}] {fault}") from None
    return _bounded(found)


def arguments(value: Any) -> tuple[str, ...]:
    """A list of texts (argument `args`, G53): unlike in gpu.yaml, nothing is split."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of texts, not {_kind(value)}")  # noqa: TRY004 - as above
    return words(list(value))


def split_words(line: str) -> tuple[str, ...]:
    """Words of a command line; raises `ValueError` for a quote without its end."""
    try:
        return _bounded(shlex.split(text(line)))
    except ValueError as error:
        if "quot" in str(error) or "escape" in str(error).lower():
            raise ValueError("has a quote or a backslash without its end") from None
        raise


def command(value: Any) -> tuple[str, ...]:
    found = words(value)
    if not found or not found[0].strip():
        raise ValueError("is empty")
    return found


def number(most: float) -> Callable[[Any], float]:
    """A number above 0, at most ``most``."""

    def read(value: Any) -> float:
        given = bare(value)
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise ValueError(f"must be a number above 0, at most {most:g}, not {_kind(value)}")  # noqa: TRY004 - as above
        if not 0 < given <= most:
            # A whole number may be larger than what any float holds, and longer than what is printed.
            told = f"{given:g}" if not isinstance(given, int) or abs(given) < _PRINTED else "that"
            raise ValueError(f"must be above 0 and at most {most:g}, not {told}")
        return float(given)

    return read


def whole(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        given = bare(value)
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            told = _kind(value)
            if isinstance(given, int) and not isinstance(given, bool):
                told = f"{given}" if abs(given) < _PRINTED else "that"
            raise ValueError(f"must be a whole number from {least} to {most}, not {told[:40]}")
        return given

    return read


def version(value: Any) -> int:
    given = bare(value)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError("must be 1")
    if given > 1:
        raise ValueError(f"is {given}, and this program reads version 1; upgrade it")
    return given


def boolean(value: Any) -> bool:
    given = bare(value)
    if not isinstance(given, bool):
        raise ValueError(f"must be true or false, not {_kind(value)}")  # noqa: TRY004 - as above
    return given


def provider(value: Any) -> str:
    given = text(value).strip().lower()
    if not _PROVIDER.fullmatch(given):
        raise ValueError("must be the name of a provider, as in `local` or `kaggle`")
    return given


def gpu(value: Any) -> str:
    given = as_text(value).strip()
    if not _WORD.fullmatch(given):
        raise ValueError("must be a type of GPU, as in `T4`")
    return given


def env(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a map of names and values, not {_kind(value)}")  # noqa: TRY004 - as above
    if len(value) > MAX_ENV:
        raise ValueError(f"has {len(value)} variables; at most {MAX_ENV}")
    found = {}
    for key, item in value.items():
        if not isinstance(key, str) or not SECRET_NAME.fullmatch(key):
            raise ValueError(f"has the name `{shown(str(key), 80)}`; letters, digits and `_`, no digit first")
        try:
            given = as_text(item)
        except ValueError as fault:
            raise ValueError(f"{key} {fault}") from None
        if len(given) > MAX_ENV_CHARS:
            raise ValueError(f"{key} has {len(given)} characters; at most {MAX_ENV_CHARS}")
        if _OURS.fullmatch(key):
            raise ValueError(f"{key} is set by us in every Job; choose another name")
        if said := refusal(key, given):
            raise ValueError(f"is refused: {said}")
        found[key] = given
    return found


def secrets(value: Any) -> tuple[str, ...]:
    found = []
    for each in _listed(value, MAX_SECRETS):
        given = text(bare(each))
        if not SECRET_NAME.fullmatch(given):
            raise ValueError(f"has `{shown(given, 80)}`; a name has letters, digits and `_`, no digit first")
        if said := reserved(given):
            raise ValueError(f"is refused: {said}")
        if _OURS.fullmatch(given):
            raise ValueError(f"has {given}, which is set by us in every Job")
        found.append(given)
    return tuple(dict.fromkeys(found))


def deps(value: Any) -> DepsWish:
    if isinstance(value, Mapping):
        return _deps_map(value)
    given = text(value).strip()
    if given in {"auto", "none"}:
        return DepsWish(given)
    if given.endswith((".txt", ".in")):
        return DepsWish("requirements", relative_path(given))
    if given.endswith(".toml"):
        return DepsWish("pyproject", relative_path(given))
    raise ValueError("must be auto, none, a file that ends in .txt, .in or .toml, or a map of kind and file")


def _deps_map(value: Mapping[str, Any]) -> DepsWish:
    kinds = ("auto", "requirements", "pyproject", "none")
    if strange := [key for key in value if key not in {"kind", "file"}]:
        raise ValueError(f"has the key `{shown(strange[0], 40)}`; it knows kind and file")
    kind = bare(value.get("kind", "auto"))
    if kind not in kinds:
        raise ValueError(f"has a kind that is none of {', '.join(kinds)}")
    if (file := value.get("file")) is None:
        return DepsWish(kind)
    given = relative_path(text(bare(file)))
    if kind == "none":
        raise ValueError("has a file, and none of its packages are wanted (kind: none)")
    if kind == "auto":
        kind = "pyproject" if given.endswith(".toml") else "requirements"
    return DepsWish(kind, given)


def relative_path(value: Any) -> str:
    """A relative path that does not leave where it is looked up."""
    given = text(value).strip()
    if not given or given[0] in "/~" or ".." in given.split("/"):
        raise ValueError(f"has `{shown(given, 80)}`; write a path relative to the project, without `..`")
    return given


def data_argument(entry: Any) -> DataWish:
    """``[NAME=]PATH`` or ``[NAME=]hf://datasets/…`` (e.11)."""
    given = text(entry)
    before, equals, after = given.partition("=")
    named = bool(equals) and "/" not in before and ":" not in before
    source = after if named else given
    if not source:
        raise ValueError(f"has `{shown(given, 80)}`, which names no path")
    mount = before if named else default_mount(source)
    if not MOUNT.fullmatch(mount):
        raise ValueError(f"has the name `{shown(mount, 80)}`; {_MOUNT_RULE}")
    return _data(mount, **({"uri": source} if "://" in source else {"path": source}))


def data_arguments(value: Any) -> tuple[DataWish, ...]:
    return _distinct([data_argument(entry) for entry in _listed(value, MAX_DATA, alone=False)])


def default_mount(source: str) -> str:
    """The base name in lower case, what a name cannot hold replaced by ``-``."""
    if match := HUB_URI.fullmatch(source):
        source = match[3] if (match[3] or "").strip("/") else match[1]
    base = source.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]", "-", base).lstrip("._-")[:64]


def data_entries(value: Any) -> tuple[DataWish, ...]:
    """The list of gpu.yaml: maps of mount and path, or mount and uri."""
    found = []
    for place, entry in enumerate(_listed(value, MAX_DATA, alone=False)):
        if not isinstance(entry, Mapping):
            raise ValueError(f"[{place}] must be a map of mount and path, or of mount and uri")  # noqa: TRY004 - as above
        if strange := [key for key in entry if key not in {"mount", "path", "uri"}]:
            raise ValueError(f"[{place}] has the key `{shown(strange[0], 40)}`; it knows mount, path and uri")
        sources = {key: as_text(entry[key]) for key in ("path", "uri") if key in entry}
        if "mount" not in entry or len(sources) != 1:
            raise ValueError(f"[{place}] must have a mount and exactly one of path and uri")
        mount = as_text(entry["mount"])
        if not MOUNT.fullmatch(mount):
            raise ValueError(f"[{place}] has the mount `{shown(mount, 80)}`; {_MOUNT_RULE}")
        found.append(_data(mount, **sources))
    return _distinct(found)


def _data(mount: str, path: str | None = None, uri: str | None = None) -> DataWish:
    if uri is not None:
        match = HUB_URI.fullmatch(uri)
        if match is None or ".." in (match[3] or "").split("/"):
            raise ValueError(
                f"has `{shown(uri, 120)}` for {mount}; of the hub it takes hf://datasets/OWNER/REPO[@REV][/FOLDER]"
            )
    elif not (path or "").strip():
        raise ValueError(f"has no path for {mount}")
    return DataWish(mount, path, uri)


def _distinct(found: list[DataWish]) -> tuple[DataWish, ...]:
    seen: set[str] = set()
    for each in found:
        if each.mount in seen:
            raise ValueError(
                f"names `{each.mount}` twice; give each dataset a name of its own, as in NAME=PATH"
            )
        seen.add(each.mount)
    return tuple(found)


def include(value: Any) -> tuple[str, ...]:
    found = []
    for entry in _listed(value, MAX_INCLUDES):
        given = text(entry.text if isinstance(entry, Plain) and entry.value is not None else entry)
        if fault := include_fault(given):
            raise ValueError(f"has `{shown(given, 80)}`, which {fault}")
        found.append(given)
    return tuple(dict.fromkeys(found))


def labels(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or len(value) > MAX_LABELS:
        raise ValueError(f"must be a map of at most {MAX_LABELS} texts")
    found = {}
    for key, item in value.items():
        text(key)
        given = as_text(item)
        if len(key) > MAX_NAME or len(given) > MAX_SCRIPT:
            raise ValueError(
                f"has `{shown(key, 40)}`, which is longer than {MAX_NAME} and {MAX_SCRIPT} characters"
            )
        found[key] = given
    return found


def provider_options(value: Any) -> Mapping[str, Mapping[str, object]]:
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
        raise ValueError("must be a map from providers to maps")
    found = {text(key).lower(): bare(each) for key, each in value.items()}
    try:
        written = json.dumps(found, ensure_ascii=False, allow_nan=False)
        written.encode()
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"holds what JSON cannot say: {error}") from None
    if len(written) > MAX_OPTIONS_CHARS:
        raise ValueError(f"has more than {MAX_OPTIONS_CHARS} characters as JSON")
    for provider_name in sorted(OWN_ENGINES & found.keys()):
        if odd := sorted(found[provider_name].keys() - {"python"}):
            raise ValueError(f"has `{shown(odd[0], 40)}` for `{provider_name}`, which takes `python` alone")
        python = found[provider_name].get("python")
        # Where it would be relative to is another folder in the Job.
        if isinstance(python, str) and "/" in python and not python.startswith("/"):
            raise ValueError(
                f"names `{shown(python, 80)}` for `{provider_name}`: an interpreter is the name of a program "
                "(`python3.12`) or a whole path (`/home/ann/project/.venv/bin/python`)"
            )
    return found


def _listed(value: Any, most: int, *, alone: bool = True) -> list[Any]:
    """A list; with ``alone`` one text stands for a list of it."""
    given = [value] if alone and isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise ValueError(f"must be a list, not {_kind(value)}")  # noqa: TRY004 - one error for every reader
    if len(given) > most:
        raise ValueError(f"has {len(given)} entries; at most {most}")
    return list(given)


def _bounded(found: list[str]) -> tuple[str, ...]:
    if len(found) > MAX_WORDS or any(len(word) > MAX_WORD_CHARS for word in found):
        raise ValueError(
            f"has more than {MAX_WORDS} words, or a word of more than {MAX_WORD_CHARS} characters"
        )
    return tuple(found)


def _kind(value: Any) -> str:
    given = bare(value)
    named = (
        (bool, "a boolean"),
        (int | float, "a number"),
        (str, "text"),
        (Mapping, "a map"),
        (list, "a list"),
    )
    return next((words for kind, words in named if isinstance(given, kind)), "nothing")


FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "version": version,
    "name": name,
    "script": script,
    "command": command,
    "args": words,
    "vram": number(MAX_VRAM_GB),
    "vram_gb": number(MAX_VRAM_GB),
    "hours": number(MAX_HOURS),
    "provider": provider,
    "gpu": gpu,
    "env": env,
    "secrets": secrets,
    "deps": deps,
    "data": data_entries,
    "include": include,
    "checkpoint_interval_min": whole(0, MAX_INTERVAL_MIN),
    "interactive": boolean,
    "requires_approval": boolean,
    "smoke": boolean,
    "max_attempts": whole(1, MAX_ATTEMPTS),
    "labels": labels,
    "provider_options": provider_options,
}
"""The keys of gpu.yaml."""
ARGUMENTS: Mapping[str, Callable[[Any], Any]] = {
    "script": script,
    "args": arguments,
    "hours": FIELDS["hours"],
    "vram_gb": FIELDS["vram_gb"],
    "gpu": gpu,
    "provider": provider,
    "name": name,
    "env": env,
    "data": data_arguments,
    "include": include,
    "smoke": boolean,
}
"""The arguments that replace or add to them (a.1)."""
LISTS = frozenset({"args", "data", "include"})
