"""Collecting a Trial's declared outputs into the blob store (contract E67, E73, E77, E105).

The directory belongs to a program that may be hostile and may still have children running. Nothing outside it
is read, nothing undeclared is stored, every declared file that cannot be stored is named with a reason, and
the whole is bounded in files, bytes, time and directory entries. Collecting is a function of the tree alone:
doing it again, after a crash say, gives the same answer.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from trainshed.content.blobs import Blob, BlobError, BlobStore, StoreFull
from trainshed.content.steady import FileChanged, SteadyFile
from trainshed.jobkit.walk import Entry, Kind, UnreadableRoot, open_below, walk
from trainshed.model.globs import OutputPatterns
from trainshed.model.runner_tree import CONTROL_CHARACTER

MAX_NAME_BYTES = 1024
MAX_PROBLEMS = 200
"""Problems kept one by one; the rest is counted."""
_TRIES = 3
_STORING_THREADS = 4
_IN_FLIGHT = 16
"""Large files that are open at a time."""
_SMALL_BYTES = 64 << 10
"""Up to here storing a file by itself costs more than its bytes."""
_BUNDLE_FILES = 200
_BUNDLE_BYTES = 4 << 20
_HELD_BYTES = 16 << 20
"""Of small files that were read and are not stored yet."""
_A_FILE_BYTES = 4 << 10
"""What even an empty one counts as."""
_DRIVE = re.compile(r"[A-Za-z]:")


class OutputStatus(StrEnum):
    """How a collection ended; the words of ``output_status``."""

    NONE = "none"
    """Nothing was declared, or no file matched and none was promised."""
    COMPLETE = "complete"
    PARTIAL = "partial"
    """Some files are stored, others have problems."""
    FAILED = "failed"
    """There are problems and no file is stored."""


class ProblemCode(StrEnum):
    """Why a declared output is not, or not wholly, stored."""

    MISSING = "OUTPUT_MISSING"
    IS_LINK = "OUTPUT_IS_LINK"
    HARD_LINK = "OUTPUT_HARD_LINK"
    NOT_A_FILE = "OUTPUT_NOT_A_FILE"
    BAD_NAME = "OUTPUT_BAD_NAME"
    TOO_DEEP = "OUTPUT_TOO_DEEP"
    UNREADABLE = "OUTPUT_UNREADABLE"
    CHANGED = "OUTPUT_CHANGED"
    TOO_LARGE = "OUTPUT_TOO_LARGE"
    TOO_MANY = "OUTPUT_TOO_MANY"
    OUT_OF_TIME = "OUTPUT_OUT_OF_TIME"
    STORE_FULL = "OUTPUT_STORE_FULL"
    STORE_FAILED = "OUTPUT_STORE_FAILED"


@dataclass(frozen=True, slots=True)
class CollectLimits:
    """Bounds of one collection (E77)."""

    max_files: int = 10_000
    max_bytes: int = 256 << 30
    deadline_seconds: float = 900.0
    max_entries: int = 1_000_000
    """Directory entries looked at, declared or not."""


@dataclass(frozen=True, slots=True)
class CollectedFile:
    """A stored output. ``name`` is its path relative to the Trial's directory."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class OutputProblem:
    """A declared output that is not stored. ``name`` is printable: what is not, is escaped."""

    name: str
    code: ProblemCode
    message: str


@dataclass(frozen=True, slots=True)
class Collection:
    """The outcome: what is stored, and everything that is not."""

    files: tuple[CollectedFile, ...] = ()
    problems: tuple[OutputProblem, ...] = ()
    problems_not_shown: int = 0

    @property
    def status(self) -> OutputStatus:
        if not self.problems:
            return OutputStatus.COMPLETE if self.files else OutputStatus.NONE
        return OutputStatus.PARTIAL if self.files else OutputStatus.FAILED

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def store_failed(self) -> bool:
        """Whether storage, not the tree, was the obstacle: collecting again later may succeed."""
        blamed = {ProblemCode.STORE_FULL, ProblemCode.STORE_FAILED}
        return any(problem.code in blamed for problem in self.problems)


class CollectionCancelled(Exception):
    """The caller's ``cancelled`` said so. Files reported so far are stored."""


