"""Judging the spec of a script Job that a client sent: every fault at once, each with its path.

Clients have judged gpu.yaml and arguments by the same rules (`trainshed.model.scripts.validate`); nothing
here believes that they did.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from trainshed.model.content import SHA256
from trainshed.model.errors import Fault, FaultList
from trainshed.model.runner_tree import path_fault
from trainshed.model.scripts.document import KIND
from trainshed.model.scripts.faults import shown
from trainshed.model.scripts.spec import (
    MAX_BUNDLE_BYTES,
    MAX_SCRIPT,
    Bundle,
    DataItem,
    Deps,
    DepsKind,
    ScriptSpec,
)
from trainshed.model.scripts.validate import FIELDS, HUB_URI, MAX_DATA, MOUNT, text, words

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_SPEC, _REQUEST = "INVALID_SPEC", "INVALID_REQUEST"
_MAX_PATH, _MAX_HOST = 4096, 128
_MAX_LINES, _MAX_LINE = 1000, 1000
_MAX_REQUIREMENTS = 2000
_MAX_COUNT = 2**62
_REQUEST_KEYS = ("type", "request_id", "spec")
_SHARED = (
    "hours",
    "vram_gb",
    "gpu",
    "provider",
    "secrets",
    "smoke",
    "checkpoint_interval_min",
    "interactive",
    "requires_approval",
    "max_attempts",
    "labels",
    "provider_options",
)
"""Keys that mean in a spec what they mean in gpu.yaml."""


def is_script(document: Any) -> bool:
    """Whether a submission is one of a script Job."""
    spec = document.get("spec") if isinstance(document, Mapping) else None
    return isinstance(spec, Mapping) and spec.get("kind") == KIND


def read_request(document: Any, faults: FaultList) -> tuple[str | None, ScriptSpec | None]:
    """The request id and the spec of a submission; ``None`` for what cannot be read. Faults are added."""
    if not isinstance(document, Mapping):
        faults.add("", _REQUEST, "the body must be a JSON object")
        return None, None
    _known(document, _REQUEST_KEYS, "", faults)
    if document.get("type", "train") != "train":
        faults.add("type", "INVALID_JOB_TYPE", "`type` must be `train`")
    request_id = document.get("request_id")
    if request_id is not None and not (isinstance(request_id, str) and REQUEST_ID.fullmatch(request_id)):
        said = "`request_id` must have 1 to 64 letters, digits, `.`, `_`, `:` or `-`"
        faults.add("request_id", "INVALID_REQUEST_ID", said)
        request_id = None
    return request_id, read_spec(document.get("spec"), faults)


def read_spec(document: Any, faults: FaultList, path: str = "spec") -> ScriptSpec | None:
    """The spec that a document means; ``None``, and faults are added, where it means none."""
    if not isinstance(document, Mapping):
        faults.add(path, _SPEC, f"`{path}` must be an object")
        return None
    reading = _Reading(document, faults, path)
    spec = reading.spec()
    return spec if not reading.found else None


class _Reading:
    """One spec, key by key."""

    def __init__(self, document: Mapping[str, Any], faults: FaultList, path: str) -> None:
        self._document = {key: value for key, value in document.items() if value is not None}
        self._faults = faults
        self._path = path
        self.found = 0

    def spec(self) -> ScriptSpec | None:
        self.found += _known(
            self._document, ("kind", *(each.name for each in fields(ScriptSpec))), self._path, self._faults
        )
        if self._document.get("kind", KIND) != KIND:
            self.fault("kind", f"must be `{KIND}`")
        values: dict[str, Any] = {
            "project_dir": self.read("project_dir", _project_dir, code=_REQUEST),
            "bundle": self._bundle(),
            "workdir": self.read("workdir", _workdir),
            "name": self.read("name", FIELDS["name"]) or "",
            "command": self.read("command", _command),
            "args": self.read("args", _texts),
            "env": self._env(),
            "deps": self._deps(),
            "data": self._data(),
            "host": self.read("host", _host),
            **{key: self.read(key, FIELDS[key], code=self._code(key)) for key in _SHARED},
        }
        values["script"] = self.read("script", lambda value: _script(value, values["workdir"] or ""))
        if ("script" in self._document) == ("command" in self._document):
            self.fault("script", "exactly one of `script` and `command` must be given", whole=True)
        if self.found:
            return None
        given = {key: value for key, value in values.items() if value is not None}
        spec = ScriptSpec(**given)
        return spec if spec.name else ScriptSpec(**{**given, "name": _default_name(spec)})

    def fault(self, key: str, message: str, *, code: str = _SPEC, whole: bool = False) -> None:
        """Note a fault; ``message`` is the end of a sentence that begins with the key, unless it is whole."""
        self.found += 1
        said = message if whole else f"`{key.rpartition('.')[2]}` {message}"
        self._faults.add(f"{self._path}.{key}", code, said)

    def read(self, key: str, reader: Callable[[Any], Any], *, code: str = _SPEC) -> Any:
        """The value of a key; ``None`` where it is absent or wrong."""
        if key not in self._document:
            if key == "project_dir":
                self.fault(key, "is missing; give the absolute path of the project", code=code)
            return None
        try:
            return reader(self._document[key])
        except ValueError as fault:
            self.fault(key, str(fault), code=code)
            return None

    @staticmethod
    def _code(key: str) -> str:
        return _REQUEST if key == "secrets" else _SPEC

    def _env(self) -> Mapping[str, str] | None:
        """Each variable by itself, so that every one that is refused is told."""
        given = self._document.get("env")
        if not isinstance(given, Mapping) or not given:
            return self.read("env", FIELDS["env"], code=_REQUEST)  # type: ignore[no-any-return]  # its reader says so
        found: dict[str, str] = {}
        if len(given) > 1:
            self.read("env", _few, code=_REQUEST)
        for name, value in given.items():
            try:
                found.update(FIELDS["env"]({name: value}))
            except ValueError as fault:
                self.fault(f"env.{shown(str(name), 80)}", f"`env` {fault}", code=_REQUEST, whole=True)
        return found

    def _bundle(self) -> Bundle | None:
        given = self._document.get("bundle")
        if not isinstance(given, Mapping):
            self.fault("bundle", "must be an object with what was packed")
            return None
        before = self.found
        self.found += _known(
            given, [each.name for each in fields(Bundle)], f"{self._path}.bundle", self._faults
        )
        digest = given.get("manifest_sha256")
        if not isinstance(digest, str) or not SHA256.fullmatch(digest):
            self.fault("bundle.manifest_sha256", "must be 64 lower-case hex digits")
        values: dict[str, Any] = {"manifest_sha256": digest}
        for key in ("files", "bytes", "left_out_not_shown", "untracked"):
            values[key] = self._count(given, f"bundle.{key}", required=key in {"files", "bytes"})
        for key in ("included", "left_out", "warnings"):
            values[key] = self._lines(given.get(key), f"bundle.{key}")
        for key in ("hint", "source"):
            if (value := given.get(key)) is not None:
                values[key] = self._lines([value], f"bundle.{key}")
                values[key] = values[key][0] if values[key] else None
        if (values["bytes"] or 0) > MAX_BUNDLE_BYTES:
            self.fault("bundle.bytes", f"is over the limit of {MAX_BUNDLE_BYTES} bytes")
        if self.found > before:
            return None
        return Bundle(**{key: value for key, value in values.items() if value is not None})

    def _deps(self) -> Deps | None:
        given = self._document.get("deps")
        if given is None:
            return None
        if not isinstance(given, Mapping):
            self.fault("deps", "must be an object of kind, file and packages")
            return None
        before = self.found
        self.found += _known(given, [each.name for each in fields(Deps)], f"{self._path}.deps", self._faults)
        kinds = [str(kind) for kind in DepsKind]
        kind, file = given.get("kind", DepsKind.NONE), given.get("file")
        if kind not in kinds:
            self.fault("deps.kind", f"must be one of {', '.join(kinds)}")
        elif (kind == DepsKind.NONE) != (file is None):
            self.fault("deps.file", "belongs to the kinds requirements and pyproject, and they need one")
        if file is not None and (fault := path_fault(file) if isinstance(file, str) else "is no text"):
            self.fault("deps.file", fault)
        packages = self._lines(given.get("packages"), "deps.packages", most=_MAX_REQUIREMENTS)
        wanted = given.get("python_requires")
        if wanted is not None and not self._lines([wanted], "deps.python_requires"):
            return None
        return None if self.found > before else Deps(DepsKind(kind), file, packages, wanted)

    def _data(self) -> tuple[DataItem, ...] | None:
        given = self._document.get("data")
        if given is None:
            return None
        if not isinstance(given, list) or len(given) > MAX_DATA:
            self.fault("data", f"must be a list of at most {MAX_DATA} datasets")
            return None
        found = [self._item(item, f"data[{place}]") for place, item in enumerate(given)]
        mounts = [item.mount for item in found if item is not None]
        for mount in sorted({mount for mount in mounts if mounts.count(mount) > 1}):
            self.fault("data", f"names `{mount}` twice")
        return tuple(item for item in found if item is not None)

    def _item(self, given: Any, where: str) -> DataItem | None:
        if not isinstance(given, Mapping):
            self.fault(where, "must be an object of mount and manifest_sha256, or of mount and uri")
            return None
        before = self.found
        self.found += _known(
            given, [each.name for each in fields(DataItem)], f"{self._path}.{where}", self._faults
        )
        mount, digest, uri = (given.get(key) for key in ("mount", "manifest_sha256", "uri"))
        if not isinstance(mount, str) or not MOUNT.fullmatch(mount):
            self.fault(f"{where}.mount", "must have lower-case letters, digits, `.`, `_`, `-`; at most 64")
        if (digest is None) == (uri is None):
            self.fault(where, "must have exactly one of manifest_sha256 and uri")
        elif digest is not None and not (isinstance(digest, str) and SHA256.fullmatch(digest)):
            self.fault(f"{where}.manifest_sha256", "must be 64 lower-case hex digits")
        elif uri is not None and not (
            isinstance(uri, str) and _is_line(uri, _MAX_LINE) and HUB_URI.fullmatch(uri)
        ):
            self.fault(f"{where}.uri", "must be hf://datasets/OWNER/REPO[@REV][/FOLDER]")
        single, path = given.get("single_file"), given.get("path", "")
        if single is not None and (not isinstance(single, str) or "/" in single or path_fault(single)):
            self.fault(f"{where}.single_file", "must be the name of a file")
        if path and not self._lines([path], f"{where}.path", longest=_MAX_PATH):
            return None
        files, size = (self._count(given, f"{where}.{key}", required=False) for key in ("files", "bytes"))
        if self.found > before:
            return None
        return DataItem(str(mount), digest, single, files or 0, size or 0, uri, path)

    def _count(self, given: Mapping[str, Any], key: str, *, required: bool) -> int | None:
        value = given.get(key.rpartition(".")[2])
        if value is None and not required:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
            self.fault(key, "must be a whole number, 0 or more")
            return None
        return value

    def _lines(
        self, given: Any, key: str, *, most: int = _MAX_LINES, longest: int = _MAX_LINE
    ) -> tuple[str, ...]:
        if given is None:
            return ()
        fits = isinstance(given, list) and len(given) <= most
        if not fits or not all(isinstance(line, str) and _is_line(line, longest) for line in given):
            self.fault(key, f"must be text without NUL, of at most {longest} characters a line")
            return ()
        return tuple(given)


def _is_line(line: str, longest: int) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return len(line) <= longest and "\0" not in line


def _known(given: Mapping[str, Any], known: Collection[str], path: str, faults: FaultList) -> int:
    """How many keys are unknown; each is noted with the nearest known one."""
    strange = [str(key) for key in given if key not in known]
    for key in strange:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"
        where = f"{path}.{shown(key, 80)}" if path else shown(key, 80)
        faults.faults.append(Fault(where, _SPEC, f"unknown key `{shown(key, 80)}`: {hint}"))
    return len(strange)


def _project_dir(value: Any) -> str:
    given = text(value)
    if not given.startswith("/") or len(given) > _MAX_PATH:
        raise ValueError(f"must be an absolute path of at most {_MAX_PATH} characters")
    if posixpath.normpath(given) != given:
        raise ValueError("must be written without `..`, `.`, doubled or closing `/`")
    return given


def _workdir(value: Any) -> str:
    given = text(value)
    if given and (fault := path_fault(given)):
        raise ValueError(fault)
    return given


def _script(value: Any, workdir: str) -> str:
    given = text(value)
    if not given.strip() or len(given) > MAX_SCRIPT:
        raise ValueError(f"must be a path of 1 to {MAX_SCRIPT} characters")
    if given[0] in "-/~":
        raise ValueError(f"must not begin with `{given[0]}`; write a path relative to the project")
    if (fault := path_fault(shipped_path(workdir, given))) is not None:
        raise ValueError(f"must stay inside the project: it {fault}")
    return given


def shipped_path(workdir: str, relative: str) -> str:
    """Where in the shipped tree a path lies that is relative to ``workdir``; ``..`` leads out of it."""
    return posixpath.normpath(posixpath.join(workdir, relative))


def _command(value: Any) -> tuple[str, ...]:
    found = _texts(value)
    if not found or not found[0].strip():
        raise ValueError("is empty")
    return found


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError("must be a list of texts")
    return words(value)


def _few(value: Mapping[str, Any]) -> None:
    """Judge the number of variables alone."""
    FIELDS["env"](dict.fromkeys((f"V{place}" for place in range(len(value))), ""))


def _host(value: Any) -> str:
    given = text(value)
    if not given.isprintable() or len(given) > _MAX_HOST:
        raise ValueError(f"must be printable, at most {_MAX_HOST} characters")
    return given


def _default_name(spec: ScriptSpec) -> str:
    """The stem of the script, or the first word of the command (a.1)."""
    first = spec.script or next(iter(spec.command or ("job",)))
    stem = posixpath.splitext(posixpath.basename(first))[0]
    return "".join(letter for letter in stem if letter.isprintable())[:80] or "job"
