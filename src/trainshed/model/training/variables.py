"""Names of environment variables that replicas get from us, and what a name and a value may be (C8-C10)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

from trainshed.model.training.field_table import ENV_NAME
from trainshed.model.training.spec import Kind

MAX_VARIABLE_BYTES = 128 << 10
"""Of one name with its value, as UTF-8."""
MAX_ENVIRONMENT_BYTES = 1 << 20
"""Of all names with their values, as UTF-8."""
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
"""C41-C43."""
TORCHRUN = ("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
"""The five that a bare `torchrun` reads (C44)."""
CONTEXT = (
    "X_USER_NAME",
    "X_ORG_NAME",
    "X_TENANT_ID",
    "X_REGION",
    "X_CLUSTER",
    "TASK_UUID",
    "TRAINSHED_ATTEMPT",
    "TRAINSHED_RESUBMISSION",
)
"""C45."""
NOTICE_FILE = "TRAINSHED_NOTICE_FILE"
"""C36."""
RESERVED: Mapping[Kind, frozenset[str]] = MappingProxyType(
    {
        Kind.PYTORCH: frozenset({*RENDEZVOUS, *TORCHRUN, *CONTEXT, NOTICE_FILE}),
        Kind.RAY: frozenset(CONTEXT),
    }
)
"""Names that neither a task nor TaskEnv may give, by kind (C10)."""
_NAME = re.compile(ENV_NAME)
_ALLOWED = re.compile(r"[A-Za-z0-9_]")


def env_name_fault(name: str) -> str | None:
    """Why ``name`` cannot be a variable's; the sentence names the character's code point (C8)."""
    if not name:
        return "a variable needs a name"
    if _NAME.fullmatch(name):
        return None
    place = next((at for at, letter in enumerate(name) if not _ALLOWED.fullmatch(letter)), 0)
    point = ord(name[place])
    title = unicodedata.name(name[place], "")
    said = f"U+{point:04X}" + (f" ({title})" if title else "")
    if place == 0 and name[0].isascii() and name[0].isdigit():
        return f"a variable's name may not start with a digit: {said}"
    return f"a variable's name has English letters, digits and underscores only; character {place} is {said}"


def variable_bytes(name: str, value: str) -> int:
    """What a variable counts against the limits."""
    return len(name.encode("utf-8", "surrogatepass")) + len(value.encode("utf-8", "surrogatepass"))
