"""From a folder to a spec: what ships, what is run, with which packages and data (section e).

Nothing here talks to a server. A project that nobody touched is packed again without reading a file of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainshed.model.scripts.document import to_document
from trainshed.model.scripts.faults import SpecError, shown
from trainshed.model.scripts.gpu_yaml import FILE_NAME, Wishes, read_arguments, read_gpu_yaml
from trainshed.model.scripts.hosts import MACHINE_IDS, host_of
from trainshed.model.scripts.merge import Merged, merge
from trainshed.model.scripts.spec import MAX_BUNDLE_BYTES, Bundle, Deps, ScriptSpec
from trainshed.sdk.packing.contents import PackedTree, Progress, pack_tree
from trainshed.sdk.packing.data import PackedData, find_data, pack_data
from trainshed.sdk.packing.deps import find_deps
from trainshed.sdk.packing.entry import Bases, Started, parse_entry, resolve_entry
from trainshed.sdk.packing.errors import invalid_spec, of_faults
from trainshed.sdk.packing.left_out import describe, hint, size
from trainshed.sdk.packing.places import Project, below, find_project, read_spec_file
from trainshed.sdk.packing.selection import Included, Selection, select

if TYPE_CHECKING:
    from trainshed.sdk.client import Client

MAX_WARNINGS, MAX_WARNING_CHARS = 6, 300
_BIGGEST = 5
_NAMED = 3


@dataclass(slots=True)
class Packed:
    """A project that was packed; nothing was sent yet."""

    script: ScriptSpec
    selection: Selection
    tree: PackedTree
    data: Sequence[PackedData]

    @property
    def spec(self) -> dict[str, Any]:
        """The document for ``POST /v1/jobs``."""
        return to_document(self.script)

    @property
    def summary(self) -> dict[str, Any]:
        """``bundle`` of an answer (a.1): what is empty is left out."""
        return summary(self.script.bundle)

    def upload(self, client: Client, progress: Progress | None = None) -> int:
        """Bring the bundle and the datasets to the server, as far as it lacks them; how many blobs.

        From then on `spec` names datasets of the hub by their commits (e.12): the hub is asked first.
        """
        self.script = _pinned(self.script)
        trees = [self.tree, *(each.tree for each in self.data if each.tree is not None)]
        return sum(tree.upload(client, progress) for tree in trees)


def summary(bundle: Bundle) -> dict[str, Any]:
    """``{files, bytes, size, included?, left_out?, left_out_not_shown?, hint?, warnings?}``."""
    told = {
        "included": list(bundle.included),
        "left_out": list(bundle.left_out),
        "left_out_not_shown": bundle.left_out_not_shown,
        "hint": bundle.hint,
        "warnings": list(bundle.warnings),
    }
    always = {"files": bundle.files, "bytes": bundle.bytes, "size": size(bundle.bytes)}
    return always | {key: value for key, value in told.items() if value}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be packed, merged and looked up in the folder, before any listing."""

    project: Project
    bases: Bases
    merged: Merged
    includes: tuple[tuple[str, str], ...]
    """Directory relative to the root, pattern."""
    notes: tuple[str, ...] = ()


def ask(project_dir: str, arguments: Mapping[str, Any]) -> Asked:
    """gpu.yaml and arguments as one. Raises `InvalidSpec` with every fault of both."""
    project = find_project(project_dir)
    found = read_spec_file(project)
    faults: list[Any] = []
    file = given = Wishes()
    directory = project.directory
    notes: tuple[str, ...] = ()
    if found is not None:
        directory, content = found
        try:
            file = read_gpu_yaml(content, _called(directory, project))
        except SpecError as error:
            faults += error.faults
    elif os.path.lexists(f"{project.directory}/gpu.yml"):
        notes = (f"gpu.yml is not read; call it {FILE_NAME}",)
    try:
        given = read_arguments(arguments)
    except SpecError as error:
        faults += error.faults
    if faults:
        raise of_faults(SpecError(faults))
    bases = Bases(directory, project.directory)
    merged = merge(file, given)
    includes = tuple(
        (below(bases.of(origin), project.root) or "", pattern) for origin, pattern in merged.include
    )
    return Asked(project, bases, merged, includes, notes)


