"""The first gpu.yaml of a project, with comments, from what its folder holds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.model.scripts.credentials import credential_rule
from trainshed.model.scripts.validate import default_mount
from trainshed.sdk.errors import LocalFileError
from trainshed.sdk.packing.left_out import is_junk
from trainshed.sdk.packing.places import Project, find_project
from trainshed.sdk.packing.selection import select

_MAIN = re.compile(rb"^if[ (]+__name__\s*==\s*['\"]__main__['\"]", re.MULTILINE)
_LIKELY = ("train.py", "main.py", "finetune.py", "run.py", "eval.py")
_TEST = re.compile(r"(?:^|/)(?:tests?|docs|examples|setup\.py|conftest\.py|test_[^/]*\.py)(?:/|$)")
_DATA = re.compile(r"data|datasets?|corpus|images", re.IGNORECASE)
_MOST_SCRIPTS, _MOST_BYTES = 500, 1 << 20
_MOST_LISTED = 8
_PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")


@dataclass(frozen=True, slots=True)
class Draft:
    """What was found, and the text."""

    text: str
    script: str | None
    deps: str | None
    data: tuple[str, ...]


def draft(project_dir: str) -> Draft:
    """A gpu.yaml for the project at ``project_dir``, absolute. Raises `InvalidSpec`."""
    project = find_project(project_dir)
    selection = select(project, ())
    start = f"{project.workdir}/" if project.workdir else ""
    inside = sorted(path[len(start) :] for path in selection.files.paths if path.startswith(start))
    scripts = _scripts(project, inside)
    deps = next((name for name in ("requirements.txt", "pyproject.toml") if name in inside), None)
    ignored = [path[len(start) :] for path in selection.ignored if path.startswith(start)]
    data = tuple(
        path.rstrip("/")
        for path in ignored
        if path.endswith("/") and not is_junk(path) and not credential_rule(path) and _DATA.search(path)
    )[:_MOST_LISTED]
    return Draft(_text(scripts, deps, data), scripts[0] if scripts else None, deps, data)


def write_draft(target: str, text: str) -> None:
    """Write it in one step. Raises `LocalFileError`."""
    part = f"{target}.{os.getpid()}.part"
    try:
        with open(part, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, target)
    except OSError as error:
        raise LocalFileError(f"cannot write {target}: {error.strerror}") from error


def _scripts(project: Project, inside: Sequence[str]) -> list[str]:
    """Python files that are programs, the likeliest first."""
    found = []
    candidates = [path for path in inside if path.endswith(".py") and not _TEST.search(path)]
    for path in candidates[:_MOST_SCRIPTS]:
        try:
            with open(f"{project.directory}/{path}", "rb") as file:
                if _MAIN.search(file.read(_MOST_BYTES)):
                    found.append(path)
        except OSError:
            continue
    known = [path for path in candidates if os.path.basename(path) in _LIKELY and path not in found]
    order = {name: place for place, name in enumerate(_LIKELY)}
    return sorted(
        [*found, *known],
        key=lambda path: (path.count("/"), order.get(os.path.basename(path), len(order)), path),
    )


def _text(scripts: Sequence[str], deps: str | None, data: Sequence[str]) -> str:
    lines = [
        "# What `gpu run` and coding agents start here. Paths are relative to this file.",
        "# `gpu bundle` shows what ships, `gpu init --schema` prints the schema for editors.",
        "version: 1",
        "",
    ]
    if scripts:
        lines += ["# The Python file that runs on the GPU.", f"script: {_word(scripts[0])}"]
        lines += [f"# or: {_word(other)}" for other in scripts[1:_MOST_LISTED]]
    else:
        lines += [
            "# The Python file that runs on the GPU (none with a `__main__` was found).",
            "# script: train.py",
        ]
    lines += [
        "# args: [--epochs, 3]",
        "",
        "# An honest estimate of its wall-clock hours. Without one every run of an agent asks first.",
        "# hours: 0.5",
        "# GPU memory that it needs, in GB: a hard limit for where it may run.",
        "# vram_gb: 16",
        "# gpu: T4",
        "",
    ]
    told = f"{deps} was found" if deps else "no requirements.txt or pyproject.toml was found"
    lines += [f"# Packages that are installed first ({told}).", "deps: auto", ""]
    lines += [
        "# Files that ship although git ignores them; datasets belong in `data`.",
        "# include: [configs/local]",
        "",
    ]
    lines += ["# Datasets, readable at gpu.data_dir()/NAME in the Job. They are uploaded once."]
    if data:
        lines.append("data:")
        seen: set[str] = set()
        for path in data:
            mount = default_mount(path)
            if mount and mount not in seen:
                seen.add(mount)
                lines += [f"  - mount: {_word(mount)}", f"    path: {_word(path)}"]
    else:
        lines += ["# data:", "#   - mount: images", "#     path: data/images"]
    lines += [
        "",
        "# Plain variables. Secrets are stored with `gpu secrets set NAME` and only named here.",
        "# env: {LOG_LEVEL: info}",
        "# secrets: [WANDB_API_KEY]",
        "",
        "# How often gpu.checkpoint_dir() is saved, in minutes; 0: never.",
        "# checkpoint_interval_min: 20",
    ]
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    """Text as YAML reads it back."""
    return text if _PLAIN_WORD.fullmatch(text) else json.dumps(text)
