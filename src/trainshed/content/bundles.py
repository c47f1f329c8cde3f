"""Packed trees of script Jobs: a manifest whose files may have any name that a checkout may have.

Unlike published content they are named by nobody and go to one kind of place, so names that differ only in
case are fine, and nothing is asked of ``about``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trainshed.model.errors import Fault, Refusal
from trainshed.model.manifests import ManifestFault, ManifestScan
from trainshed.model.runner_tree import path_fault

BUNDLES = "bundles"
"""The kind under which such manifests are recorded (`store.manifests.put_manifest`)."""
_CODE = "INVALID_CONTENT"
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PackedTree:
    """A manifest whose own bytes were checked. Whether its blobs are stored is not."""

    sha256: str
    size: int
    files: int
    bytes: int
    blobs: dict[str, int] = field(repr=False)
    """SHA-256 of each file's bytes -> their number."""
    present: Mapping[str, str] = field(default_factory=dict)
    """Those of the paths asked for that it has, with their digests."""


def read_packed(
    read: Callable[[int], bytes], sha256: str, *, path: str = "manifest", wanted: Collection[str] = ()
) -> PackedTree:
    """Read the manifest that ``read`` answers piece by piece, in one pass.

    ``wanted`` are paths to look for, ``path`` is where faults are told. Raises `Refusal`
    ``INVALID_CONTENT``, ``CONTENT_HASH_MISMATCH``.
    """
    blobs: dict[str, int] = {}
    faults: list[Fault] = []
    paths: set[str] = set()
    present: dict[str, str] = {}
    try:
        scan = ManifestScan(read)
        for file in scan:
            paths.add(file.path)
            if file.path in wanted:
                present[file.path] = file.sha256
            if (fault := path_fault(file.path)) is not None:
                faults.append(Fault(path, _CODE, f"`{file.path[:200]}` {fault}"))
            if blobs.setdefault(file.sha256, file.size) != file.size:
                faults.append(Fault(path, _CODE, f"`{file.path[:200]}` has another size than its digest"))
            if len(faults) >= _SHOWN:
                break
        else:
            faults += [Fault(path, _CODE, f"`{each[:200]}` is a file and a folder") for each in _both(paths)]
    except ManifestFault as fault:
        raise Refusal.of(_CODE, f"this is no manifest: {fault}", path=path) from None
    if faults:
        raise Refusal(faults[:_SHOWN])
    if scan.sha256 != sha256:
        said = f"the manifest's SHA-256 is {scan.sha256}, not {sha256}"
        raise Refusal.of("CONTENT_HASH_MISMATCH", said, path=path)
    return PackedTree(sha256, scan.size, scan.files, scan.total_bytes, blobs, present)


def _both(paths: set[str]) -> list[str]:
    """Paths of files that others lie below."""
    above: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in above:
            above.add(parent)
            parent = parent.rpartition("/")[0]
    return sorted(paths & above)
