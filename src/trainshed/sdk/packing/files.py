"""Files that were found for a bundle or a dataset, without an object for each: most are never looked at."""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from dataclasses import dataclass, field

from trainshed.sdk.scan import LocalFile

_NUMBERS = 5


@dataclass(slots=True)
class Files:
    """Regular files below ``root``, in the order in which they were found."""

    root: str
    """Absolute and resolved."""
    paths: list[str] = field(default_factory=list)
    """Relative, ``/`` between parts; not UTF-8 is written with surrogates."""
    numbers: list[int] = field(default_factory=list)
    """Of each file in turn: size, mtime_ns, ctime_ns, inode, mode."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Where those lie that are links: their targets."""

    def add(self, path: str, info: os.stat_result, place: str | None = None) -> None:
        self.paths.append(path)
        self.numbers += (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_mode)
        if place is not None:
            self.elsewhere[path] = place

    @property
    def total_bytes(self) -> int:
        return sum(self.numbers[::_NUMBERS])

    def biggest(self, count: int) -> list[tuple[str, int]]:
        """Paths and sizes, the largest first."""
        both = zip(self.paths, self.numbers[::_NUMBERS], strict=True)
        return sorted(both, key=lambda each: (-each[1], each[0]))[:count]

    def signature(self) -> str:
        """The same for two looks only if no file was written, replaced, added, removed or renamed between."""
        digest = hashlib.sha256()
        links = [f"{path}\0{place}" for path, place in self.elsewhere.items()]
        digest.update("\0".join([*self.paths, "\0", *links, "\0"]).encode("utf-8", "surrogateescape"))
        try:
            digest.update(array("q", self.numbers))
        except OverflowError:
            # Inodes of some file systems, and times of damaged ones.
            digest.update(repr(self.numbers).encode())
        return digest.hexdigest()

    def local_files(self) -> list[LocalFile]:
        """All of them, in the order of the paths' bytes."""
        numbers = iter(self.numbers)
        told = zip(self.paths, *[numbers] * _NUMBERS, strict=True)
        found = [
            LocalFile(
                path,
                self.elsewhere.get(path) or f"{self.root}/{path}",
                size,
                mtime_ns,
                ctime_ns,
                inode,
                bool(mode & stat.S_IXUSR),
            )
            for path, size, mtime_ns, ctime_ns, inode, mode in told
        ]
        found.sort(key=lambda file: file.path.encode("utf-8", "surrogateescape"))
        return found
