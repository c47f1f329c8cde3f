"""Reading a manifest of any length entry by entry, and the rules for the names in it.

`Manifest.encode` writes one form only, so a manifest can be read with the memory of one entry, continued
at any byte where an entry starts, and searched by halving: its files are in the order of their paths.
Both sides of a publication apply the rules: the client before it uploads, the server before it believes.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trainshed.model.content import MANIFEST_SCHEMA, ContentFile, ContentKind
from trainshed.model.errors import Fault, Refusal
from trainshed.model.runner_tree import MAX_PATH_BYTES, path_fault, path_text
from trainshed.model.strict_json import canonical_json, decode_json

MAX_FILES = 1_000_000
MAX_MANIFEST_BYTES = 256 << 20
MAX_ABOUT_BYTES = 256 << 10
MAX_FILE_BYTES = 10**18 - 1
SHOWN_FAULTS = 100
_CODE = "INVALID_CONTENT"
_CHUNK = 1 << 18
_LONGEST_ENTRY = 16 << 10
_DECODER = json.JSONDecoder()
_HEAD = b'{"about":'
_FILES = b',"files":['
_ENTRY = re.compile(
    rb'\{(?:"executable":(true),)?"path":("(?:[^"\\\x00-\x1f]|\\.)*"),"sha256":"([0-9a-f]{64})",'
    rb'"size":(0|[1-9][0-9]{0,17})\}'
)
_PLAIN = re.compile(r"(?=.{1,255}\Z)(?:[A-Za-z0-9_-][A-Za-z0-9 ._-]*/)*[A-Za-z0-9_-][A-Za-z0-9 ._-]*")
"""Most paths: a short one with nothing in it that any rule is about."""
_TAIL = re.compile(rb'\],"kind":"([a-z]{1,40})","schema":"' + re.escape(MANIFEST_SCHEMA.encode()) + rb'"\}')
_DRIVE = re.compile(r"[A-Za-z]:")
ENTRY_START = re.compile(rb',\{"(?:executable|path)":')
"""What precedes every entry but the first. A quote inside a text is escaped, so no text holds this."""


class ManifestFault(ValueError):
    """The bytes are not what `Manifest.encode` writes; the message says where."""


class ManifestScan:
    """Reads canonical bytes in one pass: ``about`` at once, the files by iterating, the rest after them.

    ``read(n)`` answers at most ``n`` bytes, ``b""`` at the end. Raises `ManifestFault`; where ``tell`` is
    given it is told the place and the fault of each entry at fault, and reading goes on as far as it can: of
    an entry that is not canonical the path alone counts, with no size and no digest (0 and ``""``), and of
    no more of them than faults are shown.
    """

    def __init__(self, read: Callable[[int], bytes], tell: Callable[[str, str], None] | None = None) -> None:
        self._read = read
        self._tell = tell
        self._digest = hashlib.sha256()
        self._buffer = b""
        self._place = 0
        self._dropped = 0
        self._ended = False
        self._undecoded = SHOWN_FAULTS
        self._paths = SHOWN_FAULTS
        self.about: dict[str, Any] = self._about()
        self.files_start = self._position()
        """The byte at which the first entry starts."""
        self.kind: ContentKind | None = None
        self.files = 0
        self.total_bytes = 0
        self.unread = 0
        """Entries at fault of which not even the path was read: what is missing may be among them."""

    def __iter__(self) -> Iterator[ContentFile]:
        before = b""
        separator = b""
        while not self._at(b"]"):
            self._expect(separator)
            separator = b","
            file = self._entry()
            if file is None:
                self.files += 1
                continue
            order = file.path.encode("utf-8", "surrogatepass")
            if not order:
                self._fault("the path is empty")
            elif order <= before:
                said = (
                    "is listed twice" if order == before else "is not in the order of the paths' UTF-8 bytes"
                )
                self._fault(f"`{path_text(file.path)}` {said}")
            before = order
            self.files += 1
            self.total_bytes += file.size
            if order:
                yield file
        self._end()

    def _fault(self, message: str) -> None:
        where = f"files[{self.files}]"
        if self._tell is None:
            raise ManifestFault(f"{where}: {message}")
        self._tell(where, message)

    @property
    def sha256(self) -> str:
        """The manifest's name; whole once the files were iterated."""
        return self._digest.hexdigest()

    @property
    def size(self) -> int:
        """Bytes read."""
        return self._dropped + len(self._buffer)

    def _position(self) -> int:
        return self._dropped + self._place

    def _fill(self, wanted: int) -> bool:
        """Have ``wanted`` bytes from the place on, or all there are; whether there are so many."""
        while not self._ended and len(self._buffer) - self._place < wanted:
            piece = self._read(_CHUNK)
            if not piece:
                self._ended = True
                break
            self._digest.update(piece)
            self._dropped += self._place
            self._buffer = self._buffer[self._place :] + piece
            self._place = 0
            if self.size > MAX_MANIFEST_BYTES:
                raise ManifestFault(f"a manifest has at most {MAX_MANIFEST_BYTES} bytes")
        return len(self._buffer) - self._place >= wanted

    def _at(self, text: bytes) -> bool:
        self._fill(len(text))
        return self._buffer.startswith(text, self._place)

    def _expect(self, text: bytes) -> None:
        if not self._at(text):
            raise ManifestFault(f"byte {self._position()}: `{text.decode()}` must stand here")
        self._place += len(text)

    def _about(self) -> dict[str, Any]:
        self._expect(_HEAD)
        self._fill(MAX_ABOUT_BYTES + len(_FILES))
        text = self._buffer[self._place : self._place + MAX_ABOUT_BYTES].decode("latin-1")
        try:
            _, length = json.JSONDecoder().raw_decode(text)
            about = decode_json(text[:length].encode())
            whole = isinstance(about, dict) and canonical_json(about) == text[:length]
            json.dumps(about, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise ManifestFault(
                f"`about` is no JSON object, or longer than {MAX_ABOUT_BYTES} bytes, or not text"
            ) from None
        except Refusal as refusal:
            raise ManifestFault(f"`about`: {refusal.message}") from None
        if not whole:
            raise ManifestFault(
                "`about` is not written canonically: an object, keys sorted, no spaces, ASCII"
            )
        self._place += length
        self._expect(_FILES)
        return dict(about)

    def _entry(self) -> ContentFile | None:
        """The next entry; ``None`` for one at fault, where reading can go on behind it."""
        if self.files == MAX_FILES:
            raise ManifestFault(f"a content has at most {MAX_FILES} files; pack small ones together")
        self._fill(_LONGEST_ENTRY)
        match = _ENTRY.match(self._buffer, self._place)
        path = _path_of(match[2]) if match else None
        if match is None or path is None:
            return self._at_fault()
        self._place = match.end()
        return ContentFile(path, int(match[4]), match[3].decode(), executable=match[1] is not None)

    def _at_fault(self) -> ContentFile | None:
        """Tell of an entry that is not canonical and go on behind it; its path, if that can be read."""
        said = (
            "is not written canonically: an object with `path`, `sha256`, `size` and, only if true, "
            "`executable`; keys sorted, no spaces, ASCII"
        )
        behind, path = (None, None) if self._tell is None else self._behind()
        if self._tell is None or behind is None:
            raise ManifestFault(f"files[{self.files}] (byte {self._position()}) {said}")
        self._tell(f"files[{self.files}]", said)
        self._place = behind
        # Judging a path may cost more than reading its entry: what is refused anyway shall not.
        if path is None or not self._paths:
            self.unread += 1
            return None
        self._paths -= 1
        return ContentFile(path, 0, "")

    def _behind(self) -> tuple[int | None, str | None]:
        """Where reading goes on behind an entry at fault, and its path; ``None`` for what cannot be told."""
        # Decoding what is JSON costs what it is long. What is none may cost a window and get on by a few
        # bytes, so that is tried for no more entries than are shown.
        if self._undecoded:
            text = self._buffer[self._place : self._place + _LONGEST_ENTRY].decode("latin-1")
            try:
                value, length = _DECODER.raw_decode(text)
            except (ValueError, RecursionError):
                value, length = None, 0
            if length and text[length : length + 1] in {",", "]"}:
                return self._place + length, _path_in(text[:length], value)
            self._undecoded -= 1
        following = ENTRY_START.search(self._buffer, self._place)
        return (following.start() if following else None), None

    def _end(self) -> None:
        self._fill(_LONGEST_ENTRY)
        match = _TAIL.fullmatch(self._buffer, self._place)
        word = match[1].decode() if match else ""
        if word not in set(ContentKind):
            raise ManifestFault(
                f'byte {self._position()}: a manifest ends with its `kind` and `"schema":"{MANIFEST_SCHEMA}"`'
            )
        self.kind = ContentKind(word)


def read_entries(data: bytes) -> Iterator[tuple[int, ContentFile]]:
    """The whole entries at the start of ``data``, each with the byte after it (and after its comma).

    ``data`` is part of a verified manifest and begins where an entry does.
    """
    place = 0
    while match := _ENTRY.match(data, place):
        place = match.end() + 1
        path = _path_of(match[2])
        assert path is not None  # noqa: S101 - only verified manifests are read so
        yield place, ContentFile(path, int(match[4]), match[3].decode(), executable=match[1] is not None)


@dataclass(slots=True)
class PathRules:
    """Judges the names of a tree one by one: each for itself, and against all before it."""

    faults: list[Fault] = field(default_factory=list)
    """The first `SHOWN_FAULTS`."""
    broken: int = 0
    """Faults in all."""
    _known: dict[str, str] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=set)
    _files: set[str] = field(default_factory=set)

    def add(self, path: str) -> None:
        """Judge a file's path. Names in every script are fine; one file must not hide another anywhere."""
        if not _PLAIN.fullmatch(path) and (fault := _path_fault(path)):
            self.fault(path, f"`{path_text(path)}` {fault}")
            return
        self._files.add(path)
        self._meets(path)
        above = path.rpartition("/")[0]
        while above and above not in self._folders:
            self._folders.add(above)
            self._meets(above)
            above = above.rpartition("/")[0]

    def fault(self, path: str, message: str) -> None:
        self.broken += 1
        if len(self.faults) < SHOWN_FAULTS:
            self.faults.append(Fault(path_text(path), _CODE, message))

    @property
    def left_out(self) -> int:
        """Faults beside those in ``faults``."""
        return self.broken - len(self.faults)

    def finish(self) -> list[Fault]:
        """The first faults, with those that only the whole tree shows; ``left_out`` counts the others."""
        for both in sorted(self._files & self._folders):
            self.fault(both, f"`{path_text(both)}` is both a file and a directory")
        return self.faults

    def _meets(self, path: str) -> None:
        """Names that differ only in case or composition are one name on other systems."""
        if path.isascii():
            folded = path.lower()
        else:
            folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        other = self._known.setdefault(folded if folded != path else path, path)
        if other != path:
            same = unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", path)
            how = "the composition of their characters (NFC, NFD)" if same else "case"
            self.fault(path, f"{_named(other)} and {_named(path)} differ only in {how}; rename one")