def _called(directory: str, project: Project) -> str:
    return (
        FILE_NAME
        if directory == project.directory
        else os.path.relpath(f"{directory}/{FILE_NAME}", project.directory)
    )


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that the folder says of what was asked; no server was asked for anything."""

    selection: Selection
    tree: PackedTree
    started: Started | None
    """``None`` only where nothing is to be run."""
    deps: Deps
    data: tuple[PackedData, ...]
    bundle: Bundle


def examine(asked: Asked, *, runs: bool = True) -> Examined:
    """Find, check and hash what ships; unless it ``runs`` no entrypoint is needed. Raises `InvalidSpec`."""
    project, merged, bases = asked.project, asked.merged, asked.bases
    entry = parse_entry(merged, bases, project) if runs or merged.entry else None
    places = find_data(merged.data, bases, project)
    selection = select(project, asked.includes)
    started = None if entry is None else resolve_entry(*entry, selection)
    deps, deps_notes = find_deps(merged.deps, bases.file, selection)
    _check_size(selection)
    tree = pack_tree(selection.files, "bundle", look_for_tokens=True)
    data = tuple(pack_data(place) for place in places)
    notes = [*asked.notes, *deps_notes, *(note for each in data for note in each.notes)]
    bundle = _bundle(selection, tree, started, data, notes)
    return Examined(selection, tree, started, deps, data, bundle)


def pack(project_dir: str | Path, arguments: Mapping[str, Any] | None = None) -> Packed:
    """Pack the project at ``project_dir``. ``arguments`` are those of a.1 that say what is run and how.

    Raises `InvalidSpec` before anything was made. Files are read; nothing is written but what is remembered
    of them below this user's home.
    """
    asked = ask(os.fspath(project_dir), arguments or {})
    found = examine(asked)
    assert found.started is not None  # noqa: S101 - `examine` raises where there is nothing to run
    return Packed(_spec(asked, found, found.started), found.selection, found.tree, found.data)


def _pinned(script: ScriptSpec) -> ScriptSpec:
    """The same, with datasets of the hub at the commits that their revisions name now."""
    if not any(item.uri for item in script.data):
        return script
    from trainshed.sdk.packing.hub import pin  # noqa: PLC0415 - only where there is something to ask

    both = [pin(item) for item in script.data]
    notes = [note for _, note in both if note is not None]
    bundle = replace(script.bundle, warnings=_bounded([*script.bundle.warnings, *notes]))
    return replace(script, data=tuple(item for item, _ in both), bundle=bundle)


def _spec(asked: Asked, found: Examined, started: Started) -> ScriptSpec:
    project, merged = asked.project, asked.merged
    return ScriptSpec(
        project_dir=project.given,
        bundle=found.bundle,
        workdir=project.workdir,
        name=_name(merged, started),
        script=started.script,
        command=started.command,
        args=started.args,
        hours=merged.hours,
        vram_gb=merged.vram_gb,
        gpu=merged.gpu,
        provider=merged.provider,
        env=merged.env,
        secrets=merged.secrets,
        deps=found.deps,
        data=tuple(each.item for each in found.data),
        smoke=merged.smoke,
        checkpoint_interval_min=merged.checkpoint_interval_min,
        interactive=merged.interactive,
        requires_approval=merged.requires_approval,
        max_attempts=merged.max_attempts,
        labels=merged.labels,
        provider_options=merged.provider_options,
        host=host(),
    )


def host() -> str:
    """This machine, by a hash of its id; empty where it has none."""
    for path in MACHINE_IDS:
        try:
            with open(path, "rb") as file:
                found = host_of(file.read(256))
        except OSError:
            continue
        if found:
            return found
    return ""


def _name(merged: Merged, started: Started) -> str:
    shortened = "".join(letter for letter in started.name if letter.isprintable())[:80]
    return merged.name or shortened or "job"


def _check_size(selection: Selection) -> None:
    total = selection.files.total_bytes
    if total <= MAX_BUNDLE_BYTES:
        return
    biggest = selection.files.biggest(_BIGGEST)
    listed = ", ".join(f"{shown(path)} ({size(count)})" for path, count in biggest)
    raise invalid_spec(
        f"the bundle has {size(total)}; at most {size(MAX_BUNDLE_BYTES)}. The biggest: {listed}",
        "Pass datasets in `data`, and have git ignore what the Job does not need.",
        bytes=total,
        biggest=[{"path": shown(path), "bytes": count} for path, count in biggest],
    )


def _bundle(
    selection: Selection,
    tree: PackedTree,
    started: Started | None,
    data: Sequence[PackedData],
    notes: Sequence[str],
) -> Bundle:
    places = [each.place for each in data if each.place is not None]
    left_out, not_shown = describe(selection, places)
    first = () if started is None else started.warnings
    said = [*first, *notes, *_selection_warnings(selection, tree)]
    return Bundle(
        manifest_sha256=tree.manifest_sha256,
        files=tree.files,
        bytes=tree.bytes,
        included=_included(selection.included),
        left_out=left_out,
        left_out_not_shown=not_shown,
        hint=hint(left_out),
        warnings=_bounded(said),
        source="git" if selection.project.in_git else "walk",
        untracked=len(selection.untracked),
    )


def _included(included: Sequence[Included]) -> tuple[str, ...]:
    return tuple(
        f"{shown(each.pattern)} ({len(each.files)} {'file' if len(each.files) == 1 else 'files'})"
        for each in included
        if each.files
    )


def _bounded(warnings: Sequence[str]) -> tuple[str, ...]:
    """At most six, the first ones first; the last says how many were not told."""
    cut = [
        text if len(text) <= MAX_WARNING_CHARS else f"{text[: MAX_WARNING_CHARS - 1]}…" for text in warnings
    ]
    if len(cut) > MAX_WARNINGS:
        rest = len(cut) - MAX_WARNINGS + 1
        cut = [*cut[: MAX_WARNINGS - 1], f"{rest} more warnings; `gpu bundle` shows what ships"]
    return tuple(cut)


def _selection_warnings(selection: Selection, tree: PackedTree) -> list[str]:
    """What is to be known of what ships, the most important first (e.1 to e.5)."""
    found: list[str] = []
    for path, line in tree.notes.tokens[:_NAMED]:
        found.append(
            f"{shown(path, 160)}:{line} holds what looks like a token, and ships; take it out of the file"
        )
    if (more := len(tree.notes.tokens) - _NAMED) > 0:
        found.append(f"{more} more files hold what looks like a token")
    found += _include_warnings(selection.included)
    if count := len(selection.credentials):
        found.append(f"{count} credential-looking file{' never ships' if count == 1 else 's never ship'}")
    for home in _environments(selection.untracked):
        found.append(f"the virtual environment {shown(home, 160)} ships; add it to .gitignore")
    if selection.untracked:
        ships = "ships although git does not track it"
        they_ship = "ship although git does not track them"
        found.append(_named(ships if len(selection.untracked) == 1 else they_ship, selection.untracked))
    if not selection.project.in_git:
        found.append(
            "the folder is in no git repository, so all of it ships but caches, virtualenvs and outputs "
            "(`git init` and `.gitignore` decide exactly)"
        )
    if tree.notes.unnamed:
        unnamed = [path for path, _ in tree.notes.unnamed]
        one = "does not ship, because of its name"
        found.append(_named(one if len(unnamed) == 1 else "do not ship, because of their names", unnamed))
    return found + _skipped_warnings(selection.skipped)


def _environments(untracked: Sequence[str]) -> list[str]:
    """Virtual environments among what ships although git does not track it."""
    mark = "/pyvenv.cfg"
    return [path.removesuffix(mark) for path in untracked if path.endswith(mark)][:_NAMED]


def _skipped_warnings(skipped: Mapping[str, str]) -> list[str]:
    """Links, submodules and devices, by why they do not ship."""
    by_reason: dict[str, list[str]] = {}
    for path in sorted(skipped):
        by_reason.setdefault(skipped[path], []).append(path)
    return [
        f"not shipped: {_listed(paths)} ({reason})"
        for reason, paths in sorted(by_reason.items(), key=lambda each: -len(each[1]))
    ]


def _include_warnings(included: Sequence[Included]) -> list[str]:
    found = []
    for each in included:
        if not each.matched and not each.notes:
            found.append(f"`include` has `{shown(each.pattern, 160)}`, which matches nothing")
        elif each.notes:
            found.append(f"`include` has `{shown(each.pattern, 80)}`: {shown(each.notes[0], 160)}")
    return found


def _named(what: str, paths: Sequence[str]) -> str:
    return f"{len(paths)} file{'' if len(paths) == 1 else 's'} {what}: {_listed(paths)}"


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(shown(path, 60) for path in paths[:_NAMED]) + more
