"""Reading what the server answers: objects, texts, times, pages, and names as people write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from trainshed.sdk.errors import ConfigurationError, InvalidAnswer

T = TypeVar("T")
Raw = Mapping[str, Any]
LARGEST_PAGE = 100
"""The most items that a page may have."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list, newest first. Iterating yields its items only; see the ``iter_`` methods."""

    items: tuple[T, ...]
    next_cursor: str | None
    raw: Raw = field(repr=False)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def page(raw: Any, read: Callable[[Any], T]) -> Page[T]:
    """Read a page; raises `InvalidAnswer` if it is none."""
    document = mapping(raw, "a page")
    items = document.get("items")
    if not isinstance(items, list):
        raise InvalidAnswer("the answer is not a page: it has no list `items`")
    cursor = document.get("next_cursor")
    return Page(tuple(read(item) for item in items), cursor if isinstance(cursor, str) else None, document)


def mapping(raw: Any, noun: str) -> dict[str, Any]:
    """``raw`` if it is an object; raises `InvalidAnswer` that names ``noun`` otherwise."""
    if not isinstance(raw, dict):
        raise InvalidAnswer(f"the answer is not {noun}: it is not an object")
    return raw


def required(document: Raw, key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidAnswer(f"the answer lacks `{key}`")
    return value


def text(document: Raw, key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def moment(document: Raw, key: str) -> datetime | None:
    value = document.get(key)
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise InvalidAnswer(f"`{key}` is not a time: {value!r}") from None


_NAME_RULE = (
    "Write it as in `team/words`: namespace and name each start with a letter or digit and hold letters, "
    "digits, `.`, `_`, `-`."
)


def split_name(text: str, form: str = "namespace/name[@revision]") -> tuple[tuple[str, str], str]:
    """A name in parts; ``form`` is what it is to look like. Raises `ConfigurationError`."""
    full, at, revision = text.partition("@")
    namespace, slash, name = full.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise ConfigurationError(f"`{text[:200]}` is not {form}", hint=_NAME_RULE)
    if at and not revision:
        raise ConfigurationError(f"`{text}` names nothing behind its `@`; leave it out for the newest")
    return (namespace, name), revision
