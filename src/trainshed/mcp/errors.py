"""Errors as tools answer them: pure JSON, in the words of contract G (a.0.6, j)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainshed.sdk.errors import (
    ApiError,
    ConfigurationError,
    ConnectionFailed,
    InvalidSpec,
    LocalFileError,
    NotFreezable,
    TrainshedError,
)

WORDS: Mapping[str, str] = {
    "INVALID_REQUEST": "invalid_request",
    "INVALID_SPEC": "invalid_spec",
    "AUTHENTICATION_REQUIRED": "unauthorized",
    "PERMISSION_DENIED": "forbidden",
    "FORBIDDEN": "forbidden",
    "ACCESS_DENIED": "forbidden",
    "JOB_NOT_FOUND": "job_not_found",
    "TRIAL_NOT_FOUND": "job_not_found",
    "PROVIDER_NOT_FOUND": "provider_not_found",
    "AMBIGUOUS_JOB_REF": "ambiguous_job_ref",
    "INVALID_TRANSITION": "invalid_transition",
    "JOB_REQUEST_CONFLICT": "conflict",
    "CONFLICT": "conflict",
    "INVALID_REQUEST_ID": "invalid_request",
    "NOT_READY": "not_ready",
    "SCHEMA_TOO_NEW": "schema_too_new",
    "DATABASE_UNAVAILABLE": "daemon_unavailable",
}
"""Our code -> the contract's. What is not here is told by its status."""
_BY_STATUS: Mapping[int, str] = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "job_not_found",
    409: "conflict",
    413: "invalid_spec",
    422: "invalid_spec",
    429: "not_ready",
    503: "not_ready",
    504: "submit_uncertain",
}


class ToolError(Exception):
    """A call that failed, in the contract's words."""

    def __init__(
        self, code: str, message: str, *, hint: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.detail = dict(detail or {})

    def as_dict(self) -> dict[str, Any]:
        """The whole answer of the tool."""
        body = {"code": self.code, "message": self.message, "hint": self.hint, "detail": self.detail}
        return {"error": body}


def told(error: BaseException, *, submitting: bool = False) -> ToolError:
    """Any exception as a tool tells it; of one that nobody expected nothing but its kind is told.

    ``submitting`` says that the call may have made a Job although no answer came.
    """
    if isinstance(error, ToolError):
        return error
    if isinstance(error, ApiError):
        return _refused(error)
    if isinstance(error, ConnectionFailed | ConfigurationError):
        # One that the server never heard of is a subclass that says so.
        if submitting and type(error) is ConnectionFailed:
            said = "the server gave no answer, so nobody knows whether the Job was made"
            return ToolError("submit_uncertain", said, hint="Call again with the same arguments.")
        hint = error.hint or "Start it with `trainshed serve`, or unset TRAINSHED_NO_AUTOSTART."
        return ToolError("daemon_unavailable", error.message, hint=hint)
    if isinstance(error, TrainshedError):
        return _of_ours(error)
    said = f"something unexpected happened ({type(error).__name__}); the server's log has more"
    return ToolError("internal", said, hint="Try again; if it stays so, tell your user.")


def _of_ours(error: TrainshedError) -> ToolError:
    """What this machine's side found wrong."""
    if isinstance(error, InvalidSpec):
        return ToolError(error.code, error.message, hint=error.hint, detail=error.detail)
    if isinstance(error, NotFreezable):
        code = error.code.lower() if error.code.lower() in _SPEC_CODES else "invalid_spec"
        faults = [{"path": each.path, "message": each.message} for each in error.faults]
        return ToolError(code, error.message, hint=error.hint, detail={"faults": faults} if faults else {})
    code = "invalid_request" if isinstance(error, LocalFileError) else "internal"
    return ToolError(code, error.message, hint=error.hint)


_SPEC_CODES = frozenset({"invalid_request", "invalid_spec", "provider_not_found"})


def _refused(error: ApiError) -> ToolError:
    code = WORDS.get(error.code) or _BY_STATUS.get(error.status, "internal")
    detail: dict[str, Any] = {}
    if error.faults:
        detail["faults"] = [{"path": fault.path, "message": fault.message} for fault in error.faults]
    for key in ("matches", "differing", "job_id", "short_id"):
        if key in error.body:
            detail[key] = error.body[key]
    return ToolError(code, error.message, hint=_HINTS.get(code, error.hint), detail=detail)


_HINTS: Mapping[str, str] = {"job_not_found": "gpu_status without ref lists the Jobs."}
"""Where the server speaks of its command line, which agents do not use."""
