"""Looking at what would ship without wanting to run it, and which rule decides for one path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.model.scripts.credentials import credential_rule
from trainshed.model.scripts.faults import shown
from trainshed.model.scripts.spec import DataItem
from trainshed.model.words import counted
from trainshed.sdk.packing.bundle import Asked, Examined, ask, examine, summary
from trainshed.sdk.packing.contents import escaped
from trainshed.sdk.packing.git import ignoring_rule
from trainshed.sdk.packing.left_out import size
from trainshed.sdk.packing.places import below

_NEVER = frozenset({"credentials", "missing", "name"})
"""What decides against a path as data, too."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What would ship of a folder."""

    asked: Asked
    examined: Examined

    def document(self) -> dict[str, Any]:
        """The summary of a.1, with where it comes from, what would run and which data lies beside it."""
        found = self.examined
        document = {"root": shown(self.asked.project.root), **summary(found.bundle)}
        document["source"] = found.bundle.source
        document["tree_sha256"] = found.bundle.manifest_sha256
        if (started := found.started) is not None:
            words = (started.script, *started.args) if started.script is not None else started.command or ()
            document["runs"] = " ".join(shown(word, 80) for word in words if word)
        if found.deps.file is not None:
            document["deps"] = shown(found.deps.file)
        if found.data:
            document["data"] = [_dataset(each.item) for each in found.data]
        return document

    def listing(self) -> list[dict[str, Any]]:
        """Every file that ships: path and bytes, in the order of the paths."""
        unnamed = {path for path, _ in self.examined.tree.notes.unnamed}
        files = self.examined.selection.files.local_files()
        told = ((escaped(file.path), file) for file in files)
        return [{"path": path, "bytes": file.size} for path, file in told if path not in unnamed]

    def explain(self, path: str) -> dict[str, Any]:
        """Whether ``path`` (relative to the project directory) ships, and the rule that decides.

        What is in a dataset of the Job has the rule ``data`` where it does not ship with the project, too.
        """
        place = os.path.normpath(os.path.join(self.asked.project.directory, path))
        verdict = self._decided(path, place)
        if verdict["rule"] in _NEVER or (mount := self._mount(place)) is None:
            return verdict
        if verdict["ships"]:
            return {**verdict, "why": f"{verdict['why']}; it travels as data `{mount}`, too"}
        return _verdict(path, "data", f"it travels as data `{mount}`, apart from the project")

    def _mount(self, place: str) -> str | None:
        """The dataset that a place of this machine belongs to."""
        real = os.path.realpath(place)
        for each in self.examined.data:
            if each.place is None or (inside := below(real, each.place)) is None:
                continue
            return None if credential_rule(inside) else each.item.mount
        return None

    def _decided(self, path: str, place: str) -> dict[str, Any]:
        project, selection = self.asked.project, self.examined.selection
        inside = below(place, project.root)
        if inside is None:
            resolved = below(os.path.realpath(place), project.root)
            if resolved is None:
                return _verdict(path, "outside", f"it is not in the project {shown(project.root)}")
            inside = resolved
        if not os.path.lexists(place) and inside not in selection.shipped:
            return _verdict(path, "missing", "there is no such file or directory")
        if not inside or (os.path.isdir(place) and not os.path.islink(place)):
            return self._folder(path, inside)
        return self._file(path, inside)

    def _folder(self, path: str, inside: str) -> dict[str, Any]:
        start = f"{inside}/" if inside else ""
        count = sum(each.startswith(start) for each in self.examined.selection.files.paths)
        if count:
            return _verdict(
                path,
                "folder",
                "1 file of it ships" if count == 1 else f"{count} files of it ship",
                ships=True,
            )
        if f"{inside}/" in self.examined.selection.nested:
            return _verdict(path, "nested", "it is a git repository of its own; `include` ships it")
        return self._file(path, inside)

    def _file(self, path: str, inside: str) -> dict[str, Any]:
        unnamed = {escaped(each): why for each, why in self.examined.tree.notes.unnamed}
        if (why := unnamed.get(escaped(inside))) is not None:
            return _verdict(path, "name", f"its name {why}")
        if inside in self.examined.selection.shipped:
            return _verdict(path, *self._why_it_ships(inside), ships=True)
        return _verdict(path, *(self._passed_over(inside) or self._not_listed(inside)))

    def _passed_over(self, inside: str) -> tuple[str, str] | None:
        """Why what was met does not ship."""
        selection = self.examined.selection
        if (rule := selection.credentials.get(inside) or credential_rule(inside)) is not None:
            return "credentials", f"it looks like credentials ({rule}), which never ship"
        if f"{inside}/".startswith(selection.runs):
            return "runs", "`runs/` holds outputs and never ships"
        for skipped, why in selection.skipped.items():
            if f"{inside}/".startswith(f"{skipped.rstrip('/')}/"):
                return "skipped", why
        for nested in selection.nested:
            if inside.startswith(nested):
                return "nested", f"{shown(nested)} is a git repository of its own; `include` ships it"
        return None

    def _not_listed(self, inside: str) -> tuple[str, str]:
        """Why it was not met."""
        project = self.asked.project
        if not project.in_git:
            return "walk", "names of its kind are not looked at outside git; `include` ships it"
        if (rule := ignoring_rule(project.root, inside)) is not None:
            return "ignored", f"git ignores it by {rule}; `include` ships it"
        return "git", "git lists no file in it"

    def _why_it_ships(self, inside: str) -> tuple[str, str]:
        selection = self.examined.selection
        for each in selection.included:
            if inside in each.files:
                return "include", f"`include` has `{shown(each.pattern)}`"
        if inside in selection.files.elsewhere:
            target = below(selection.files.elsewhere[inside], selection.project.root)
            return "link", f"it is a link to {shown(target or '')}, whose content ships"
        if not selection.project.in_git:
            return "walk", "it lies in the folder, which is in no git repository"
        if inside in set(selection.untracked):
            return "untracked", "git does not track it, and does not ignore it"
        return "tracked", "git tracks it; it ships as it is now"


def look(project_dir: str, arguments: Mapping[str, Any]) -> Seen:
    """What would ship of ``project_dir``; there need be nothing to run. Raises `InvalidSpec`."""
    asked = ask(project_dir, arguments)
    return Seen(asked, examine(asked, runs=False))


def _dataset(item: DataItem) -> str:
    if item.uri is not None:
        return f"{item.mount} ({item.uri})"
    return f"{item.mount} ({counted(item.files, 'file')}, {size(item.bytes)}, {shown(item.path)})"


def _verdict(path: str, rule: str, why: str, *, ships: bool = False) -> dict[str, Any]:
    return {
        "path": shown(path),
        "ships": ships,
        "rule": rule,
        "why": ("ships: " if ships else "does not ship: ") + why,
    }
