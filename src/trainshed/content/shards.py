"""The folders that a local store's blobs lie in, and what else may have come to lie there.

There are 256, named after a digest's first two digits. People, backups and file managers leave things of
their own among them; what is no blob is passed over everywhere, never read as one and never removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path

NAME = re.compile(r"[0-9a-f]{64}")
_SHARDS = tuple(f"{number:02x}" for number in range(256))
# Making a `Path` of each of thousands costs more than looking.
_is_file, _status = os.path.isfile, os.stat
_LISTED_FROM = 8
"""Of fewer names of a shard each is looked for."""
_LISTED_EACH = 4
"""So many entries of a shard are read for each name that is looked for in it."""


class Shards:
    """The shards below ``root``. Where something cannot be read, `OSError` passes through.

    What is in the way of a blob and no file is moved to ``aside``, on the same file system.
    """

    def __init__(self, root: Path, aside: Path) -> None:
        self.root = root
        self._aside = aside

    def make(self) -> None:
        """Make all of them: a blob would be lost with a shard that was not made durable."""
        for shard in _SHARDS:
            (self.root / shard).mkdir(mode=0o700, parents=True, exist_ok=True)

    def place(self, name: str) -> Path:
        """Where the blob lies, if it does."""
        return self.root / name[:2] / name

    def is_file(self, name: str) -> bool:
        """Whether there is a file, and nothing else, in the place of the blob."""
        return _is_file(f"{self.root}/{name[:2]}/{name}")

    def absent(self, names: Collection[str]) -> set[str]:
        """Those of the blobs that there is no file of."""
        shards: dict[str, set[str]] = {}
        for name in names:
            shards.setdefault(name[:2], set()).add(name)
        return {name for shard, wanted in shards.items() for name in self._absent(shard, wanted)}

    def _absent(self, shard: str, wanted: set[str]) -> set[str]:
        """Those of one shard.

        Thousands are asked for at once, and reading a few entries of a folder costs less than looking for one
        of them. So the folder is read as far as that pays; what is not among it is looked for by name.
        """
        left = wanted
        if len(wanted) >= _LISTED_FROM:
            with contextlib.suppress(OSError), os.scandir(f"{self.root}/{shard}") as entries:
                some = islice(entries, _LISTED_EACH * len(wanted))
                left = wanted - {entry.name for entry in some if entry.is_file(follow_symlinks=False)}
        return {name for name in left if not self.is_file(name)}

    def unlike(self, sizes: Mapping[str, int]) -> set[str]:
        """Those of the blobs, SHA-256 -> bytes, that there is no file of that length of."""
        found = set()
        for name, size in sizes.items():
            try:
                status = _status(f"{self.root}/{name[:2]}/{name}")
            except OSError:
                found.add(name)
                continue
            if status.st_size != size or not stat.S_ISREG(status.st_mode):
                found.add(name)
        return found

    def files(self) -> Iterator[tuple[str, int]]:
        """Every blob and the bytes of its file."""
        for shard in _SHARDS:
            for entry in self._listed(shard):
                if _is_blob(shard, entry):
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, entry.stat(follow_symlinks=False).st_size

    def strangers(self) -> list[str]:
        """What is no blob and no shard, by its path below ``root``, in order; always text."""
        found: list[str] = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                if entry.name not in _SHARDS or not entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
                    continue
                shard = entry.name
                found += [f"{shard}/{each.name}" for each in self._listed(shard) if not _is_blob(shard, each)]
        return sorted(os.fsencode(place).decode("utf-8", "backslashreplace") for place in found)

    def clear(self, name: str) -> bool:
        """Move what is in the place of a blob and no file out of the way; whether there was such a thing."""
        place = self.place(name)
        try:
            if stat.S_ISREG(place.lstat().st_mode):
                return False
        except FileNotFoundError:
            return False
        self._aside.mkdir(mode=0o700, exist_ok=True)
        place.rename(self._aside / f"{name}-{secrets.token_hex(4)}")
        return True

    def _listed(self, shard: str) -> list[os.DirEntry[str]]:
        # A shard that is gone, or a file of that name, holds no blobs.
        try:
            with os.scandir(self.root / shard) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []


def _is_blob(shard: str, entry: os.DirEntry[str]) -> bool:
    return (
        NAME.fullmatch(entry.name) is not None
        and entry.name.startswith(shard)
        and entry.is_file(follow_symlinks=False)
    )
