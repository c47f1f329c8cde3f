"""What a Job asks of the runner: the manifest beside it, and its environment."""

from __future__ import annotations

import json
import os
import posixpath
from typing import Any, NamedTuple

MANIFEST = "manifest.json"
CODE, STATE = "code", ".gpu"
ENVIRONMENT_FAILED = 90
"""The exit status that blames no program: a dependency or a dataset could not be had."""
_GRACE = 10.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Broken(Exception):
    """The Job cannot even be begun, whose program is not to blame."""


class Job(NamedTuple):
    """A manifest, checked.

    These keys are read; others are for people and for later versions::

        {"manifest_version": 1,
         "entrypoint": {"script": "train.py"|null, "command": ["bash", "run.sh"]|null, "args": ["1"],
                        "workdir": "place of project_dir below code/, '' for its top"},
         "deps": {"kind": "none|requirements|pyproject", "file": "path below code/"|null,
                  "packages": ["numpy>=1"], "python_requires": ">=3.9"|null},
         "data": [{"mount": "NAME", "uri": "hf://datasets/OWNER/REPO[@REV][/SUB]"}],
         "checkpoint_interval_min": 20}

    ``data`` lists what the runner fetches; packed datasets lie in the data folder already. ``script`` and the
    words of ``command`` are relative to ``workdir``; ``deps.file`` is not. Of script and command there is
    one.
    """

    script: str | None
    command: tuple[str, ...]
    args: tuple[str, ...]
    workdir: str
    deps: Deps
    data: tuple[tuple[str, str], ...]
    """Mount, address."""
    interval: float
    """Seconds between stored checkpoints; 0: only when asked and at the end."""


class Deps(NamedTuple):
    """Packages to install before the program runs."""

    kind: str
    file: str | None
    packages: tuple[str, ...]
    python_requires: str | None


class Place(NamedTuple):
    """Where things are and how the runner is to behave, by its environment."""

    work: str
    job: str
    attempt: int
    outputs: str
    data: str
    checkpoints: str
    store: str
    engine_choice: str | None
    """The checkpoint that the engine chose, as a folder of a store."""
    cache: str | None
    """Where environments of all Jobs are kept."""
    grace: float
    """Seconds a program has between SIGTERM and SIGKILL."""
    interval: float | None
    hub_token: str | None
    hub_token_for: str | None
    """Where the hub is that may be shown that token; without it the hub's own address."""

    def state(self, name: str) -> str:
        """A file of the runner's own."""
        return os.path.join(self.work, STATE, name)

    @property
    def code(self) -> str:
        """The shipped tree."""
        return os.path.join(self.work, CODE)


def place(work: str, environ: Mapping[str, str]) -> Place:
    """Read the environment. What makes no sense there is taken as not said."""

    def folder(variable: str, name: str) -> str:
        return os.path.join(work, environ.get(variable) or name)

    def number(variable: str) -> float | None:
        try:
            value = float(environ[variable])
        except (KeyError, ValueError):
            return None
        return value if 0 <= value < float("inf") else None

    grace = number("TRAINSHED_STOP_GRACE_S")
    return Place(
        work=work,
        job=environ.get("TRAINSHED_JOB_ID", ""),
        attempt=int(number("TRAINSHED_ATTEMPT") or 1),
        outputs=folder("GPU_OUTPUT_DIR", "outputs"),
        data=folder("GPU_DATA_DIR", "data"),
        checkpoints=folder("GPU_CHECKPOINT_DIR", "checkpoints"),
        store=folder("GPU_CHECKPOINT_STORE", "checkpoint_store"),
        engine_choice=environ.get("GPU_RESUME_DIR") or None,
        cache=environ.get("TRAINSHED_ENV_CACHE") or None,
        grace=_GRACE if grace is None else grace,
        interval=number("TRAINSHED_CHECKPOINT_INTERVAL_S"),
        hub_token=environ.get("TRAINSHED_HUB_TOKEN") or None,
        hub_token_for=environ.get("TRAINSHED_HUB_ENDPOINT") or None,
    )


HIDDEN = (
    "TRAINSHED_ENV_CACHE",
    "TRAINSHED_STOP_GRACE_S",
    "TRAINSHED_CHECKPOINT_INTERVAL_S",
    "TRAINSHED_HUB_TOKEN",
    "TRAINSHED_HUB_ENDPOINT",
    "GPU_CHECKPOINT_STORE",
    "GPU_RESUME_DIR",
)
"""Variables that are for the runner and not for the program."""


def read(work: str) -> Job:
    """The Job of a work folder. Raises `Broken`, saying which key is wrong."""
    path = os.path.join(work, MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError) as problem:
        raise Broken(f"{MANIFEST} cannot be read: {problem}") from None
    fields = _Fields(document, "")
    version = document.get("manifest_version", 1) if isinstance(document, dict) else None
    if version != 1:
        raise Broken(f"{MANIFEST}: manifest_version is {version!r}; this runner reads 1")
    entry, deps = _Fields(fields.get("entrypoint", dict, {}), "entrypoint."), fields.get("deps", dict, None)
    needs = _Fields(deps or {}, "deps.")
    job = Job(
        script=entry.get("script", str, None) or None,
        command=entry.words("command"),
        args=entry.words("args"),
        workdir=inside(entry.get("workdir", str, "") or "", "entrypoint.workdir"),
        deps=Deps(
            kind=needs.get("kind", str, "none") or "none",
            file=needs.get("file", str, None) or None,
            packages=needs.words("packages"),
            python_requires=needs.get("python_requires", str, None) or None,
        ),
        data=tuple(_data(fields.get("data", list, None) or [])),
        interval=60.0 * _minutes(fields.get("checkpoint_interval_min", (int, float), 20)),
    )
    if bool(job.script) == bool(job.command):
        raise Broken(f"{MANIFEST}: entrypoint must have one of script and command")
    if job.deps.kind not in ("none", "requirements", "pyproject"):
        raise Broken(f"{MANIFEST}: deps.kind is {job.deps.kind!r}")
    if job.deps.kind == "requirements":
        if not job.deps.file:
            raise Broken(f"{MANIFEST}: deps.file is missing")
        inside(job.deps.file, "deps.file")
    return job


class _Fields:
    """A JSON object whose keys are taken out with their types checked."""

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, dict):
            raise Broken(f"{MANIFEST}: {where or 'the document'} must be an object")
        self._document, self._where = document, where

    def get(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = self._document.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise Broken(f"{MANIFEST}: {self._where}{key} has the wrong type")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        value = self.get(key, list, [])
        if not isinstance(value, list) or not all(
            isinstance(word, str) and "\0" not in word for word in value
        ):
            raise Broken(f"{MANIFEST}: {self._where}{key} must be a list of strings")
        return tuple(value)


def _minutes(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < float("inf") else 20.0


def _data(items: list[object]) -> list[tuple[str, str]]:
    found = []
    for item in items:
        fields = _Fields(item, "data[].")
        mount, uri = fields.get("mount", str, ""), fields.get("uri", str, None)
        if uri is None:
            continue
        if not isinstance(mount, str) or not mount or "/" in mount or mount in (".", ".."):
            raise Broken(f"{MANIFEST}: data[].mount is {mount!r}")
        found.append((mount, str(uri)))
    return found


def inside(path: str, what: str) -> str:
    """A relative path that stays below where it begins, normalised."""
    clean = posixpath.normpath(path) if path else ""
    if clean.startswith(("/", "../")) or clean == ".." or "\0" in clean:
        raise Broken(f"{what}: {path!r} leads out of its folder")
    return "" if clean == "." else clean
