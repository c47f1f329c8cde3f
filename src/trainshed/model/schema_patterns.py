r"""Patterns of a JSON Schema that a stranger wrote: what one costs is known before it is compiled.

The engine matches in linear time, but a pattern of ten characters, ``\w{110}``, compiles to 10 MiB. So the
size of the program is estimated from the text, every repetition multiplied out, and bounded for a schema.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

MAX_PATTERN_CHARS = 256
MAX_PATTERN_COST = 65_536
"""Of all patterns of a schema: at most about 0.1 s to compile and 10 MiB."""
MAX_COST_OF_ONE = 16_384
"""So at most 2 MiB, of which `_MAX_COMPILED` stay."""
_MAX_COMPILED = 32
_WORD, _DIGIT, _ANY, _PLAIN = 512, 32, 8, 1
_HEAVY = {**dict.fromkeys("wWpP", _WORD), **dict.fromkeys("dDsS", _DIGIT), **dict.fromkeys("xuU", _DIGIT)}
_TOKEN = re.compile(
    r"(?P<escape>\\(?:[pPxuU]\{[^}]*\}|[pP].|.))"
    r"|(?P<repeat>\{\s*(?P<low>\d*)\s*(?P<comma>,?)\s*(?P<high>\d*)\s*\})"
    r"|(?P<plain>.)",
    re.DOTALL | re.ASCII,
)
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)")


def pattern_fault(pattern: str) -> str | None:
    """Why ``pattern`` cannot be one of a schema, or ``None``. Compiles only what is cheap."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"has {len(pattern)} characters; a pattern has at most {MAX_PATTERN_CHARS}"
    if any("x" in flags for flags in _FLAGS.findall(pattern)):
        return "has the flag `x`, which is not taken: write the pattern without spaces and comments"
    if (cost := pattern_cost(pattern)) > MAX_COST_OF_ONE:
        return f"costs {cost}, {cost_rule()}"
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else None


def cost_rule() -> str:
    return (
        f"and one pattern may cost {MAX_COST_OF_ONE}, all of a schema {MAX_PATTERN_COST}: "
        f"{_PLAIN} a character or a class, {_ANY} a `.`, {_DIGIT} a `\\d` or `\\s`, "
        f"{_WORD} a `\\w` or `\\p`, times the repetitions `{{n}}` around it"
    )


@functools.lru_cache(maxsize=1024)
def pattern_cost(pattern: str) -> int:
    """The estimated size of the compiled pattern, in characters that it matches one after the other."""
    folded = any("i" in flags for flags in _FLAGS.findall(pattern))
    groups: list[int] = []  # what stands in the groups that are open, left of the innermost
    whole, atom, depth = 0, 0, 0  # depth is of square brackets: Rust's classes nest
    before = ""
    for found in _TOKEN.finditer(pattern):
        text = found[0]
        if depth:
            before, first = (before if text == "^" else text), before == "["
            if first and text == "]":  # right after the bracket it is a character as others are
                continue
            depth += (text == "[") - (text == "]")
            atom += _weight(text, folded=folded) - _PLAIN
        elif found["repeat"] and (found["low"] or found["high"]):
            atom *= _times(found["low"], found["comma"], found["high"])
        elif text == "(":
            groups.append(whole + atom)
            whole, atom = 0, 0
        elif text == ")" and groups:
            whole, atom = groups.pop(), _PLAIN + whole + atom
        elif text not in ("*", "+", "?", "|"):
            whole += atom
            depth, before = int(text == "["), text
            atom = _ANY if text == "." else (_DIGIT if folded and depth else _weight(text, folded=folded))
    return sum(groups) + whole + atom


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern is found in the text; a pattern at fault is in none."""
    compiled = _compiled(pattern)
    return not isinstance(compiled, str) and compiled.isinstance_python(text)


def _weight(text: str, *, folded: bool) -> int:
    if text.startswith("\\") and len(text) > 1:
        return _HEAVY.get(text[1], _PLAIN)
    if not text.isascii():
        return _DIGIT
    return _ANY if text == "^" or (folded and text.isalpha()) else _PLAIN


def _times(low: str, comma: str, high: str) -> int:
    # More digits than any bound needs would only cost the multiplication.
    numbers = [min(int(each[:9]), 10**6) for each in (low, high) if each]
    return max(1, *numbers) + (1 if comma and not high else 0)


@functools.lru_cache(maxsize=_MAX_COMPILED)
def _compiled(pattern: str) -> SchemaValidator | str:
    """The pattern, ready to be matched; or why there is none."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema  # noqa: PLC0415 - as json_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except (SchemaError, UnicodeEncodeError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        reason = reason.removeprefix("SchemaError: ").removeprefix("error: ")
        return (
            f"cannot be matched in linear time: {reason}. Look-around and backreferences are not taken, "
            "nor is what compiles to more than 10 MiB"
        )
