"""Content on this machine: every file that an Attempt is to see, verified, here, and kept while it is held.

Where the store is a local folder, a file is the stored blob itself. Where it is remote, blobs are brought
into a cache of bounded size. Folders are trees of hard links, so that any number of Attempts share one copy
(C13, decision 16). What an Attempt holds is written on disk, so that a restart knows it, and stays until it
is released.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainshed.content import linked_trees
from trainshed.content.blobs import BlobStore
from trainshed.content.flights import Cancelled, Flights, Progress, never, silent
from trainshed.content.verified import LocalContentError, VerifiedBlobs, damaged, explained
from trainshed.jobkit import tree as folders
from trainshed.model.content import ContentFile
from trainshed.model.manifests import ManifestScan

__all__ = ["Cancelled", "LocalContent", "LocalContentError", "Usage"]

DEFAULT_CACHE_BYTES = 100 << 30
_HOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HOLDS, _OWN, _ASIDE = "holds", "files", "~"
_LOOK_AGAIN_SECONDS = 60.0
_ALWAYS_LOOKED_AT = 10_000
"""A tree of more files and folders is believed to be whole for a minute while no Attempt that saw it ends."""
_TRIM_SECONDS = 30.0
_READABLE = 0o444


@dataclass(frozen=True, slots=True)
class Usage:
    """What the cache holds now."""

    bytes: int
    trees: int
    holders: int


@dataclass(slots=True)
class _Tree:
    info: linked_trees.TreeInfo
    used_at: float
    looked_at: float = 0.0
    released: bool = False
    """Whether an Attempt that could have changed it was released since it was looked at."""


class LocalContent:
    """See the module's description. Thread-safe; one process at a time makes use of a folder.

    Args:
        root: A folder of its own, best on the file system of a local ``blobs``: links reach no other one.
        blobs: Where content lies.
        limit_bytes: How much the cache keeps beside what Attempts hold. A local store's blobs do not count.
        clock: Unix seconds.
    """

    def __init__(
        self,
        root: Path,
        blobs: BlobStore,
        limit_bytes: int = DEFAULT_CACHE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = blobs
        self._limit = limit_bytes
        self._clock = clock
        self._trees_folder, self._building, self._held = root / "trees", root / "building", root / "held"
        for path in (root, self._trees_folder, self._building, self._held):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._blobs = VerifiedBlobs(root / "blobs", blobs, clock)
        self._lock = threading.RLock()
        self._flights = Flights()
        self._trees: dict[str, _Tree] = {}
        self._holds: dict[str, set[str]] = {}
        self._held_things: Counter[str] = Counter()
        self._pinned: Counter[str] = Counter()
        self._trimmed_at = float("-inf")
        self._remove_abandoned()
        self._read_trees()
        self._read_holds()

    @property
    def remote(self) -> bool:
        """Whether files must be brought here before they can be used."""
        return self._blobs.remote

    # What Attempts use

    def file(self, sha256: str, *, cancelled: Callable[[], bool] = never) -> Path:
        """A file with these bytes, to be read only. Costs a ``stat`` once it was verified.

        From a remote store it stays for certain only while somebody `hold_files` it. Raises
        `LocalContentError` and `Cancelled`.
        """
        return self._blobs.file(sha256, cancelled=cancelled)

    def hold_files(
        self,
        files: Mapping[str, int],
        holder: str,
        *,
        on_progress: Progress = silent,
        cancelled: Callable[[], bool] = never,
    ) -> Mapping[str, Path]:
        """`file` for each of ``files`` (SHA-256 -> size), kept here until ``holder`` releases them."""
        if self.remote:
            self._hold(holder, [f"file {sha256}" for sha256 in files])
        self._bring(files, on_progress, cancelled)
        with explained(self._held):
            return {sha256: self._blobs.place(sha256) for sha256 in files}

    def tree(
        self,
        manifest_sha256: str,
        holder: str,
        *,
        on_progress: Progress = silent,
        cancelled: Callable[[], bool] = never,
    ) -> Path:
        """A read-only folder with the files of a manifest, there until ``holder`` releases it.

        Raises `LocalContentError` and `Cancelled`; a tree is there wholly or not at all.
        """
        self._hold(holder, [f"tree {manifest_sha256}"])

        def files() -> Iterator[ContentFile]:
            try:
                place = self.file(manifest_sha256, cancelled=cancelled)
            except LocalContentError as error:
                raise error.of("its manifest") from error
            with place.open("rb") as manifest:
                yield from ManifestScan(manifest.read)

        return self._tree(manifest_sha256, files, manifest_sha256, on_progress, cancelled)

    def tree_of(
        self,
        files: Sequence[ContentFile],
        holder: str,
        *,
        on_progress: Progress = silent,
        cancelled: Callable[[], bool] = never,
    ) -> Path:
        """The same for files that no manifest lists, those of a Checkpoint say."""
        key = linked_trees.name_of(files)
        self._hold(holder, [f"tree {key}"])
        keeper = min((file.sha256 for file in files), default="")
        return self._tree(key, lambda: files, keeper, on_progress, cancelled)

    def own_file(self, name: str, data: bytes, holder: str) -> Path:
        """A read-only file for ``holder`` alone, gone with its release. Raises `LocalContentError`."""
        self._hold(holder, [])
        place = self._held / holder / _OWN / name
        part = place.with_name(f".{name}.{secrets.token_hex(4)}")
        with explained(place):
            place.parent.mkdir(mode=0o755, exist_ok=True)
            part.write_bytes(data)
            part.chmod(_READABLE)
            part.rename(place)
        return place

    def release(self, holder: str) -> None:
        """Let go of everything that ``holder`` held; a ``stat`` if that is nothing. Repeatable."""
        recently = 0 <= self._clock() - self._trimmed_at < _TRIM_SECONDS
        if self._let_go(holder) and not (recently and self._used() <= self._limit):
            self.trim()

    def _let_go(self, holder: str) -> bool:
        place = self._held / _checked(holder)
        if not place.exists():
            return False
        with self._lock:
            things = self._holds.pop(holder, set())
            self._held_things.subtract(things)
            self._held_things = +self._held_things
            for thing in things:
                if known := self._trees.get(thing.removeprefix("tree ")):
                    known.released = True
        folders.remove(place)
        for thing in things:
            if thing.startswith("tree "):
                self._remove_asides(thing.removeprefix("tree "))
        return True

    def release_others(self, known: Collection[str]) -> list[str]:
        """Let go of what holders not in ``known`` hold: they ended while nobody could tell us.

        Nothing is removed before the next `trim`.
        """
        with self._lock:
            gone = sorted(self._holds.keys() - set(known))
        for holder in gone:
            self._let_go(holder)
        return gone

    def usage(self) -> Usage:
        """What there is now."""
        with self._lock:
            return Usage(self._used(), len(self._trees), len(self._holds))

    def trim(self, needed: int = 0) -> None:
        """Remove what nobody holds, the least recently used first, until ``needed`` more bytes fit the limit.

        Trees whose content was deleted from the store go in any case, for their links keep its bytes.
        """
        self._trimmed_at = self._clock()
        for each in self._unwanted():
            self._evict(each)
        with self._lock:
            if self._used() + needed <= self._limit:
                return
            queue: list[tuple[float, str]]
            queue = [(t.used_at, name) for name, t in self._trees.items() if not self._is_held(name)]
            queue += [(at, f"file {sha256}") for at, sha256 in self._blobs.last_uses()]
            heapq.heapify(queue)
        while queue:
            with self._lock:
                if self._used() + needed <= self._limit:
                    return
            _, name = heapq.heappop(queue)
            if name.startswith("file "):
                self._drop_file(name.removeprefix("file "))
            else:
                self._evict(name)

    # Trees

    def _tree(
        self,
        key: str,
        files: Callable[[], Iterable[ContentFile]],
        keeper: str,
        on_progress: Progress,
        cancelled: Callable[[], bool],
    ) -> Path:
        def work(tell: Progress) -> Path:
            if self._is_whole(key):
                return self._trees_folder / key / linked_trees.FILES
            return self._build(key, files, keeper, tell, cancelled)

        return self._flights.share(key, work, on_progress=on_progress, cancelled=cancelled)

    def _is_whole(self, key: str) -> bool:
        """Whether the tree is there and as it was built. One that is not is put aside, never repaired."""
        now = self._clock()
        with self._lock:
            known = self._trees.get(key)
        if known is None:
            return False
        place = self._trees_folder / key
        fresh = (
            known.info.entries > _ALWAYS_LOOKED_AT
            and not known.released
            and 0 <= now - known.looked_at < _LOOK_AGAIN_SECONDS
        )
        if not fresh:
            known.released = False  # before the look: a release during it asks for another
        if not fresh and linked_trees.fault(place) is not None:
            # Attempts that hold it keep what they have: their mounts and links must not lose their files.
            with self._lock, explained(place):
                place.rename(self._trees_folder / f"{key}{_ASIDE}{secrets.token_hex(4)}")
                del self._trees[key]
            self._remove_asides(key)
            return False
        known.used_at, known.looked_at = now, now if not fresh else known.looked_at
        with contextlib.suppress(OSError):
            os.utime(place / linked_trees.INFO, (now, now))
        return True

    def _build(
        self,
        key: str,
        files: Callable[[], Iterable[ContentFile]],
        keeper: str,
        tell: Progress,
        cancelled: Callable[[], bool],
    ) -> Path:
        def check() -> None:
            if cancelled():
                raise Cancelled

        place = self._trees_folder / key
        try:
            sizes = {file.sha256: file.size for file in files()}
        except ValueError as error:
            raise damaged(f"the manifest {key} cannot be read: {error}") from error
        with self._pinning(sizes):
            try:
                self._bring(sizes, tell, cancelled)
            except LocalContentError as error:
                named = next((file.path for file in files() if file.sha256 == error.sha256), None)
                raise (error if named is None else error.of(f"its file `{named}`")) from error
            with self._building_folder() as part:
                try:
                    with explained(place):
                        info = linked_trees.build(part, files(), self._blobs.place, keeper, check)
                except linked_trees.CopyDiffers as error:
                    raise damaged(str(error), retryable=True) from error
                except ValueError as error:
                    raise damaged(f"the manifest {key} is none of a tree: {error}") from error
                with self._lock, explained(place):
                    part.rename(place)
                    now = self._clock()
                    self._trees[key] = _Tree(info, now, now)
        self.trim()
        return place / linked_trees.FILES

    @contextlib.contextmanager
    def _building_folder(self) -> Iterator[Path]:
        """A new folder, locked for as long as its builder lives; gone afterwards unless renamed."""
        part = self._building / secrets.token_hex(16)
        with explained(part):
            part.mkdir(mode=0o755)
            fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield part
        finally:
            os.close(fd)
            folders.remove(part)

    def _evict(self, key: str) -> None:
        """Remove a tree and the cached files that only it used, unless somebody holds it now."""
        grave = self._building / secrets.token_hex(16)
        with self._lock:
            if key not in self._trees or self._is_held(key):
                return
            del self._trees[key]
            with contextlib.suppress(OSError):
                (self._trees_folder / key).rename(grave)
        linked = list(linked_trees.inodes(grave)) if self.remote else []
        folders.remove(grave)
        for sha256 in self._blobs.named_by(linked):
            self._drop_file(sha256)

    def _drop_file(self, sha256: str) -> None:
        """Remove a cached file, unless it is held or a tree still links to it: that would free nothing."""
        with self._lock:
            if not self._is_held(f"file {sha256}") and not self._pinned[sha256]:
                self._blobs.drop(sha256)

    def _unwanted(self) -> list[str]:
        """Trees of content that a local store no longer has."""
        if self.remote:
            return []
        with self._lock:
            idle = [(k, t.info.keeper) for k, t in self._trees.items() if not self._is_held(k)]
        return [key for key, keeper in idle if keeper and not self._store.exists(keeper)]

    def _remove_asides(self, key: str) -> None:
        with self._lock:
            if self._is_held(key):
                return
            found = list(self._trees_folder.glob(f"{key}{_ASIDE}*"))
        for each in found:
            folders.remove(each)

    def _used(self) -> int:
        return sum(tree.info.own_bytes for tree in self._trees.values()) + self._blobs.bytes

    # Files

    def _bring(self, sizes: Mapping[str, int], on_progress: Progress, cancelled: Callable[[], bool]) -> None:
        missing = sum(sizes[sha256] for sha256 in self._blobs.missing(sizes))
        if missing:
            self.trim(missing)
        with self._pinning(sizes):
            self._blobs.bring(sizes, on_progress=on_progress, cancelled=cancelled)

    @contextlib.contextmanager
    def _pinning(self, names: Iterable[str]) -> Iterator[None]:
        """Keep cached files from being dropped meanwhile."""
        with self._lock:
            self._pinned.update(names)
        try:
            yield
        finally:
            with self._lock:
                self._pinned.subtract(names)
                self._pinned = +self._pinned

    # Holds

    def _hold(self, holder: str, things: Sequence[str]) -> None:
        """Write down that ``holder`` needs these things, before any of them is looked for."""
        place = self._held / _checked(holder)
        with self._lock, explained(place):
            known = self._holds.setdefault(holder, set())
            place.mkdir(mode=0o755, exist_ok=True)
            if new := [thing for thing in things if thing not in known]:
                with (place / _HOLDS).open("a", encoding="utf-8") as file:
                    file.write("".join(f"{thing}\n" for thing in new))
                known.update(new)
                self._held_things.update(new)

    def _is_held(self, name: str) -> bool:
        return (name if name.startswith("file ") else f"tree {name}") in self._held_things

    # What an earlier process left

    def _remove_abandoned(self) -> None:
        for part in self._building.iterdir():
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    folders.remove(part)
                except BlockingIOError:
                    continue
                finally:
                    os.close(fd)

    def _read_trees(self) -> None:
        for place in self._trees_folder.iterdir():
            if _ASIDE in place.name:
                continue
            info = linked_trees.read_info(place)
            if info is None:
                folders.remove(place)
            else:
                self._trees[place.name] = _Tree(info, (place / linked_trees.INFO).stat().st_mtime)

    def _read_holds(self) -> None:
        for place in self._held.iterdir():
            things = self._holds[place.name] = set()
            with contextlib.suppress(FileNotFoundError):
                things.update((place / _HOLDS).read_text(encoding="utf-8").splitlines())
            self._held_things.update(things)
        for place in self._trees_folder.glob(f"*{_ASIDE}*"):
            self._remove_asides(place.name.partition(_ASIDE)[0])


def _checked(holder: str) -> str:
    if not _HOLDER.fullmatch(holder):
        raise ValueError(f"{holder[:80]!r} cannot hold content")
    return holder
