"""Checking what a tool was called with: every fault at once, unknown names with the nearest (a.0.7)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from trainshed.mcp.errors import ToolError
from trainshed.mcp.schemas import REF_PATTERN, REQUEST_ID_PATTERN, SINCE_PATTERN, Schema, ToolSpec

_SHOWN = 80
_PATTERNS: Mapping[str, str] = {
    REF_PATTERN: "must be 1 to 12 hexadecimal digits",
    REQUEST_ID_PATTERN: "must be 1 to 64 characters out of letters, digits and . _ : -",
    SINCE_PATTERN: "must be next_since of an earlier answer, ATTEMPT:OFFSET",
}


def checked(tool: ToolSpec, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments with their defaults; raises `ToolError` ``invalid_request``, starting nothing."""
    given = dict(arguments or {})
    unknown = sorted(name[:_SHOWN] for name in given.keys() - tool.properties.keys())
    faults = [{"path": name, "message": f"there is no argument {name!r}"} for name in unknown]
    values: dict[str, Any] = {}
    for name, schema in tool.properties.items():
        if name not in given:
            if name in tool.required:
                faults.append({"path": name, "message": f"{name} is required"})
            values[name] = schema.get("default")
            continue
        value = _unpacked(given[name], schema)
        faults += _faults(name, value, schema)
        values[name] = value
    if faults:
        said = "; ".join(fault["message"] for fault in faults)
        raise ToolError("invalid_request", said, hint=_nearest(unknown, tool), detail={"faults": faults})
    return values


def _nearest(unknown: Sequence[str], tool: ToolSpec) -> str:
    close = [difflib.get_close_matches(name, tool.properties, 1, 0.5) for name in unknown]
    if near := list(dict.fromkeys(each[0] for each in close if each)):
        return f"Did you mean {' and '.join(near)}?"
    return f"{tool.name} takes: {', '.join(tool.properties)}." if unknown else ""


def _unpacked(value: Any, schema: Schema) -> Any:
    """A list that came as JSON in a string, as some clients send it; a single word is a list of one."""
    kinds = [each.get("type") for each in schema.get("anyOf", ())]
    if "array" not in kinds or not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            decoded = json.loads(value)
        except ValueError:
            return [value]
        if isinstance(decoded, list):
            return decoded
    return [value]


def _faults(name: str, value: Any, schema: Schema) -> list[dict[str, str]]:
    found = []
    for error in Draft202012Validator(schema).iter_errors(value):
        path = ".".join([name, *(str(part) for part in error.absolute_path)])
        # Without the value: it may be a secret in the wrong place.
        rule = _RULES.get(str(error.validator), _some_rule)(error.validator_value)
        found.append({"path": path, "message": f"{path} {rule}"})
    return found


def _kinds(expected: Any) -> str:
    kinds = [expected] if isinstance(expected, str) else [kind for kind in expected if kind != "null"]
    return f"must be of type {' or '.join(kinds)}"


def _alternatives(expected: Sequence[Schema]) -> str:
    first = expected[0]
    if first["type"] == "array":
        many = f" of at most {first['maxItems']} strings" if "maxItems" in first else " of strings"
        return f"must be an array{many}"
    return "must be an object of plain values"


def _some_rule(expected: Any) -> str:
    return f"must fit the rule {expected!s:.80}"


_RULES: Mapping[str, Callable[[Any], str]] = {
    "type": _kinds,
    "minimum": "must be at least {}".format,
    "maximum": "must be at most {}".format,
    "exclusiveMinimum": "must be greater than {}".format,
    "maxLength": "must have at most {} characters".format,
    "minLength": lambda _: "must not be empty",
    "pattern": lambda pattern: _PATTERNS.get(pattern, f"must match {pattern}"),
    "enum": lambda words: f"must be one of {', '.join(str(each) for each in words if each is not None)}",
    "anyOf": _alternatives,
}
