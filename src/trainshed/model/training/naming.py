"""Names of tasks: for people, and for engines (C3)."""

from __future__ import annotations

import re
from collections.abc import Callable

SUFFIX_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
SUFFIX_LENGTH = 6
MAX_ENGINE_NAME_CHARS = 47
"""KubeRay's limit for a RayJob; every other engine allows more."""
TASK_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?-[0-9a-z]{6}")
_MAX_ATTEMPT = 9_999


def final_name(prefix: str, random_below: Callable[[int], int]) -> str:
    """``prefix-`` and six letters or digits. ``random_below(n)`` is a number from 0 to n - 1.

    The caller tries again where the name is taken: it must be unique for ever.
    """
    return f"{prefix}-" + "".join(
        SUFFIX_LETTERS[random_below(len(SUFFIX_LETTERS))] for _ in range(SUFFIX_LENGTH)
    )


def engine_name(name: str, attempt: int = 1) -> str:
    """What an engine calls an Attempt of a task: a DNS-1035 label of at most 47 characters.

    Raises `ValueError` for an attempt that no task can have; the limit of resubmissions is far below.
    """
    if not 1 <= attempt <= _MAX_ATTEMPT:
        raise ValueError(f"attempts are numbered from 1 to {_MAX_ATTEMPT}, not {attempt}")
    head = f"t-{name}" if name[0].isdigit() else name
    return head if attempt == 1 else f"{head}-a{attempt}"
