"""The OpenAPI 3.1 document: parameters, bodies, answers, every error code of each operation, examples."""

from __future__ import annotations

import types
import typing
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from trainshed import __version__
from trainshed.model.errors import CODES, Refusal
from trainshed.server.shapes.common import Error

if TYPE_CHECKING:
    from trainshed.server.endpoints import Operation

_REFS = "#/components/schemas/{model}"
_ALWAYS = ("DATABASE_UNAVAILABLE", "INTERNAL_ERROR", "RATE_LIMITED")
_WITH_KEY = (
    "AUTHENTICATION_REQUIRED",
    "PERMISSION_DENIED",
    "PROJECT_ACCESS_DENIED",
    "WORKSPACE_ACCESS_DENIED",
)
_WITH_BODY = ("INVALID_REQUEST", "REQUEST_TOO_LARGE")


@dataclass(frozen=True, slots=True)
class Param:
    """A query or header parameter. It documents; the handler judges."""

    name: str
    schema: Mapping[str, Any]
    description: str
    where: str = "query"
    example: Any = None
    refuses: tuple[str, ...] = field(default=())
    """Codes that a bad value of it is refused with."""

    def as_dict(self) -> dict[str, Any]:
        entry = {
            "name": self.name,
            "in": self.where,
            "required": False,
            "description": self.description,
            "schema": dict(self.schema),
        }
        return entry if self.example is None else {**entry, "example": self.example}


LIMIT = Param(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": 100, "default": 25},
    "Items a page.",
    refuses=("INVALID_LIMIT",),
)
CURSOR = Param(
    "cursor", {"type": "string"}, "The `next_cursor` of the page before.", refuses=("INVALID_CURSOR",)
)


def responses(operation: Operation) -> dict[str, dict[str, Any]]:
    """All answers of an operation by status, with one example for each code it may refuse with."""
    found: dict[str, dict[str, Any]] = {}
    for status, said in operation.answers.items():
        content: dict[str, Any] = {"schema": _answer_schema(operation)}
        if operation.examples:
            content["examples"] = {name: {"value": value} for name, value in operation.examples.items()}
        found[str(status)] = {"description": said, "content": {operation.content: content}}
    found |= {str(status): {"description": said} for status, said in operation.plain_answers.items()}
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in _codes(operation):
        by_status[CODES[code].status].append(code)
    for number, codes in sorted(by_status.items()):
        found[str(number)] = _refusals(number, codes)
    return found


def _codes(operation: Operation) -> list[str]:
    wanted = {*_ALWAYS, *operation.refuses}
    if not operation.public:
        wanted.update(_WITH_KEY)
    if operation.max_body is not None:
        wanted.update(_WITH_BODY)
    for param in operation.params:
        wanted.update(param.refuses)
    return [code for code in CODES if code in wanted]


def _refusals(status: int, codes: list[str]) -> dict[str, Any]:
    described = "; ".join(f"`{code}`: {CODES[code].hint}" for code in codes)
    answer: dict[str, Any] = {
        "description": described,
        "content": {
            "application/json": {
                "schema": {
                    "allOf": [
                        {"$ref": "#/components/schemas/Error"},
                        {"properties": {"code": {"enum": codes}}},
                    ]
                },
                "examples": {code: {"value": _example(code)} for code in codes},
            }
        },
    }
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        answer["headers"] = {
            "Retry-After": {
                "description": "Whole seconds to wait.",
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    if status == HTTPStatus.UNAUTHORIZED:
        answer["headers"] = {"WWW-Authenticate": {"schema": {"type": "string", "const": "Bearer"}}}
    return answer


def _example(code: str) -> dict[str, Any]:
    return {**Refusal.of(code, CODES[code].hint).body(), "request_id": "req_8f3a1c5d7e9b2460"}


def _answer_schema(operation: Operation) -> dict[str, Any]:
    if operation.content == "text/event-stream":
        return _event_schema(operation.answer)
    if operation.answer is not None:
        options = [{"$ref": _reference(option)} for option in _alternatives(operation.answer)]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if operation.content == "application/json":
        return {"type": "object"}
    text = operation.content.startswith("text/")
    return {"type": "string"} if text else {"type": "string", "format": "binary"}


def _event_schema(shape: Any) -> dict[str, Any]:
    """One server-sent event: ``shape`` as JSON in ``data``, other objects in the last one."""
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "id": {
                "type": "string",
                "description": "Send the last one as `Last-Event-ID` to go on behind it.",
            },
            "event": {"type": "string", "enum": ["message", "end", "error"]},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"anyOf": [{"$ref": _reference(shape)}, {"type": "object"}]},
            },
        },
    }


