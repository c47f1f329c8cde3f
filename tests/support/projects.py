"""Project folders as people have them, and a server that remembers what was brought to it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainshed.sdk.packing import InvalidSpec, Packed, pack

_WHO = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", place, *_WHO, "-c", "protocol.file.allow=always", *arguments],
        check=True,
        capture_output=True,
    )
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def write(place: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def project(place: Path, files: Mapping[str, str | bytes], *, tracked: bool = True) -> Path:
    """A git repository; with ``tracked`` all that is not ignored is committed."""
    place.mkdir(parents=True, exist_ok=True)
    git(place, "init", "--quiet", "--initial-branch=main")
    write(place, files)
    if tracked:
        commit(place)
    return place


def commit(place: Path) -> None:
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--allow-empty", "--message", "change")


class Uploads:
    """Takes the place of a client: keeps every blob that was brought."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.sent: list[str] = []

    @property
    def blob_uploads(self) -> Uploads:
        return self

    def send(self, uploads: Any, progress: Any = None) -> int:
        del progress
        self.sent = []
        for upload in uploads:
            if upload.sha256 not in self.blobs:
                with upload.open() as file:
                    self.blobs[upload.sha256] = file.read()
                self.sent.append(upload.label)
        return len(self.sent)

    def tree(self, manifest_sha256: str) -> dict[str, bytes]:
        """The files of a manifest, by path."""
        files = json.loads(self.blobs[manifest_sha256])["files"]
        return {file["path"]: self.blobs[file["sha256"]] for file in files}

    def everything(self) -> bytes:
        return b"\n".join(self.blobs.values())


def set_home(monkeypatch: Any, place: Path) -> Path:
    """A home directory of its own, with this program's folder beside it."""
    home = place / "home" / "ada"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", os.fspath(home))
    monkeypatch.setenv("TRAINSHED_HOME", os.fspath(place / "trainshed-home"))
    return home


def packed(place: Path, **arguments: Any) -> Packed:
    """The project, to run its `train.py` unless the arguments say otherwise."""
    return pack(place, {"script": "train.py", **arguments})


def shipped(found: Packed) -> dict[str, bytes]:
    """What the Job would have: read back from what was uploaded, after the numbers were compared (G18)."""
    server = Uploads()
    found.upload(server)  # type: ignore[arg-type] # all that is used of a client
    tree = server.tree(found.spec["bundle"]["manifest_sha256"])
    assert found.summary["files"] == len(tree)
    assert found.summary["bytes"] == sum(map(len, tree.values()))
    return tree


def refusal(place: Path | str, **arguments: Any) -> InvalidSpec:
    """Why a project cannot be packed."""
    with pytest.raises(InvalidSpec) as caught:
        pack(place, arguments)
    assert caught.value.message
    return caught.value


def warned(found: Packed, words: str) -> str:
    """The one warning that has these words."""
    (warning,) = [text for text in found.summary.get("warnings", ()) if words in text]
    return warning
