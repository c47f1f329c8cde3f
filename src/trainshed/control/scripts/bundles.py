"""The folder that a provider is given: the shipped tree, the runner and the manifest (e.8, e.9)."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from trainshed.jobkit import gpu_files
from trainshed.jobkit import tree as folders
from trainshed.model.scripts.spec import ScriptSpec

MANIFEST = "manifest.json"
_PART = ".part"


def manifest_of(spec: ScriptSpec) -> dict[str, Any]:
    """What the runner is told, as `trainshed.jobkit.gpu_runner` reads it, and what people want to know."""
    return {
        "manifest_version": 1,
        "name": spec.name,
        "entrypoint": {
            "script": spec.script,
            "command": None if spec.command is None else list(spec.command),
            "args": list(spec.args),
            "workdir": spec.workdir,
        },
        "deps": {
            "kind": str(spec.deps.kind),
            "file": spec.deps.file,
            "packages": list(spec.deps.packages),
            "python_requires": spec.deps.python_requires,
        },
        "data": [{"mount": item.mount, "uri": item.uri} for item in spec.data if item.uri is not None],
        "checkpoint_interval_min": spec.checkpoint_interval_min,
        "estimate": {"hours": spec.hours, "vram_gb": spec.vram_gb},
        "files": {
            "count": spec.bundle.files,
            "bytes": spec.bundle.bytes,
            "source": spec.bundle.source,
            "tree_sha256": spec.bundle.manifest_sha256,
            "untracked": spec.bundle.untracked,
            "included": list(spec.bundle.included),
        },
        "runner": 1,
        "warnings": list(spec.bundle.warnings),
    }


class Bundles:
    """Makes these folders and removes them. One process at a time uses ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def make(self, attempt_id: str, spec: ScriptSpec, code: Path) -> Path:
        """The folder of an Attempt: wholly there or not at all. Raises `OSError`.

        ``code`` is the shipped tree.
        """
        place = self._root / attempt_id
        if place.is_dir():
            return place
        part = self._root / f"{attempt_id}{_PART}"
        folders.remove(part)
        part.mkdir(mode=0o700)
        _link_tree(code, part / "code")
        _write_runner(part)
        (part / MANIFEST).write_text(json.dumps(manifest_of(spec), sort_keys=True, indent=1))
        part.rename(place)
        return place

    def archive(self, attempt_id: str) -> Callable[[], Path]:
        """Makes the deterministic archive of it (e.8), once."""
        place, made = self._root / attempt_id, self._root / f"{attempt_id}.tar.gz"

        def make() -> Path:
            if not made.exists():
                part = made.with_suffix(_PART)
                write_archive(place, part)
                part.rename(made)
            return made

        return make

    def remove(self, attempt_id: str) -> None:
        """Let go of it; repeatable."""
        folders.remove(self._root / attempt_id)
        folders.remove(self._root / f"{attempt_id}{_PART}")
        for name in (f"{attempt_id}.tar.gz", f"{attempt_id}.tar{_PART}"):
            (self._root / name).unlink(missing_ok=True)

    def remove_others(self, known: Collection[str]) -> None:
        """Let go of what belongs to no Attempt in ``known``."""
        for entry in list(self._root.iterdir()):
            attempt_id = entry.name.partition(".")[0]
            if attempt_id not in known:
                self.remove(attempt_id)


def write_archive(folder: Path, target: Path) -> None:
    """Pack ``folder`` so that equal trees have equal bytes: sorted, without times, owners and odd modes."""
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _in_order(folder):
            facts = archive.gettarinfo(path, path.relative_to(folder).as_posix())
            facts.uid = facts.gid = facts.mtime = 0
            facts.uname = facts.gname = ""
            facts.type, facts.linkname = tarfile.REGTYPE, ""  # hard links ship as the files they are
            facts.size = path.stat().st_size
            facts.mode = 0o755 if facts.mode & 0o100 else 0o644
            with path.open("rb") as content:
                archive.addfile(facts, content)
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _in_order(folder: Path) -> Iterator[Path]:
    """Its files by name; the manifest last."""
    files = sorted(
        (Path(place, name) for place, _, names in os.walk(folder) for name in names),
        key=lambda path: path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape"),
    )
    yield from (path for path in files if path != folder / MANIFEST)
    yield folder / MANIFEST


def _link_tree(source: Path, target: Path) -> None:
    """The same tree without copying its bytes, where both lie on one file system."""
    target.mkdir(mode=0o700)
    for folder, names, files in os.walk(source):
        inside = target / Path(folder).relative_to(source)
        for name in names:
            (inside / name).mkdir(mode=0o700)
        for name in files:
            place = Path(folder, name)
            try:
                os.link(place, inside / name, follow_symlinks=False)
            except OSError:
                shutil.copy2(place, inside / name)


def _write_runner(target: Path) -> None:
    for path, data in gpu_files.files().items():
        place = target / path
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(0o644)
