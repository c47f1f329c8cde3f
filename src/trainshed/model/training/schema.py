"""The JSON Schema (2020-12) of a training task, for editors: made of the one table of fields.

It is weaker than `reading`: what it refuses is refused there too, but not the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainshed.model.training.field_table import NO_DEFAULT, Field
from trainshed.model.training.fields import CHILDREN, ROOT_CHILDREN, SPEC_FIELDS
from trainshed.model.training.spec import Kind

SCHEMA_ID = "urn:trainshed:schema:training-task"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def task_schema() -> dict[str, Any]:
    """The schema of a whole request: `{request_id, type, spec, ...}`."""
    root = _object("", ROOT_CHILDREN)
    root["properties"]["spec"] = {
        **_object("", CHILDREN),
        "description": ROOT_CHILDREN[""]["spec"].meaning,
        "allOf": [_only_for(kind) for kind in Kind],
        "anyOf": [{"required": ["kind"]}, {"required": ["task_type"]}],
    }
    return {
        "$schema": DIALECT,
        "$id": SCHEMA_ID,
        "title": "Training task of kind pytorch or ray",
        **root,
    }


def _object(path: str, table: Mapping[str, Mapping[str, Field]]) -> dict[str, Any]:
    fields = table.get(path, {})
    # `kind` may be given as `task_type`.
    required = [key for key, each in fields.items() if each.required and each.path != "kind"]
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _field(each, table) for key, each in fields.items()},
    }
    if required:
        schema["required"] = required
    return schema


def _field(each: Field, table: Mapping[str, Mapping[str, Field]]) -> dict[str, Any]:
    schema = dict(each.schema)
    if each.path in table and schema.get("type") == "object":
        schema = _object(each.path, table)
    elif f"{each.path}[]" in table:
        schema["items"] = _object(f"{each.path}[]", table)
    schema["description"] = f"{each.meaning} {each.limits}".strip()
    if each.default is not NO_DEFAULT:
        schema["default"] = json.loads(json.dumps(each.default))
    return schema


def _only_for(kind: Kind) -> dict[str, Any]:
    """Fields of the other kind must be absent, at any depth that the table has."""
    word = {Kind.PYTORCH: "PyTorchJob", Kind.RAY: "RayJob"}[kind]
    absent: dict[str, Any] = {}
    for each in SPEC_FIELDS:
        if kind in each.kinds:
            continue
        owner, _, key = each.path.rpartition(".")
        if not owner:
            absent[key] = False
        elif "." not in owner and owner not in absent:
            absent[owner] = {"properties": {key: False}}
    return {
        "if": {
            "anyOf": [
                {"properties": {"kind": {"const": kind.value}}, "required": ["kind"]},
                {"properties": {"task_type": {"const": word}}, "required": ["task_type"]},
            ]
        },
        "then": {"properties": absent},
    }