def collect(
    work: Path,
    patterns: OutputPatterns,
    baseline: Mapping[str, tuple[int, str]],
    blobs: BlobStore,
    limits: CollectLimits | None = None,
    *,
    on_file: Callable[[CollectedFile], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Collection:
    """Store every file below ``work`` that ``patterns`` declare and the program made or changed.

    ``baseline`` holds the Runner's own files as ``path -> (size, sha256)``; where they are unchanged they are
    not outputs. ``on_file`` is called for each file once it is stored and verified; what it raises passes
    through. Blocks for at most about ``limits.deadline_seconds``. Raises `CollectionCancelled`; everything
    else that goes wrong is a problem in the answer.
    """
    collector = _Collector(patterns, baseline, blobs, limits or CollectLimits(), on_file, cancelled)
    return collector.run(work) if patterns.patterns else Collection()


class _StopCollecting(Exception):
    def __init__(self, code: ProblemCode, message: str, name: str = "") -> None:
        super().__init__(message)
        self.problem = (code, message, name)


@dataclass(slots=True)
class _Bundle:
    """Small files that are stored together, or one large file."""

    contents: list[bytes] = field(default_factory=list)
    cost: int = 0
    stored: Future[list[Blob | BlobError]] | None = None
    """Set once a storing thread has it; each file's outcome."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A file that is not stored yet."""

    path: str
    size: int
    tries: int
    bundle: _Bundle
    place: int
    """Which of the bundle's files it is."""
    file: ExitStack | None = None
    """Closes a large one."""


@dataclass(slots=True)
class _Collector:
    patterns: OutputPatterns
    baseline: Mapping[str, tuple[int, str]]
    blobs: BlobStore
    limits: CollectLimits
    on_file: Callable[[CollectedFile], None]
    cancelled: Callable[[], bool]
    files: list[CollectedFile] = field(default_factory=list)
    problems: list[OutputProblem] = field(default_factory=list)
    not_shown: int = 0
    bytes_left: int = 0
    entries_left: int = 0
    ends_at: float = 0.0
    literals_left: dict[str, str] = field(default_factory=dict)
    links: Counter[tuple[int, int]] | None = None
    root: Path = Path()
    # Storing waits for the disk most of the time; several files waiting together are synced together.
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_STORING_THREADS, "collect"))
    pending: deque[_Pending] = field(default_factory=deque)
    bundle: _Bundle = field(default_factory=_Bundle)
    large: int = 0
    held: int = 0
    abandoned: bool = False

    def run(self, work: Path) -> Collection:
        self.root = work
        self.bytes_left = self.limits.max_bytes
        self.entries_left = self.limits.max_entries
        self.ends_at = time.monotonic() + self.limits.deadline_seconds
        self.literals_left = dict.fromkeys(sorted(self.patterns.literals), "the program did not write it")
        try:
            self._collect()
        finally:
            self.abandoned = True
            self.pool.shutdown(cancel_futures=True)
            for each in self.pending:
                if each.file is not None:
                    each.file.close()
        return Collection(tuple(self.files), tuple(self.problems), self.not_shown)

    def _collect(self) -> None:
        try:
            with closing(walk(self.root, self.patterns.may_match_below, self._count_entry)) as entries:
                for entry in entries:
                    self._take(entry)
            while self.pending:
                self._finish_first()
        except _StopCollecting as stop:
            code, message, name = stop.problem
            self._problem(name or ".", code, message)
        except UnreadableRoot as error:
            code = ProblemCode.MISSING if error.gone else ProblemCode.UNREADABLE
            self._problem(".", code, f"the Trial's directory cannot be read: {error.reason}")
        else:
            for name, reason in list(self.literals_left.items()):
                self._problem(name, ProblemCode.MISSING, reason)
        # After a stop: what was handed out before it still counts.
        while self.pending:
            with suppress(_StopCollecting):
                self._finish_first()

    def _problem(self, name: str, code: ProblemCode, message: str) -> None:
        self.literals_left.pop(name, None)
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(OutputProblem(_printable(name), code, message))
        else:
            self.not_shown += 1

    def _count_entry(self) -> None:
        self._check_time()
        self.entries_left -= 1
        if self.entries_left < 0:
            message = f"there are more than {self.limits.max_entries} entries; later ones are not looked at"
            raise _StopCollecting(ProblemCode.TOO_MANY, message)

    def _check_time(self) -> None:
        if self.abandoned or self.cancelled():
            raise CollectionCancelled
        if time.monotonic() > self.ends_at:
            message = (
                f"the {self.limits.deadline_seconds:g} s for collecting ended; later files are not stored"
            )
            raise _StopCollecting(ProblemCode.OUT_OF_TIME, message)

    def _take(self, entry: Entry) -> None:
        path, kind = entry.path, entry.kind
        if kind is Kind.DIRECTORY:
            if path in self.literals_left:
                self.literals_left[path] = f"it is a directory; declare `{path}/**` for the files below it"
        elif kind is Kind.UNREADABLE:
            self._problem(path, ProblemCode.UNREADABLE, f"the directory cannot be read: {entry.reason}")
        elif kind is Kind.TOO_DEEP:
            self._problem(
                path, ProblemCode.TOO_DEEP, "the directory lies too deep; what it holds is not stored"
            )
        elif kind is Kind.LINK:
            if self.patterns.match(path) or self.patterns.names_directory(path):
                self._problem(path, ProblemCode.IS_LINK, "it is a symbolic link; links are never followed")
        elif self.patterns.match(path):
            self._take_declared(entry)

    def _take_declared(self, entry: Entry) -> None:
        path = entry.path
        if entry.kind is Kind.SPECIAL:
            self._problem(path, ProblemCode.NOT_A_FILE, "it is a device, a FIFO or a socket")
        elif fault := _name_fault(path):
            self._problem(path, ProblemCode.BAD_NAME, fault)
        else:
            self._check_time()
            self._start(path, entry.open, _TRIES)

    def _start(self, path: str, open_file: Callable[[], int], tries: int) -> None:
        """Open a declared file, decide about it and have it stored, a small one together with others."""
        try:
            fd = open_file()
        except OSError as error:
            self._problem(path, *_open_problem(error))
            return
        with ExitStack() as file:
            file.callback(os.close, fd)
            try:
                if source := self._judge(path, fd):
                    if source.size <= _SMALL_BYTES:
                        self._add_small(path, source, tries)
                    else:
                        bundle = _Bundle(stored=self.pool.submit(self._store_large, source))
                        self.pending.append(_Pending(path, source.size, tries, bundle, 0, file.pop_all()))
                        self.large += 1
                    self.bytes_left -= source.size
            except FileChanged:
                self._again(path, tries)
            except OSError as error:
                self._problem(path, *_open_problem(error))
        while self.large > _IN_FLIGHT or self.held > _HELD_BYTES:
            self._finish_first()

    def _add_small(self, path: str, source: SteadyFile, tries: int) -> None:
        content = source.content()
        cost = len(content) + _A_FILE_BYTES
        if len(self.bundle.contents) == _BUNDLE_FILES or self.bundle.cost + cost > _BUNDLE_BYTES:
            self._hand_out(self.bundle)
        self.pending.append(_Pending(path, source.size, tries, self.bundle, len(self.bundle.contents)))
        self.bundle.contents.append(content)
        self.bundle.cost += cost
        self.held += cost

    def _hand_out(self, bundle: _Bundle) -> Future[list[Blob | BlobError]]:
        """Give it to a storing thread, unless one has it."""
        if bundle.stored is None:
            bundle.stored = self.pool.submit(self._store_small, bundle.contents)
            self.bundle = _Bundle()
        return bundle.stored

    def _store_large(self, source: SteadyFile) -> list[Blob | BlobError]:
        return [self.blobs.put(source, size=source.size)]

    def _store_small(self, contents: Sequence[bytes]) -> list[Blob | BlobError]:
        blobs = [Blob(hashlib.sha256(content).hexdigest(), len(content)) for content in contents]
        try:
            self.blobs.put_many(dict(zip(blobs, contents, strict=True)))
        except BlobError:
            # Perhaps some of them can be: then only the others have a problem.
            return [self._store_one(blob, content) for blob, content in zip(blobs, contents, strict=True)]
        return list(blobs)

    def _store_one(self, blob: Blob, content: bytes) -> Blob | BlobError:
        try:
            return self.blobs.put(io.BytesIO(content), sha256=blob.sha256, size=blob.size)
        except BlobError as error:
            return error

    def _finish_first(self) -> None:
        """Wait for the file that was found first, so that files are reported in order."""
        if self.cancelled():
            raise CollectionCancelled
        pending = self.pending.popleft()
        path = pending.path
        try:
            blob = self._outcome(pending)
        except FileChanged:
            self.bytes_left += pending.size
            self._again(path, pending.tries)
        except OSError as error:
            self.bytes_left += pending.size
            self._problem(path, *_open_problem(error))
        except StoreFull as error:
            message = f"the artifact store is full: {error}"
            raise _StopCollecting(ProblemCode.STORE_FULL, message, path) from error
        except BlobError as error:
            message = f"the artifact store failed: {error}"
            raise _StopCollecting(ProblemCode.STORE_FAILED, message, path) from error
        else:
            self.literals_left.pop(path, None)
            file = CollectedFile(path, blob.size, blob.sha256)
            self.files.append(file)
            self.on_file(file)

    def _outcome(self, pending: _Pending) -> Blob:
        """Wait for a file. Raises what storing it raised."""
        try:
            outcome = self._hand_out(pending.bundle).result()[pending.place]
        finally:
            if pending.file is None:
                self.held -= pending.size + _A_FILE_BYTES
            else:
                self.large -= 1
                pending.file.close()
        if isinstance(outcome, StoreFull) and (large := [each for each in self.pending if each.file]):
            # One that is too large may have taken the room for a moment.
            wait([self._hand_out(each.bundle) for each in large])
            content = pending.bundle.contents[pending.place]
            outcome = self._store_one(Blob(hashlib.sha256(content).hexdigest(), len(content)), content)
        if isinstance(outcome, BlobError):
            raise outcome
        return outcome

    def _again(self, path: str, tries: int) -> None:
        if tries > 1:
            self._start(path, lambda: open_below(self.root, path), tries - 1)
        else:
            message = f"it changed during each of {_TRIES} tries to read it"
            self._problem(path, ProblemCode.CHANGED, message)

    def _judge(self, path: str, fd: int) -> SteadyFile | None:
        """The file to store, or ``None`` if it is none of the outputs or has a problem."""
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            self._problem(path, ProblemCode.NOT_A_FILE, "it is not a regular file")
            return None
        if status.st_nlink > 1 and (outside := status.st_nlink - self._names_inside(status)) > 0:
            message = f"{outside} of its {status.st_nlink} hard links lie outside the Trial's directory"
            self._problem(path, ProblemCode.HARD_LINK, message)
            return None
        source = SteadyFile(fd, status, self._check_time)
        if self._is_unchanged(path, source):
            if path in self.literals_left:
                self.literals_left[path] = "it is the Runner's own file, unchanged"
            return None
        return source if self._has_room(path, source.size) else None

    def _has_room(self, path: str, size: int) -> bool:
        # What is still being stored may yet fail and leave its place, so it is waited for first.
        while self.pending and (size > self.bytes_left or self._files_reserved() >= self.limits.max_files):
            self._finish_first()
        if len(self.files) >= self.limits.max_files:
            message = f"at most {self.limits.max_files} files are stored; this one and later ones are not"
            raise _StopCollecting(ProblemCode.TOO_MANY, message, path)
        if size > self.bytes_left:
            message = (
                f"its {size} bytes exceed the {self.bytes_left} left "
                f"of the {self.limits.max_bytes} a Trial may store"
            )
            self._problem(path, ProblemCode.TOO_LARGE, message)
            return False
        return True

    def _files_reserved(self) -> int:
        return len(self.files) + len(self.pending)

    def _is_unchanged(self, path: str, source: SteadyFile) -> bool:
        size, sha256 = self.baseline.get(path, (-1, ""))
        return source.size == size and source.sha256() == sha256

    def _names_inside(self, status: os.stat_result) -> int:
        """How many names below the Trial's directory this file has; the tree is counted once, if ever."""
        if self.links is None:
            self.links = Counter()
            with closing(walk(self.root, lambda _: True, self._check_time)) as entries:
                for entry in entries:
                    if entry.kind is Kind.FILE:
                        with suppress(FileNotFoundError):
                            inode = entry.status()
                            self.links[inode.st_dev, inode.st_ino] += 1
        return self.links[status.st_dev, status.st_ino]


def _open_problem(error: OSError) -> tuple[ProblemCode, str]:
    if error.errno == errno.ELOOP:
        return ProblemCode.IS_LINK, "it is a symbolic link; links are never followed"
    if error.errno in {errno.ENXIO, errno.ENODEV}:
        return ProblemCode.NOT_A_FILE, "it is a device, a FIFO or a socket"
    if error.errno == errno.ENOENT:
        return ProblemCode.CHANGED, "it disappeared while outputs were collected"
    return ProblemCode.UNREADABLE, f"it cannot be read: {error.strerror}"


def _name_fault(path: str) -> str | None:
    """Why a file of this name cannot be an artifact (contract E b6), or ``None``."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    rules = (
        (CONTROL_CHARACTER.search(path), "its name holds control characters"),
        ("\\" in path, "its name holds a backslash"),
        (_DRIVE.match(path), "its name starts like a drive of another system"),
        (len(encoded) > MAX_NAME_BYTES, f"its name is longer than {MAX_NAME_BYTES} bytes"),
    )
    return next((message for broken, message in rules if broken), None)


def _printable(name: str) -> str:
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    text = CONTROL_CHARACTER.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return text if len(text) <= MAX_NAME_BYTES else f"{text[:MAX_NAME_BYTES]}…"
