"""What the exit status of a ``gpu`` command means (contract G, j). ``docs/gpu.md`` shows this table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainshed.sdk.errors import TrainshedError


class GpuExit(IntEnum):
    """Exit statuses of ``gpu``, the same for every command of it."""

    OK = 0
    OTHER = 1
    USAGE = 2
    NO_SERVER = 3
    NOT_FOUND = 4
    CONFLICT = 5
    FAILED = 10
    CANCELLED = 11
    NO_FIT = 12
    INTERRUPTED = 130


MEANINGS: Mapping[GpuExit, str] = {
    GpuExit.OK: "Done; where a Job was waited for: it is done. An agent's Job that asks is no error.",
    GpuExit.OTHER: "Any other error: not allowed, the time given ran out, a file in the way.",
    GpuExit.USAGE: "The command line, gpu.yaml or the folder is wrong; nothing was submitted.",
    GpuExit.NO_SERVER: "The server does not answer, is still starting, or gave no answer to a submission.",
    GpuExit.NOT_FOUND: "There is no such Job or provider, or the digits fit several Jobs.",
    GpuExit.CONFLICT: "It collides with what is there, or the Job is past that (answered, ended).",
    GpuExit.FAILED: "The Job that was waited for failed.",
    GpuExit.CANCELLED: "The Job that was waited for was cancelled or denied.",
    GpuExit.NO_FIT: "No provider fits it: said by `route` and `run --dry-run`, and of a Job that failed so.",
    GpuExit.INTERRUPTED: "Interrupted with Ctrl-C; the Job goes on.",
}
_BY_CODE: Mapping[str, GpuExit] = {
    "invalid_spec": GpuExit.USAGE,
    "invalid_request": GpuExit.USAGE,
    "daemon_unavailable": GpuExit.NO_SERVER,
    "not_ready": GpuExit.NO_SERVER,
    "submit_uncertain": GpuExit.NO_SERVER,
    "job_not_found": GpuExit.NOT_FOUND,
    "provider_not_found": GpuExit.NOT_FOUND,
    "ambiguous_job_ref": GpuExit.NOT_FOUND,
    "conflict": GpuExit.CONFLICT,
    "invalid_transition": GpuExit.CONFLICT,
}
_OF_STATE: Mapping[str, GpuExit] = {
    "failed": GpuExit.FAILED,
    "cancelled": GpuExit.CANCELLED,
    "denied": GpuExit.CANCELLED,
}


def code_of(error: TrainshedError, *, submitting: bool = False) -> str:
    """The contract's word for an error, the same that agents are told."""
    from trainshed.mcp.errors import told  # noqa: PLC0415 - not for `--help`

    return told(error, submitting=submitting).code


def may_be_submitted(error: TrainshedError) -> bool:
    """Whether a submission that ended so may have made a Job all the same."""
    return code_of(error, submitting=True) in {"submit_uncertain", "internal"}


def exit_for(error: TrainshedError) -> GpuExit:
    """The exit status for an error that ended a command."""
    from trainshed.sdk.errors import LocalFileError  # noqa: PLC0415 - not for `--help`

    if isinstance(error, LocalFileError):
        return GpuExit.OTHER
    return _BY_CODE.get(code_of(error), GpuExit.OTHER)


def exit_of(job: Mapping[str, Any]) -> GpuExit:
    """The exit status for a Job that was waited for; one that goes on is no error."""
    if job["state"] == "failed" and job.get("failure_kind") == "no_provider":
        return GpuExit.NO_FIT
    return _OF_STATE.get(job["state"], GpuExit.OK)
