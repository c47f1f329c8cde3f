"""Limits and cursors of lists (contract E b0)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trainshed.model.errors import Refusal
from trainshed.server.cursors import CursorFault, CursorSeal
from trainshed.server.shapes.common import Page

T = TypeVar("T")
V = TypeVar("V")

MAX_PAGE = 100
DEFAULT_PAGE = 25
_NUMBER = re.compile(r"[0-9]{1,9}")


def page_limit(query: Mapping[str, str], default: int = DEFAULT_PAGE) -> int:
    """The ``limit`` of a list; raises `Refusal` ``INVALID_LIMIT``."""
    limit = bounded_number(query, "limit", 1, MAX_PAGE, "INVALID_LIMIT")
    return default if limit is None else limit


def bounded_number(query: Mapping[str, str], name: str, least: int, most: int, code: str) -> int | None:
    """A whole number of the query in ``least..most``, ``None`` if it is absent; raises `Refusal` ``code``."""
    text = query.get(name)
    if text is None:
        return None
    number = int(text) if _NUMBER.fullmatch(text) else -1
    if not least <= number <= most:
        raise Refusal.of(
            code, f"`{name}` must be a whole number from {least} to {most}, not `{text[:40]}`", path=name
        )
    return number


def open_cursor(seal: CursorSeal, use: str, query: Mapping[str, str]) -> Any:
    """The value in ``cursor``, ``None`` without one; raises `Refusal` ``INVALID_CURSOR``."""
    cursor = query.get("cursor")
    if cursor is None:
        return None
    try:
        return seal.open(use, cursor)
    except CursorFault as fault:
        raise Refusal.of("INVALID_CURSOR", f"`cursor` is {fault}", path="cursor") from None


def cut_page(
    seal: CursorSeal,
    use: str,
    rows: Sequence[T],
    limit: int,
    *,
    key: Callable[[T], Any],
    show: Callable[[Sequence[T]], list[V]],
) -> Page[V]:
    """A page of ``rows``, of which one more than ``limit`` was read to see whether others follow."""
    kept = rows[:limit]
    more = len(rows) > limit
    return Page[Any](
        items=show(kept),
        next_cursor=seal.seal(use, key(kept[-1])) if more else None,
    )
