"""The JSON Schema of gpu.yaml, for editors: what the readers of `validate` say, and a test compares them."""

from __future__ import annotations

from typing import Any

from trainshed.model.scripts.secret_names import SECRET_NAME
from trainshed.model.scripts.spec import (
    MAX_HOURS,
    MAX_INCLUDE,
    MAX_INCLUDES,
    MAX_NAME,
    MAX_SCRIPT,
    MAX_VRAM_GB,
)
from trainshed.model.scripts.validate import (
    MAX_ATTEMPTS,
    MAX_DATA,
    MAX_ENV,
    MAX_INTERVAL_MIN,
    MAX_LABELS,
    MAX_SECRETS,
    MOUNT,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def gpu_yaml_schema() -> dict[str, Any]:
    """A schema that accepts what is taken, as far as a schema can tell without the folder."""
    plain = {"type": ["string", "number", "boolean"]}
    words = {"oneOf": [{"type": "array", "items": plain}, {"type": "string"}]}
    texts = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    name = {"type": "string", "pattern": f"^{SECRET_NAME.pattern}$"}
    vram = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_VRAM_GB}
    mount = {"type": "string", "pattern": f"^{MOUNT.pattern}$"}
    properties: dict[str, dict[str, Any]] = {
        "version": {"const": 1, "description": "The version of this format."},
        "name": {"type": ["string", "number"], "maxLength": MAX_NAME, "description": "A label for people."},
        "script": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_SCRIPT,
            "description": "The Python file that runs, relative to this file.",
        },
        "command": words | {"description": "What runs instead of a Python file."},
        "args": words | {"description": "Arguments of the script."},
        "vram": vram | {"description": "GPU memory that is needed, in GB."},
        "vram_gb": vram | {"description": "GPU memory that is needed, in GB."},
        "hours": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": MAX_HOURS,
            "description": "An honest estimate of the wall-clock hours.",
        },
        "provider": {"type": "string", "description": "Run there and nowhere else; `local` is this machine."},
        "gpu": {"type": ["string", "number"], "description": "A type of GPU, as in T4."},
        "env": {
            "type": "object",
            "propertyNames": name,
            "additionalProperties": plain,
            "maxProperties": MAX_ENV,
            "description": "Variables that are no secrets.",
        },
        "secrets": {
            "oneOf": [name, {"type": "array", "items": name, "maxItems": MAX_SECRETS}],
            "description": "Names of stored secrets that the Job gets as variables.",
        },
        "deps": {
            "oneOf": [
                {"enum": ["auto", "none"]},
                {"type": "string", "pattern": r"\.(txt|in|toml)$"},
                {
                    "type": "object",
                    "properties": {
                        "kind": {"enum": ["auto", "requirements", "pyproject", "none"]},
                        "file": {"type": "string"},
                    },
                    "additionalProperties": False,
                },
            ],
            "description": "Packages that are installed before the script runs.",
        },
        "data": {
            "type": "array",
            "maxItems": MAX_DATA,
            "items": {
                "type": "object",
                "properties": {"mount": mount, "path": {"type": "string"}, "uri": {"type": "string"}},
                "required": ["mount"],
                "oneOf": [{"required": ["path"]}, {"required": ["uri"]}],
                "additionalProperties": False,
            },
            "description": "Datasets, readable at gpu.data_dir()/MOUNT.",
        },
        "include": texts | {"description": "Paths and patterns that ship although git ignores them."},
        "checkpoint_interval_min": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_INTERVAL_MIN,
            "default": 20,
            "description": "How often checkpoints are saved, in minutes; 0: never.",
        },
        "interactive": {"type": "boolean", "default": False, "description": "Needs a session with a person."},
        "requires_approval": {
            "type": "boolean",
            "default": False,
            "description": "Always ask before it runs.",
        },
        "smoke": {
            "type": "boolean",
            "default": False,
            "description": "A quick test, on this machine if it can.",
        },
        "max_attempts": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_ATTEMPTS,
            "description": "Tries in all.",
        },
        "labels": {
            "type": "object",
            "additionalProperties": plain,
            "maxProperties": MAX_LABELS,
            "description": "Shown, and never interpreted.",
        },
        "provider_options": {
            "type": "object",
            "additionalProperties": {"type": "object"},
            "description": "Passed to the provider of that name.",
        },
    }
    properties["include"]["oneOf"] = [
        {"type": "string", "maxLength": MAX_INCLUDE},
        {"type": "array", "maxItems": MAX_INCLUDES, "items": {"type": "string", "maxLength": MAX_INCLUDE}},
    ]
    return {
        "$schema": DIALECT,
        "title": "gpu.yaml",
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": False,
        "allOf": [
            {"not": {"required": ["script", "command"]}},
            {"not": {"required": ["vram", "vram_gb"]}},
        ],
    }
