"""What a field of a training task is, the limits, and the small words that the table is written with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.model.training.spec import Kind

NO_DEFAULT = object()
BOTH = frozenset(Kind)
PYTORCH = frozenset({Kind.PYTORCH})
RAY = frozenset({Kind.RAY})
MAX_COUNT = 2**31 - 1
MAX_COUNT_PER_NODE = 65_536
MAX_COMMAND_BYTES = 65_536
MAX_LABELS = 16
MAX_LABEL_VALUE_CHARS = 256
MAX_ENTRIES = 1_000
"""Of a list whose field has no limit of its own."""
MAX_VARIABLES = 4_096
MAX_MOUNTS = 128
MAX_ENDPOINTS = 32
MAX_ALARMS = 32
MAX_CHANNELS = 32
"""Of one alarm, as of its events."""
MAX_SPECS = 16
MAX_REFERENCE_CHARS = 512
MAX_PATH_CHARS = 1_024
MAX_MOUNT_PATH_BYTES = 4_096
"""PATH_MAX of Linux; no path that is longer can be mounted."""
MAX_PATH_PART_BYTES = 255
"""NAME_MAX of Linux."""
MAX_PREFIX_CHARS = 32
MAX_RETENTION_SECONDS = 86_400
MAX_PORT = 65_535
MAX_RUNTIME_ENV_BYTES = 65_536
LABEL_KEY = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
NAME_PREFIX = r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
ID = r"[A-Za-z0-9][A-Za-z0-9._@:/-]{0,127}"
"""Ids of regions, clusters, pools, specs, volumes, projects."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field. ``schema`` holds the JSON Schema of its value, without what other fields say."""

    path: str
    meaning: str
    contract: str
    schema: Mapping[str, Any]
    limits: str = ""
    default: Any = NO_DEFAULT
    """A JSON value, or `NO_DEFAULT`."""
    derived: str = ""
    """Where the value comes from if it is left out and there is no fixed default."""
    required: bool = False
    kinds: frozenset[Kind] = BOTH
    codes: tuple[str, ...] = ()
    """Refusals that are about this field."""

    @property
    def name(self) -> str:
        """The last key of its path."""
        return self.path.rpartition(".")[2].removesuffix("[]")

    @property
    def default_text(self) -> str:
        """The default in words."""
        if self.default is not NO_DEFAULT:
            return json.dumps(self.default)
        return self.derived or ("required" if self.required else "nothing")


def text(most: int = MAX_REFERENCE_CHARS, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most, **more}


def whole(least: int, most: int = MAX_COUNT) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def words(words: type[Any]) -> dict[str, Any]:
    return {"type": "string", "enum": [str(word) for word in words]}


def entries(**more: Any) -> dict[str, Any]:
    return {"type": "array", "maxItems": MAX_ENTRIES, **more}


FLAG = {"type": "boolean"}
MAP = {"type": "object"}
NAME = text(128, pattern=f"^{ID}$")
