"""Applying a JSON Schema 2020-12 that a stranger wrote, within bounds.

The library judges; three things are ours. Every application of a keyword is counted against a budget, since
a small schema can ask for more work than a server has. Patterns are matched by an engine of linear time,
which `re` is not. And nothing outside a schema is ever looked up.

The libraries are imported on first use: that takes 140 ms, which only those who use a Recipe pay.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

from trainshed.model.schema_patterns import matches, pattern_cost

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

MAX_SHOWN = 50
"""Faults that one check reports."""
MAX_STEPS = 4_000
"""Keywords applied in one check, about 8 us each; a schema of 100 parameters of all kinds takes 1,400."""
MAX_TOTAL_STEPS = 24_000
"""In all checks of one submission, and in all of one publication."""
TYPES = ("array", "boolean", "integer", "null", "object", "string")
"""What ``type`` may say of parameters; ``number`` is not among them (E97)."""
_MAX_SENTENCE_CHARS = 300
_MAX_VALUE_CHARS = 80
_CHARS_PER_STEP = 256
_TRIES_PER_STEP = 4096
_STEPS_PER_REFERENCE = 5

Place = tuple[str | int, ...]
Found = tuple[Place, str]
"""Where something is wrong, as keys and indices, and a sentence."""


class Unbounded(Exception):
    """A schema cannot be applied within bounds; the sentence says which."""


class Steps:
    """Work that may be done, and how much of it is left."""

    __slots__ = ("left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit


_open: contextvars.ContextVar[tuple[Steps, ...]] = contextvars.ContextVar("open budgets", default=())


@contextlib.contextmanager
def budget(steps: Steps | None = None) -> Iterator[None]:
    """Bound the work inside, by what is open around it, too; `MAX_STEPS` where nothing is given.

    Raises `Unbounded` where the steps, or the stack, are used up.
    """
    token = _open.set((*_open.get(), steps or Steps(MAX_STEPS)))
    try:
        yield
    except RecursionError:
        raise Unbounded("the schema refers to itself without end") from None
    finally:
        _open.reset(token)


def spend(steps: int) -> None:
    """Count work; raises `Unbounded` when there was too much. Outside of a `budget` it is not allowed."""
    budgets = _open.get()
    if not budgets:
        raise LookupError("no budget is open")
    for each in budgets:
        each.left -= steps
        if each.left < 0:
            whole = " in all the checks of one request" if each.limit > MAX_STEPS else ""
            raise Unbounded(f"the schema asks for more than {each.limit} steps of work{whole}")


def check(root: Mapping[str, Any], schema: Any, value: Any) -> list[Found]:
    """What ``schema``, a part of ``root``, has against ``value``. Raises `Unbounded`."""
    validator = _validator_class()(dict(root), registry=_registry())
    if schema is not root:  # references inside it start from the root all the same
        validator = validator.evolve(schema=schema)
    with budget():
        return _found(validator.iter_errors(value))


def metaschema_faults(schema: Mapping[str, Any]) -> list[Found]:
    """What the metaschema of JSON Schema 2020-12 has against ``schema``."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - see the module's docstring

    errors = Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema)
    return [
        (tuple(each.absolute_path), _type_sentence(each) if _is_of_type(each) else _sentence(each))
        for each in itertools.islice(errors, MAX_SHOWN)
    ]


def _found(errors: Iterator[ValidationError]) -> list[Found]:
    return [(tuple(each.absolute_path), _sentence(each)) for each in itertools.islice(errors, MAX_SHOWN)]


def _is_of_type(error: ValidationError) -> bool:
    """Whether the metaschema's rule of the keyword ``type`` is broken."""
    alternatives: Any = error.validator_value
    return error.validator == "anyOf" and {"$ref": "#/$defs/simpleTypes"} in alternatives


def _type_sentence(error: ValidationError) -> str:
    shown = repr(error.instance)
    shown = shown if len(shown) <= _MAX_VALUE_CHARS else f"{shown[:_MAX_VALUE_CHARS]} …"
    return f"must be one of {', '.join(TYPES)}, or a list of different ones, not {shown}"


def _sentence(error: ValidationError) -> str:
    """The library's message. It repeats the whole value, so a long one is cut in the middle."""
    text = str(error.message)
    if len(text) > _MAX_SENTENCE_CHARS:
        text = f"{text[:200]} … {text[-80:]}"
    return f"breaks the rule `{error.validator}`: {text}" if error.validator else f"is not allowed: {text}"


def _matches(pattern: str, text: str) -> bool:
    # At worst the engine tries every state at every character.
    spend(1 + len(text) // _CHARS_PER_STEP + len(text) * pattern_cost(pattern) // _TRIES_PER_STEP)
    return matches(pattern, text)


def _registry() -> Any:
    from referencing import Registry  # noqa: PLC0415 - see the module's docstring
    from referencing.exceptions import NoSuchResource  # noqa: PLC0415 - as above

    def refuse(uri: str) -> Any:
        raise NoSuchResource(ref=uri)  # type: ignore[call-arg]  # attrs

    return Registry(retrieve=refuse)  # type: ignore[call-arg]  # attrs drops the field's underscore


@functools.cache
def _validator_class() -> Any:
    """The library's validator of JSON Schema 2020-12 with our budget and patterns."""
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415 - see the module's docstring

    own: dict[str, Callable[..., Any]] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    theirs: Mapping[str, Callable[..., Any]] = Draft202012Validator.VALIDATORS
    known = {name: _counted(name, own.get(name, each)) for name, each in theirs.items()}
    return validators.extend(Draft202012Validator, known)  # type: ignore[no-untyped-call]  # their stub


def _counted(name: str, keyword: Callable[..., Any]) -> Callable[..., Any]:
    def counted(validator: Any, expected: Any, value: Any, schema: Any) -> Any:
        # `uniqueItems` may compare every item with every other, `enum` the value with every choice.
        compared = name == "uniqueItems" and isinstance(value, list)
        least = _STEPS_PER_REFERENCE if name == "$ref" else 1
        spend(least + (len(value) ** 2 // 256 if compared else _length(expected) // 8))
        return keyword(validator, expected, value, schema)

    return counted


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _pattern(validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not _matches(pattern, value):
        yield _error(f"{value[:100]!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, named: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    for pattern, below in named.items():
        for key, each in value.items():
            if _matches(pattern, key):
                yield from validator.descend(each, below, path=key, schema_path=pattern)


def _additional_properties(validator: Any, below: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    known, named = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [key for key in value if key not in known and not any(_matches(each, key) for each in named)]
    if below is not False:
        for key in extra:
            yield from validator.descend(value[key], below, path=key)
    elif extra:
        unknown = ", ".join(repr(key[:80]) for key in sorted(extra))
        yield _error(f"{unknown} unexpected; known are: {', '.join(sorted(known)) or 'none'}")


def _error(message: str) -> ValidationError:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - see the module's docstring

    return ValidationError(message)
