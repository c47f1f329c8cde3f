"""Checkpoints: how they are named, and which of them a Runner declares worth keeping.

``[checkpoints]`` of ``runner.toml``::

    [checkpoints]
    resume = true                       # `--resume-from` may be used with this Runner
    keep_last = 3                       # of each Trial, the newest three
    best = {metric = "eval_loss", mode = "min", keep = 1}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from trainshed.model.content import SCHEME
from trainshed.model.ids import JOB_ID

CHECKPOINT_ID = re.compile(r"ckpt_[0-7][0-9A-HJKMNP-TV-Z]{25}")
METRIC_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@/-]{0,127}")
LORA = "lora"
"""The one ``checkpoint_type`` there is (E106)."""


class Mode(StrEnum):
    """Which values of a metric are better."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the ``keep`` Checkpoints with the best values of ``metric``."""

    metric: str
    mode: Mode
    keep: int = 1


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """What a Runner declares about its Checkpoints; without rules all of them are kept."""

    resume: bool = False
    """Whether its program can go on from a Checkpoint."""
    keep_last: int | None = None
    best: Best | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A Checkpoint as a caller names it."""

    checkpoint_id: str
    job_id: str | None = None
    """The Job it must belong to, where the caller says so."""


def checkpoint_uri(job_id: str, checkpoint_id: str) -> str:
    """``envloop://JOB_ID/CHECKPOINT_ID`` (contract E b7)."""
    return f"{SCHEME}{job_id}/{checkpoint_id}"


def parse_checkpoint_ref(text: str) -> CheckpointRef:
    """Parse ``ckpt_…`` or ``envloop://JOB_ID/CHECKPOINT_ID``; raises `ValueError` with a sentence."""
    if CHECKPOINT_ID.fullmatch(text):
        return CheckpointRef(text)
    job_id, slash, checkpoint_id = text.removeprefix(SCHEME).partition("/")
    named = text.startswith(SCHEME) and slash
    if named and JOB_ID.fullmatch(job_id) and CHECKPOINT_ID.fullmatch(checkpoint_id):
        return CheckpointRef(checkpoint_id, job_id)
    if named and CHECKPOINT_ID.fullmatch(checkpoint_id):
        raise ValueError(
            f"its Job id `{job_id[:80]}` is malformed: it is `job_` and then 26 digits and capital letters; "
            f"without the Job write `{checkpoint_id}`"
        )
    raise ValueError(f"write a Checkpoint's id, `ckpt_…`, or {SCHEME}JOB_ID/CHECKPOINT_ID")
