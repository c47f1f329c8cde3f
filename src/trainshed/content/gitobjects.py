"""Git's objects as bytes: parsing, encoding and naming commits, trees and blobs (SHA-1 repositories).

SHA-1 names say which commit something belongs to; they do not protect against somebody who makes collisions.
What a Trial runs is pinned by SHA-256 (`trainshed.model.runner_tree.snapshot_sha256`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainshed.content.blobs import Readable
from trainshed.content.proofs import BUFFER_BYTES

TREE_MODE = "40000"
_ID_BYTES = 20
_ENTRY = re.compile(rb"([0-7]{5,6}) ([^\0/]+)\0(.{20})", re.DOTALL)
_COMMIT_TREE = re.compile(rb"tree ([0-9a-f]{40})\n")


class MalformedObject(Exception):
    """The bytes are not the git object they should be."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One entry of a tree: a file, a directory, a link or a submodule, by its mode."""

    mode: str
    """As the tree spells it: ``40000`` for a directory, without a leading zero."""
    name: bytes
    object_id: str


def object_id(kind: str, content: bytes) -> str:
    """Git's name of an object: ``kind`` is ``blob``, ``tree`` or ``commit``."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def blob_ids(source: Readable, size: int) -> tuple[str, str]:
    """Git's name and the SHA-256 of ``source``, read once. ``size`` must be its exact length."""
    git = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    sha256 = hashlib.sha256()
    while data := source.read(BUFFER_BYTES):
        git.update(data)
        sha256.update(data)
    return git.hexdigest(), sha256.hexdigest()


def commit_tree(content: bytes) -> str:
    """The id of a commit's root tree. Raises `MalformedObject`."""
    match = _COMMIT_TREE.match(content)
    if match is None:
        raise MalformedObject("the commit object does not start with its tree")
    return match[1].decode()


def parse_tree(content: bytes) -> tuple[TreeEntry, ...]:
    """The entries of a raw tree. Raises `MalformedObject`, also for a name that appears twice."""
    entries, place = [], 0
    while place < len(content):
        match = _ENTRY.match(content, place)
        if match is None:
            raise MalformedObject(f"the tree object is malformed at byte {place}")
        entries.append(TreeEntry(match[1].decode(), match[2], match[3].hex()))
        place = match.end()
    if len({entry.name for entry in entries}) < len(entries):
        raise MalformedObject("the tree object holds a name twice")
    return tuple(entries)


def encode_tree(entries: Iterable[TreeEntry]) -> bytes:
    """The raw tree of ``entries``, in git's order."""
    return b"".join(
        entry.mode.encode() + b" " + entry.name + b"\0" + bytes.fromhex(entry.object_id)
        for entry in sorted(entries, key=_tree_order)
    )


def build_trees(files: Mapping[str, tuple[str, str]]) -> dict[str, bytes]:
    """Raw trees of all directories, by path (``""`` is the root), from ``path -> (mode, blob id)``.

    The paths must be clean and relative, and none of them may be a directory of another.
    """
    children: dict[str, list[TreeEntry]] = {"": []}
    for path, (mode, blob_id) in files.items():
        folder, _, name = path.rpartition("/")
        while folder not in children:
            children[folder] = []
            folder = folder.rpartition("/")[0]
        children[path.rpartition("/")[0]].append(TreeEntry(mode, name.encode(), blob_id))
    trees: dict[str, bytes] = {}
    for folder in sorted(children, key=lambda path: path.count("/") if path else -1, reverse=True):
        trees[folder] = encode_tree(children[folder])
        if folder:
            above, _, name = folder.rpartition("/")
            children[above].append(TreeEntry(TREE_MODE, name.encode(), object_id("tree", trees[folder])))
    return trees


def encode_commit(tree_id: str, author: str, unix_time: int, message: str) -> bytes:
    """A raw commit without parents; author and committer are the same, the time zone is UTC."""
    who = f"{author} {unix_time} +0000"
    return f"tree {tree_id}\nauthor {who}\ncommitter {who}\n\n{message}\n".encode()


def _tree_order(entry: TreeEntry) -> bytes:
    # Git compares a directory as if its name ended in a slash.
    return entry.name + b"/" if entry.mode == TREE_MODE else entry.name