def tree_faults(paths: Iterable[str]) -> list[Fault]:
    """Everything that keeps files of these names from being a content; empty if nothing does."""
    rules = PathRules()
    for path in paths:
        rules.add(path)
    return rules.finish()


def _path_fault(path: str) -> str | None:
    if _DRIVE.match(path):
        return "starts like a drive of another system; rename it"
    return path_fault(path)


def _path_of(literal: bytes) -> str | None:
    """The text of a JSON literal, ``None`` unless it is written canonically."""
    if b"\\" not in literal:
        return literal[1:-1].decode() if literal.isascii() else None
    try:
        path = json.loads(literal)
    except ValueError:
        return None
    return path if isinstance(path, str) and canonical_json(path).encode() == literal else None


def _path_in(text: str, entry: Any) -> str | None:
    """The path of an entry that is not canonical, ``None`` if it has none that a file could have.

    ``text`` has a character for each byte, ``entry`` is what it says if all of them are ASCII.
    """
    if not text.isascii():
        try:
            entry = json.loads(text.encode("latin-1"))
        except ValueError:
            return None
    path = entry.get("path") if isinstance(entry, dict) else None
    return path if isinstance(path, str) and len(path) <= MAX_PATH_BYTES else None


def _named(path: str) -> str:
    """A name so that it can be told from others that look the same."""
    return f"`{path_text(path)}`" + ("" if path.isascii() else f" ({ascii(path)[1:-1][:200]})")