def _reference(shape: Any) -> str:
    return f"#/components/schemas/{schema_name(shape)}"


def schema_name(shape: Any) -> str:
    """The component name of a shape: ``Page[Job]`` is ``JobPage``."""
    name: str = shape.__name__
    if "[" in name:
        outer, inner = name.rstrip("]").split("[", 1)
        return f"{inner.split('.')[-1]}{outer}"
    return name


def route_extra(operation: Operation) -> dict[str, Any]:
    """What FastAPI cannot know: parameters and bodies that we judge ourselves, permissions."""
    entry: dict[str, Any] = {}
    if operation.params:
        entry["parameters"] = [param.as_dict() for param in operation.params]
    if operation.takes is not None:
        options = _alternatives(operation.takes)
        schemas = [{"$ref": _reference(option)} for option in options]
        content: dict[str, Any] = {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}
        entry["requestBody"] = {"required": True, "content": {"application/json": content}}
    elif operation.takes_bytes:
        schema = {"type": "string", "format": "binary"}
        entry["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": schema}}}
    entry["security"] = [] if operation.public else [{"key": []}]
    if operation.any_of:
        entry["x-permission-any-of"] = sorted(map(str, operation.any_of))
    return entry


def _alternatives(shape: Any) -> tuple[Any, ...]:
    return typing.get_args(shape) if isinstance(shape, types.UnionType) else (shape,)


def build(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    document = get_openapi(
        title="Trainshed",
        version=__version__,
        summary="Freezes a training program, finds GPUs, runs it, and proves that everything was released.",
        description=_DESCRIPTION,
        routes=app.routes,
        servers=[{"url": "/"}, {"url": "/api", "description": "The same operations."}],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    shapes: dict[str, Any] = {"Error": Error}
    for route in app.routes:
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        declared: Operation = route.endpoint.operation  # type: ignore[attr-defined]  # set by endpoints._endpoint
        for method in route.methods or ():
            # FastAPI describes a 422 of its own for every path parameter; it is never sent.
            document["paths"][route.path_format][method.lower()]["responses"] = responses(declared)
        for shape in (*_alternatives(declared.answer), *_alternatives(declared.takes)):
            if shape is not None:
                shapes[schema_name(shape)] = shape
    components = document.setdefault("components", {})
    components["schemas"] = _component_schemas(shapes)
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key; it decides the project."}
    }
    return document


def _component_schemas(shapes: Mapping[str, Any]) -> dict[str, Any]:
    names, definitions = models_json_schema(
        [(shape, "serialization" if not _is_request(shape) else "validation") for shape in shapes.values()],
        ref_template=_REFS,
    )
    found: dict[str, Any] = dict(definitions.get("$defs", {}))
    renamed = {}
    for name, shape in shapes.items():
        mode = "validation" if _is_request(shape) else "serialization"
        generated = names[shape, mode]["$ref"].rsplit("/", 1)[1]  # type: ignore[index]  # the mode is one of two words
        if generated != name:
            renamed[generated] = name
    return {renamed.get(name, name): schema for name, schema in found.items()}


def _is_request(shape: Any) -> bool:
    return bool(shape.__module__.endswith(".requests"))


_DESCRIPTION = """\
Every path is also served under `/api`. Ids in paths are percent-encoded. Unknown query parameters are
ignored.

**Keys.** `Authorization: Bearer KEY`. A key decides its project; the headers `X-Workspace-Id` and
`X-Project-Id` may repeat them, and naming others is refused with 403.

**Refusals** all have the shape `Error`; `code` is for programs, `message` and `hint` are for people. Nothing
was changed by a refused request.

**Lists** answer `items` and `next_cursor`. **Times** are ISO 8601 with offset.

**Rate limits** count reads, writes and submissions of each key separately; 429 carries `Retry-After`.
"""
