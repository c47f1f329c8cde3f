"""JSON as callers must write it, and as we compare it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from trainshed.model.errors import Refusal

MAX_NESTING = 100
"""Levels of lists and objects in a body."""
MAX_DIGITS = 4_300
"""Of a whole number: to convert one takes time that grows with the square of its digits."""
_SHOWN_DIGITS = 40
_WORDS = {
    "Expecting value": "here has to be a value: text in double quotes, a number, true, false, null, [] or {}",
    "Expecting property name": "here has to be a key in double quotes, and no comma before a `}`",
    "Expecting ':'": "here has to be a `:` between a key and its value",
    "Expecting ','": "here has to be a `,` or the closing bracket",
    "Extra data": "something follows the end of the document",
    "Unterminated string": "the text that starts here has no closing double quote",
    "Invalid control character": "text holds a control character; a line break is written `\\n`, a tab `\\t`",
    "Invalid \\": "here is a `\\` that begins no escape; a backslash itself is written `\\\\`",
    "Unexpected UTF-8 BOM": "it begins with a byte order mark (BOM); save it without",
}
"""What the decoder says, by how it begins, in words of those who write JSON by hand."""
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def decode_json(body: bytes, what: str = "the body") -> Any:
    """Decode a request body strictly: UTF-8, no duplicate keys, no NaN or Infinity, bounded nesting.

    Raises `Refusal` with ``INVALID_REQUEST``.
    """
    # Everything that walks a document goes a stack frame deeper a level, up to the interpreter's limit.
    if _depth_exceeds(body, MAX_NESTING):
        raise Refusal.of("INVALID_REQUEST", f"{what} is nested deeper than {MAX_NESTING} levels")
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_pairs,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except _Number as error:
        raise Refusal.of("INVALID_REQUEST", f"{what} holds {error}") from None
    except json.JSONDecodeError as error:
        raise Refusal.of("INVALID_REQUEST", f"{what} is not JSON: {_told(error)}") from None
    except ValueError as error:
        raise Refusal.of("INVALID_REQUEST", f"{what} is not JSON: {error}") from None


def _told(error: json.JSONDecodeError) -> str:
    """Where it stops being JSON, and why; of what no reader meets the decoder's own words."""
    if not error.doc.strip():
        return "it is empty"
    said = next((said for words, said in _WORDS.items() if error.msg.startswith(words)), error.msg)
    return f"line {error.lineno}, column {error.colno}: {said}"


def _depth_exceeds(body: bytes, limit: int) -> bool:
    """Whether brackets outside strings nest deeper than ``limit``, in one pass over the brackets."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for token in _BRACKETS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            if depth > limit:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) != len(items):
        seen: set[str] = set()
        for name, _ in items:
            if name in seen:
                raise ValueError(f"the key {name[:80]!r} appears twice in one object")
            seen.add(name)
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _Number(ValueError):
    """A number that is JSON, and that we do not take."""


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Number(f"the number {_short(text)}, which is too large")
    return number


def _whole(text: str) -> int:
    digits = len(text.removeprefix("-"))
    if digits > MAX_DIGITS:
        raise _Number(f"a whole number of {digits} digits, {_short(text)}; at most {MAX_DIGITS} are read")
    return int(text)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}…"


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal texts exactly for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
