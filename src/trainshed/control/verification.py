"""Looking for damage: every byte is read again and compared with its digest and with the manifests.

Reads the store and the database and changes neither. It goes by digest, so it can stop anywhere and go on
there; what is collected meanwhile is no damage.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from trainshed.content.blobs import BlobError, BlobNotFound, BlobReader, BlobStore, DigestMismatch
from trainshed.content.bundles import BUNDLES, read_packed
from trainshed.content.trees import verify_manifest
from trainshed.model import mending
from trainshed.model.content import ContentKind
from trainshed.model.errors import Refusal
from trainshed.store import holders
from trainshed.store.database import Database
from trainshed.store.holders import Holders, Scope

_NOT_RECORDED = "it is not recorded"
_AT_ONCE = 500
_TELL_SECONDS = 0.5
_SMALLEST_PIECE, _LARGEST_PIECE = 64 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """How far it has come. Handed back, it goes on there."""

    part: str = "blobs"
    after: str = ""
    checked: int = 0
    """Blobs and manifests."""
    bytes: int = 0
    damaged: int = 0

    def behind(self, sha256: str, damage: Damage | None, size: int = 0) -> Place:
        """The place behind one more blob or manifest."""
        return replace(
            self,
            after=sha256,
            checked=self.checked + 1,
            bytes=self.bytes + size,
            damaged=self.damaged + (damage is not None),
        )


@dataclass(frozen=True, slots=True)
class Damage:
    """One blob or manifest that is not as it was stored."""

    sha256: str
    problem: str
    """``missing``, ``changed``, ``unreadable``, or ``manifest``: its rows are not what it says."""
    message: str
    affected: Holders
    advice: str


@dataclass(frozen=True, slots=True)
class Step:
    """What was found since the last one, and the place to go on from."""

    place: Place
    damage: Damage | None = None
    stranger: str | None = None
    """What lies among the blobs and is none; no damage, but nothing of ours either."""
    reading: int = 0
    """Bytes of the blob that is being read now; it begins anew where somebody goes on."""


@dataclass(frozen=True, slots=True)
class TakenOut:
    """What `take_out` did."""

    damaged: bool
    """The bytes were damaged, or gone; neither they nor their row are there now."""
    advice: str
    """What is left to do."""
    corrected: bool = False
    """They are right, and the row said another size."""


@dataclass(slots=True)
class Pace:
    """Bounds how many bytes are read a second. ``wait`` waits, and is told seconds."""

    bytes_per_second: float
    wait: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _begun: float = field(init=False)
    _read: int = 0

    def __post_init__(self) -> None:
        self._begun = self.clock()

    @property
    def piece_bytes(self) -> int:
        """How much is read at once, so that a slow pace is kept within a second or so."""
        return int(min(_LARGEST_PIECE, max(_SMALLEST_PIECE, self.bytes_per_second / 4)))

    def count(self, size: int) -> None:
        """``size`` bytes were read."""
        self._read += size
        ahead = self._read / self.bytes_per_second - (self.clock() - self._begun)
        if ahead > 0:
            self.wait(ahead)


class Verification:
    """One look at a scope."""

    def __init__(self, database: Database, blobs: BlobStore, scope: Scope, pace: Pace) -> None:
        self._database = database
        self._blobs = blobs
        self._scope = scope
        self._pace = pace

    def total(self) -> tuple[int, int]:
        """How many blobs there are to read, and their bytes, as recorded now."""
        with self._database.read() as connection:
            return holders.total_of(connection, self._scope)

    def run(self, place: Place) -> Generator[Step, None, None]:
        """Look at everything behind ``place``; a step at least every half second."""
        if place.part == "blobs":
            place = yield from self._all_blobs(place)
            place = replace(place, part="unrecorded", after="")
            yield Step(place)
        if place.part == "unrecorded":
            if self._scope.everything:  # blobs of a smaller scope are told by its manifests, rows or not
                place = yield from self._all_unrecorded(place)
            place = replace(place, part="manifests", after="")
            yield Step(place)
        if place.part == "manifests":
            place = yield from self._all_manifests(place)
            place = replace(place, part="strangers", after="")
            yield Step(place)
        if self._scope.everything:
            yield from self._all_strangers(place)

    def _all_strangers(self, place: Place) -> Iterator[Step]:
        for stranger in self._blobs.strangers():
            if stranger > place.after:
                place = replace(place, after=stranger)
                yield Step(place, stranger=stranger)

    def _all_blobs(self, place: Place) -> Generator[Step, None, Place]:
        told = time.monotonic()
        while True:
            with self._database.read() as connection:
                some = holders.blobs_after(connection, self._scope, place.after, _AT_ONCE)
            if not some:
                return place
            for sha256, size in some:
                found: tuple[str, str] | None = None
                for progress in self._read(sha256, size):
                    if isinstance(progress, int):
                        if time.monotonic() - told >= _TELL_SECONDS:
                            told = time.monotonic()
                            yield Step(place, reading=progress)
                    else:
                        found = progress
                damage = self._damage(sha256, *found) if found else None
                place = place.behind(sha256, damage, size or 0)
                if damage is not None or time.monotonic() - told >= _TELL_SECONDS:
                    told = time.monotonic()
                    yield Step(place, damage)

    def _all_unrecorded(self, place: Place) -> Generator[Step, None, Place]:
        """What manifests hold and no row says: one damage each, however many manifests hold it."""
        while True:
            with self._database.read() as connection:
                some = holders.unrecorded_after(connection, place.after, _AT_ONCE)
            if not some:
                return place
            for sha256 in some:
                damage = self._damage(sha256, "missing", _NOT_RECORDED)
                place = place.behind(sha256, damage)
                if damage is not None:
                    yield Step(place, damage)

    def _read(self, sha256: str, size: int | None) -> Iterator[int | tuple[str, str]]:
        """How many bytes were read so far, again and again; at the end the problem, if there is one."""
        if size is None:
            yield "missing", _NOT_RECORDED
            return
        digest, done = hashlib.sha256(), 0
        try:
            with self._blobs.open(sha256) as reader:
                _forget_cached(reader)
                for piece in reader.chunks(self._pace.piece_bytes):
                    digest.update(piece)
                    done += len(piece)
                    self._pace.count(len(piece))
                    yield done
        except BlobNotFound:
            yield "missing", "its bytes are gone"
            return
        except DigestMismatch as error:
            yield "changed", str(error)
            return
        except (BlobError, OSError) as error:
            yield "unreadable", f"it cannot be read: {error}"
            return
        if (found := digest.hexdigest()) != sha256:
            yield "changed", f"its {done} bytes have the SHA-256 {found}"
        elif done != size:
            yield "changed", f"it has {done} bytes and is recorded with {size}"

    def _all_manifests(self, place: Place) -> Generator[Step, None, Place]:
        while True:
            with self._database.read() as connection:
                some = holders.manifests_after(connection, self._scope, place.after, _AT_ONCE)
            if not some:
                return place
            for sha256, kind in some:
                problem = self._manifest_problem(sha256, kind)
                damage = self._damage(sha256, "manifest", problem) if problem else None
                place = place.behind(sha256, damage)
                if damage is not None:
                    yield Step(place, damage)
            yield Step(place)

    def _manifest_problem(self, sha256: str, kind: str) -> str | None:
        """Why what the rows of a manifest keep is not what it says, ``None`` if it is.

        What they keep and is not stored, or recorded with another size, was told of the blob itself.
        """
        try:
            said = self._said(sha256, kind)
        except (BlobError, OSError):
            return None  # its own bytes are a blob, which was looked at already
        except (Refusal, ValueError) as error:
            return f"it cannot be understood: {error}"
        with self._database.read() as connection:
            held = holders.held_by(connection, sha256)
        if lacking := sorted(said.keys() - held.keys()):
            return f"{len(lacking)} of its files are not kept, {lacking[0]} for one"
        return None

    def _said(self, sha256: str, kind: str) -> dict[str, int]:
        """What a manifest says it holds: SHA-256 -> bytes."""
        if kind == BUNDLES:
            with self._blobs.open(sha256) as reader:
                return read_packed(reader.read, sha256).blobs
        if kind != "runners":
            with self._blobs.open(sha256) as reader:
                return verify_manifest(reader.read, ContentKind(kind), sha256).blobs
        with self._database.read() as connection:
            text = holders.runner_manifest(connection, sha256)
        if text is None:
            return {}
        if hashlib.sha256(text.encode()).hexdigest() != sha256:
            raise ValueError("its text does not have its digest")
        return {file["sha256"]: file["size"] for file in json.loads(text)["files"]}

    def _damage(self, sha256: str, problem: str, message: str) -> Damage | None:
        """The damage with all that it affects; ``None`` if the blob was collected meanwhile."""
        with self._database.read() as connection:
            affected = holders.holders_of(connection, sha256, first=self._scope.asked)
            if problem == "missing" and not affected.any and not holders.still_recorded(connection, sha256):
                return None
        advice = advice_for(problem, affected, taken_out=message == _NOT_RECORDED)
        return Damage(sha256, problem, message, affected, advice)


def advice_for(problem: str, affected: Holders, *, taken_out: bool = False) -> str:
    """What to do about a damage, in a sentence; once it is ``taken_out`` publishing alone is left."""
    if not affected.any:
        return "Nothing needs it: it will be collected, and --repair takes it out at once."
    if problem == "unreadable":
        return (
            "Look after the disk or the store, then verify again; if it stays so, restore it from a backup."
        )
    if affected.can_be_published_again:
        return _publish_again(problem, affected, taken_out)
    if affected.artifacts.count and affected.jobs.count:
        again = mending.rerun(affected.jobs.shown[0])
        return f"Only a program produced it. Restore it from a backup, or run it again: {again}."
    return "Restore it from a backup, or publish what needs it again."


def _publish_again(problem: str, affected: Holders, taken_out: bool) -> str:  # noqa: FBT001 - as its caller
    target, publish = _published(affected)
    if problem == "manifest":
        return f"Publish it again: {publish}. If verifying tells of it then, restore the database."
    if taken_out:
        return f"Publish it again, which sends what is missing: {publish}."
    return f"With the owner key {mending.take_out(target)}, then publish it again: {publish}."


def _published(affected: Holders) -> tuple[str, str]:
    """One of what is made of a blob: its reference, and the command that publishes it again."""
    if affected.versions.count:
        kind, _, target = affected.versions.shown[0].partition(" ")
        name, _, version = target.rpartition("@")
        return target, mending.publish_content(ContentKind(kind), name, version)
    target = affected.revisions.shown[0]
    name, _, revision = target.rpartition("@")
    return target, mending.publish_runner(name, revision)


def _forget_cached(reader: BlobReader) -> None:
    """What is read shall come from the device, not from memory, where the system can be told."""
    number: Any = getattr(reader, "fileno", None)
    if number is not None and hasattr(os, "posix_fadvise"):
        try:
            os.posix_fadvise(number(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            return


def take_out(
    database: Database, blobs: BlobStore, sha256: str, clock: Callable[[], float], *, asked: str = ""
) -> TakenOut:
    """Remove the bytes of a blob if they are damaged, so that publishing sends them; what was done.

    Its row goes with them: whoever publishes what holds it is told that it is missing. Nobody can store it
    meanwhile. Bytes that are right correct a row that says another size. The advice names ``asked``, a
    version, before others that hold the blob. Raises `Refusal` ``BLOB_NOT_FOUND``,
    ``BLOB_BEING_DELETED``, ``RESOURCE_IN_USE`` where a program produced what is damaged and nobody could send
    it again, and what the store raises.
    """
    with database.read() as connection:
        recorded = holders.still_recorded(connection, sha256)
        affected = holders.holders_of(connection, sha256, first=asked)
    if not recorded and not affected.any:
        raise Refusal.of("BLOB_NOT_FOUND", f"there is no blob {sha256}", path="sha256")
    irreplaceable = affected.any and not affected.can_be_published_again
    if not recorded:
        if irreplaceable:
            raise _irreplaceable()
        return TakenOut(damaged=True, advice=_then(affected))
    mark = clock()
    if not database.write(lambda c: holders.seize(c, sha256, at=mark)):
        raise Refusal.of("BLOB_BEING_DELETED", f"blob {sha256} is being removed", path="sha256")
    gone, size = False, None
    try:
        try:
            size = blobs.verify(sha256).size
        except (BlobNotFound, DigestMismatch) as error:
            if irreplaceable:
                raise _irreplaceable() from error
            blobs.delete(sha256)
            gone = True
    finally:
        corrected = database.write(lambda c: holders.release(c, sha256, mark=mark, gone=gone, size=size))
    if gone:
        return TakenOut(damaged=True, advice=_then(affected))
    said = "Its record was corrected" if corrected else "It is intact"
    return TakenOut(damaged=False, corrected=corrected, advice=f"{said}: nothing is left to do.")


def _then(affected: Holders) -> str:
    if not affected.any:
        return "It was taken out; nothing needs it, so nothing is left to do."
    return advice_for("missing", affected, taken_out=True)


def _irreplaceable() -> Refusal:
    said = "a program produced it, so nobody could send it again; restore it from a backup"
    return Refusal.of("RESOURCE_IN_USE", said, path="sha256")
