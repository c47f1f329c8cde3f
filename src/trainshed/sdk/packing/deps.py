"""Which packages a Job installs before its script runs (e.13)."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from trainshed.model.scripts.faults import shown
from trainshed.model.scripts.secret_names import token_shaped
from trainshed.model.scripts.spec import Deps, DepsKind
from trainshed.model.scripts.validate import DepsWish
from trainshed.model.strict_toml import decode_toml
from trainshed.sdk.packing.errors import invalid_spec
from trainshed.sdk.packing.places import below
from trainshed.sdk.packing.selection import Selection

REQUIREMENTS, PYPROJECT = "requirements.txt", "pyproject.toml"
MAX_BYTES = 1 << 20
_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[^\]]*\])?")
_NESTED = re.compile(r"^[ \t]*(?:-r|--requirement|-c|--constraint)[ \t=]+(\S+)", re.MULTILINE)


def find_deps(wish: DepsWish, base: str, selection: Selection) -> tuple[Deps, list[str]]:
    """The packages, and what to say of them. ``base`` is where a named file is looked up, absolute.

    Raises `InvalidSpec`: a named file is missing or does not ship, or cannot be read as what it is.
    """
    if wish.kind == "none":
        return Deps(), []
    if wish.file is not None:
        path = below(os.path.normpath(os.path.join(base, wish.file)), selection.project.root)
        if not path or path not in selection.shipped:
            why = (
                "does not ship"
                if path and os.path.lexists(f"{selection.project.root}/{path}")
                else "is not there"
            )
            raise invalid_spec(
                f"`deps`: `{shown(wish.file)}` {why}", "Name a file of the project that ships."
            )
        return _read(DepsKind(wish.kind), path, selection)
    project = selection.project
    wanted = {"requirements": (REQUIREMENTS,), "pyproject": (PYPROJECT,)}.get(
        wish.kind, (REQUIREMENTS, PYPROJECT)
    )
    for folder in dict.fromkeys((project.workdir, "")):
        for name in wanted:
            path = posixpath.join(folder, name)
            if path in selection.shipped:
                kind = DepsKind.REQUIREMENTS if name == REQUIREMENTS else DepsKind.PYPROJECT
                found, notes = _read(kind, path, selection)
                if found.kind is not DepsKind.NONE or wish.kind != "auto":
                    return found, notes
    if wish.kind != "auto":
        raise invalid_spec(f"`deps`: {wish.kind} was asked for, and no {wanted[0]} ships", "Name the file.")
    return Deps(), []


def _read(kind: DepsKind, path: str, selection: Selection) -> tuple[Deps, list[str]]:
    content = _content(path, selection)
    if kind is DepsKind.REQUIREMENTS:
        return Deps(kind, path), _requirement_notes(content, path, selection)
    try:
        document = decode_toml(content, MAX_BYTES)
    except ValueError as error:
        raise invalid_spec(f"`deps`: `{shown(path)}` {error}") from None
    project = document.get("project")
    listed = project.get("dependencies") if isinstance(project, dict) else None
    if listed is None:
        return Deps(), []
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise invalid_spec(f"`deps`: `{shown(path)}`: [project].dependencies must be a list of texts")
    sources = _sources(document)
    notes: list[str] = []
    packages = tuple(_package(each, sources, path, selection, notes) for each in listed)
    if any(token_shaped(each) for each in packages):
        raise invalid_spec(
            f"`deps`: `{shown(path)}` has a dependency whose address holds what looks like a token",
            "The address would be stored with the Job. Take the token out of it.",
        )
    python = project.get("requires-python") if isinstance(project, dict) else None
    return Deps(kind, path, packages, python if isinstance(python, str) else None), notes


def _content(path: str, selection: Selection) -> bytes:
    place = selection.files.elsewhere.get(path) or f"{selection.project.root}/{path}"
    try:
        with open(place, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise invalid_spec(f"`deps`: `{shown(path)}` cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise invalid_spec(f"`deps`: `{shown(path)}` has more than {MAX_BYTES} bytes")
    return content


def _requirement_notes(content: bytes, path: str, selection: Selection) -> list[str]:
    """Files that a requirements file names and that do not ship."""
    found = []
    for match in _NESTED.finditer(content.decode("utf-8-sig", "replace")):
        named = match[1]
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), named))
        if "://" not in named and inside not in selection.shipped:
            found.append(
                f"{shown(path)} names `{shown(named, 80)}`, which does not ship; the installation will fail"
            )
    return found[:1]


def _sources(document: Mapping[str, Any]) -> Mapping[str, Any]:
    tool = document.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    sources = uv.get("sources") if isinstance(uv, dict) else None
    return {_normal(name): source for name, source in sources.items()} if isinstance(sources, dict) else {}


def _package(
    requirement: str, sources: Mapping[str, Any], path: str, selection: Selection, notes: list[str]
) -> str:
    """One dependency as pip reads it, from where `tool.uv.sources` says that it comes."""
    match = _NAME.match(requirement)
    source = sources.get(_normal(match[1])) if match else None
    if match is None or source is None:
        return requirement.strip()
    name, extras = match[1], match[2] or ""
    marker = requirement.partition(";")[2].strip()
    after = f" ; {marker}" if marker else ""

    def refused(why: str) -> Exception:
        return invalid_spec(
            f"`deps`: `{shown(path)}`: the source of `{shown(name, 80)}` {why}",
            "Name another file in `deps`, or write a requirements.txt.",
        )

    if not isinstance(source, dict):
        raise refused("has several entries, of which only one can be installed")
    if source.get("workspace"):
        raise refused("is a workspace, which cannot be installed in a Job")
    if isinstance(git := source.get("git"), str):
        ref = next(
            (source[key] for key in ("rev", "tag", "branch") if isinstance(source.get(key), str)), None
        )
        below_it = source.get("subdirectory")
        address = f"git+{git}" + (f"@{ref}" if ref else "")
        address += f"#subdirectory={below_it}" if isinstance(below_it, str) else ""
        return f"{name}{extras} @ {address}{after}"
    if isinstance(url := source.get("url"), str):
        return f"{name}{extras} @ {url}{after}"
    if isinstance(local := source.get("path"), str):
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), local))
        if posixpath.isabs(local) or inside.startswith("..") or not _ships(inside, selection):
            raise refused("is a path that is not in the Job")
        return f"./{inside}{extras}{after}" if inside != "." else f".{extras}{after}"
    if isinstance(source.get("index"), str):
        usual = "is installed from the usual index, not from that of its source"
        notes.append(f"{shown(path)}: `{shown(name, 80)}` {usual}")
        return requirement.strip()
    raise refused("is of a kind that is not known here")


def _ships(inside: str, selection: Selection) -> bool:
    return inside == "." or inside in selection.shipped or inside in selection.folders


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
