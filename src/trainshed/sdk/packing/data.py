"""Datasets of a Job: folders, single files and places on the hub (e.11, e.12)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from trainshed.model.scripts.credentials import credential_rule
from trainshed.model.scripts.faults import shown
from trainshed.model.scripts.merge import Origin
from trainshed.model.scripts.spec import DataItem
from trainshed.model.scripts.validate import DataWish
from trainshed.sdk.packing.contents import PackedTree, pack_tree
from trainshed.sdk.packing.entry import Bases
from trainshed.sdk.packing.errors import invalid_request, invalid_spec
from trainshed.sdk.packing.files import Files
from trainshed.sdk.packing.places import (
    Project,
    below,
    links_into_a_store,
    own_below,
    refused_place,
    store_around,
    withheld,
)
from trainshed.sdk.packing.selection import walk

_OVER = re.compile("|".join(map(translate, (".git", ".hg", ".svn", ".DS_Store", "Thumbs.db"))))
MAX_ENTRIES = 1_000_000
_KIND = "data"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset lies on this machine."""

    wish: DataWish
    path: str
    """Absolute, links resolved."""
    single_file: bool
    outside: bool
    """gpu.yaml names it, and it lies outside the project that gpu.yaml came with."""


@dataclass(slots=True)
class PackedData:
    """One dataset as the spec has it."""

    item: DataItem
    place: str | None = None
    tree: PackedTree | None = None
    notes: list[str] = field(default_factory=list)


def find_data(
    wishes: Sequence[tuple[Origin, DataWish]], bases: Bases, project: Project
) -> list[Place | DataWish]:
    """Where the datasets are; a wish stays one that is on the hub.

    Everything that forbids one is said at once, before anything is read. Raises `InvalidSpec`.
    """
    found: list[Place | DataWish] = []
    missing: list[str] = []
    for origin, wish in wishes:
        if wish.path is None:
            found.append(wish)
            continue
        place = os.path.realpath(os.path.join(bases.of(origin), os.path.expanduser(wish.path)))
        if said := _refusal(place):
            raise invalid_request(
                f"`data`: {shown(wish.path)} is not packed: {said}",
                "Name the folder that holds the dataset alone.",
            )
        if not os.path.exists(place):
            missing.append(f"{wish.mount}: {shown(wish.path)} is not there (looked for at {shown(place)})")
            continue
        outside = origin is Origin.FILE and below(place, project.root) is None
        found.append(Place(wish, place, os.path.isfile(place), outside))
    if missing:
        raise invalid_spec(
            f"`data`: {'; '.join(missing[:5])}",
            "Paths are relative to the project directory; in gpu.yaml, to its own.",
        )
    return found


def pack_data(place: Place | DataWish) -> PackedData:
    """Hash one dataset; what was hashed before and not touched since is not read. Raises `InvalidSpec`."""
    if isinstance(place, DataWish):
        return PackedData(DataItem(place.mount, uri=place.uri, path=place.uri or ""))
    files, notes = _single(place) if place.single_file else _folder(place)
    tree = pack_tree(files, _KIND, look_for_tokens=False)
    mount = place.wish.mount
    if tree.notes.unnamed:
        notes.append(
            f"data {mount}: {len(tree.notes.unnamed)} files with names that cannot be kept do not ship"
        )
    if place.outside:
        notes.append(f"data {mount}: gpu.yaml passes {shown(place.path)}, which lies outside the project")
    if not tree.files:
        raise invalid_spec(f"`data`: {shown(place.wish.path or '')} holds no file that can be passed")
    item = DataItem(
        mount,
        manifest_sha256=tree.manifest_sha256,
        single_file=os.path.basename(place.path) if place.single_file else None,
        files=tree.files,
        bytes=tree.bytes,
        path=place.wish.path or "",
    )
    return PackedData(item, place.path, tree, notes)


def _refusal(place: str) -> str | None:
    """Why a place may not be passed, as the end of a sentence (a.1)."""
    if said := refused_place(place):
        return said
    if not os.path.isdir(place):
        rule = credential_rule(os.path.basename(place))
        return f"its name is that of a file with credentials ({rule})" if rule else None
    link = next(links_into_a_store(place), None)
    return (
        f"{shown(os.path.relpath(link, place))} in it is a link into a store of credentials" if link else None
    )


def _single(place: Place) -> tuple[Files, list[str]]:
    files = Files(os.path.dirname(place.path))
    info = os.stat(place.path, follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode):
        raise invalid_spec(f"`data`: {shown(place.wish.path or '')} is no regular file")
    files.add(os.path.basename(place.path), info)
    return files, []


def _folder(place: Place) -> tuple[Files, list[str]]:
    """Every file of a folder; credentials and links that leave it are passed over and counted."""
    files, credentials, links = Files(place.path), 0, 0
    own = own_below(place.path)
    for path, entry, over in walk(place.path, _OVER, most=MAX_ENTRIES):
        if over:
            continue
        info = entry.stat(follow_symlinks=False)
        if withheld(path, own):
            credentials += 1
        elif stat.S_ISREG(info.st_mode):
            files.add(path, info)
        elif stat.S_ISLNK(info.st_mode):
            links += not _add_link(files, path, entry.path)
    notes = []
    if credentials:
        notes.append(f"data {place.wish.mount}: {credentials} credential-looking files never ship")
    if links:
        notes.append(
            f"data {place.wish.mount}: {links} links to directories or out of the folder do not ship"
        )
    return files, notes


def _add_link(files: Files, path: str, link: str) -> bool:
    """A link to a file of the same folder ships as that file."""
    target = os.path.realpath(link)
    inside = below(target, files.root)
    if not inside or credential_rule(inside) or store_around(target):
        return False
    try:
        info = os.lstat(target)
    except OSError:
        return False
    if not stat.S_ISREG(info.st_mode):
        return False
    files.add(path, info, target)
    return True
