"""Every refusal a caller can meet: one catalogue of codes, one error shape.

The order of `CODES` is the order of contract E b13; where a request has several faults, the answer's
``code`` is the first of them in this order, and all faults are listed (design section 3).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_BODY_BYTES = 8192
"""A longer error body cannot be parsed by the published client (contract E b0)."""
MAX_HINT_CHARS = 1000
"""Of the answer's ``hint``."""


@dataclass(frozen=True, slots=True)
class Code:
    """One refusal: its HTTP status and what the reader can do about it."""

    name: str
    status: int
    hint: str


CODES: Mapping[str, Code] = {
    code.name: code
    for code in (
        Code("INVALID_REQUEST", 400, "Send one JSON object with Content-Type application/json."),
        Code("REQUEST_TOO_LARGE", 413, "Send a smaller body; the limit is in the message."),
        Code("METHOD_NOT_ALLOWED", 405, "See /openapi.json for the methods of this path."),
        Code("AUTHENTICATION_REQUIRED", 401, "Send a valid key: `trainshed login`, or TRAINSHED_API_KEY."),
        Code("PERMISSION_DENIED", 403, "Ask a project admin for a key with the permission named."),
        Code(
            "PROJECT_ACCESS_DENIED",
            403,
            "Leave out --project, TRAINSHED_PROJECT and X-Project-Id, or use a key of that project.",
        ),
        Code("WORKSPACE_ACCESS_DENIED", 403, "Drop the scope header or use a key of that workspace."),
        Code("ACCESS_DENIED", 403, "Ask the owner of the content for access."),
        Code("ORIGIN_DENIED", 403, "Open it from a page of this server, or with `trainshed`."),
        Code("FORBIDDEN", 403, "Ask the person whose Job it is; an agent cannot do this for them."),
        Code("HUMAN_SESSION_REQUIRED", 403, "Use the `trainshed` admin commands on the server instead."),
        Code("JOB_NOT_FOUND", 404, "List your project's jobs with `trainshed job list`."),
        Code("APPROVAL_NOT_FOUND", 404, "`GET /v1/approvals?open=1` lists what waits for an answer."),
        Code("PROVIDER_NOT_FOUND", 404, "List the providers with `gpu providers`."),
        Code("SECRET_NOT_FOUND", 404, "List the names of your secrets with `gpu secrets list`."),
        Code("TRIAL_NOT_FOUND", 404, "List trials with `trainshed trial list --job-id JOB`."),
        Code("ARTIFACT_NOT_FOUND", 404, "List artifacts with `trainshed trial artifacts TRIAL`."),
        Code("PROJECT_NOT_FOUND", 404, "List projects with `trainshed project list`."),
        Code("MEMBER_NOT_FOUND", 404, "List members with `trainshed member list`."),
        Code("KEY_NOT_FOUND", 404, "List keys with `trainshed key list`."),
        Code("PROFILE_NOT_FOUND", 404, "Named runtime profiles are not kept by this server."),
        Code("OPERATION_NOT_FOUND", 404, "The operation id is unknown here."),
        Code("CHECKPOINT_NOT_FOUND", 404, "List Checkpoints with `trainshed checkpoint list`."),
        Code("BLOB_NOT_FOUND", 404, "Upload the blob first."),
        Code("CONTENT_NOT_FOUND", 404, "List what you may read with `trainshed dataset list` and the like."),
        Code("DATASET_NOT_FOUND", 404, "List what you may read with `trainshed dataset list`."),
        Code("DATASET_REVISION_NOT_FOUND", 404, "List its versions with `trainshed dataset versions`."),
        Code("NOT_FOUND", 404, "See /openapi.json for the paths served."),
        Code("INVALID_JOB_TYPE", 422, "Use type `train`."),
        Code(
            "INVALID_REQUEST_ID",
            422,
            "Write a request_id of 1 to 128 printable characters into the request, or give --request-id.",
        ),
        Code("AMBIGUOUS_JOB_REF", 409, "Give more digits of it; `matches` names the Jobs that it may be."),
        Code("JOB_REQUEST_CONFLICT", 409, "Use a new request_id for changed input."),
        Code(
            "DUPLICATE_SUSPECTED",
            409,
            "Look at the task named; `--allow-duplicate` (`allow_duplicate: true`) creates the same again.",
        ),
        Code(
            "INVALID_TRIALS",
            422,
            "Give either `spec` or `trials` with 1 to 16 entries, each with a name of its own.",
        ),
        Code("INVALID_TRAIN_JOB_SPEC", 422, "Remove or correct the keys named."),
        Code("INVALID_SPEC", 422, "Correct the fields named."),
        Code("UNSUPPORTED_TRAINING_BACKEND_SELECTION", 422, "The server chooses where a Trial runs."),
        Code("INVALID_RUNNER", 422, "Write namespace/name@revision."),
        Code("RUNNER_NOT_FOUND", 404, "List the Runners you may read with `trainshed runner list`."),
        Code("INVALID_RUNNER_ENVIRONMENT", 422, "Choose a Runner that this server can train with."),
        Code("RUNNER_HASH_MISMATCH", 409, "The stored bytes are not the published ones; publish again."),
        Code("RUNNER_VERSION_AMBIGUOUS", 409, "Give the full 40-digit commit."),
        Code("INVALID_COMMAND", 422, "Give a command with text, without NUL, of at most 65536 bytes."),
        Code(
            "UNSUPPORTED_COMMAND",
            422,
            "Leave the command out, or choose a Runner that declares [params.run_command].",
        ),
        Code("INVALID_TAG", 422, "At most 16 tags; see the rule in the message."),
        Code("INVALID_EXECUTION_CONFIG", 422, "Correct the resources, timeout or image named."),
        Code(
            "UNSUPPORTED_HARDWARE",
            422,
            "`trainshed doctor` shows what this server has; --simulate-gpus is for trying things out.",
        ),
        Code("RUNNER_GPU_UNAVAILABLE", 503, "Try again when a node with such GPUs is up."),
        Code("TRAIN_JOB_CAPACITY_EXCEEDED", 409, "Ask for less, or ask an admin for more quota."),
        Code("INSUFFICIENT_BALANCE", 402, "Shorten the timeout, or ask an admin for more GPU-hours."),
        Code(
            "EXECUTOR_UNAVAILABLE",
            503,
            "See the reason in the message; `trainshed doctor` shows whether images can run here.",
        ),
        Code("INVALID_CONTENT", 422, "Correct the files or keys named, then publish again."),
        Code("CONTENT_HASH_MISMATCH", 409, "The bytes are not those of the digest; publish again."),
        Code(
            "CONTENT_DAMAGED",
            409,
            "`trainshed content verify` finds all of the damage; publish it again, or restore it.",
        ),
        Code("CONTENT_VERSION_EXISTS", 409, "Publish changed content under a new version."),
        Code("CONTENT_QUOTA_EXCEEDED", 409, "Withdraw content, or ask an admin for a larger quota."),
        Code("UPLOAD_OFFSET_MISMATCH", 409, "Go on from the offset in the answer."),
        Code("UNSUPPORTED_RESUME", 422, "Choose a Runner that declares [checkpoints] resume = true."),
        Code("INVALID_PROFILE", 422, "Correct what is named; the faults say where it stands."),
        Code(
            "PROFILE_RUNNER_UNSUPPORTED",
            422,
            "Choose a Runner that declares what the profile needs, or leave it out.",
        ),
        Code("PROFILE_HASH_MISMATCH", 409, "Use the digest of the published manifest."),
        Code("PROFILE_ARCHIVED", 409, "Name a version that was not withdrawn."),
        Code("JOB_ACTION_UNSUPPORTED", 409, "Train jobs can be stopped, not paused or resumed."),
        Code("ARTIFACT_NOT_READY", 409, "Wait until its upload_state is `uploaded`."),
        Code("INVALID_TRANSITION", 409, "Read the Job again: it is not what you saw any more."),
        Code(
            "NAMESPACE_TAKEN",
            409,
            "Choose a namespace of your own project. Where it has to be this name, as for `job rerun`, have "
            "that project or the owner key publish it and open it to yours (`visibility NAME projects --to "
            "PROJECT` of the same command).",
        ),
        Code("ALREADY_EXISTS", 409, "Choose another name."),
        Code("RESOURCE_IN_USE", 409, "End what uses it first, or unpin it; the message names it."),
        Code(
            "SHELL_UNAVAILABLE", 409, "Open it while the replica runs; `trainshed train get` shows its state."
        ),
        Code(
            "DASHBOARD_UNAVAILABLE",
            409,
            "Open it while the head of a ray task runs with a cluster of its own.",
        ),
        Code("PRECONDITION_FAILED", 412, "Read it again and repeat the change."),
        Code("INVALID_JOB_STATUS", 422, "Use one of the job status words in the message."),
        Code("INVALID_TRIAL_STATUS", 422, "Use one of the trial status words in the message."),
        Code("INVALID_LIMIT", 422, "Use a limit in the range named."),
        Code("INVALID_CURSOR", 400, "Use the next_cursor of the page before, unchanged."),
        Code("LOG_CURSOR_INVALID", 400, "Use the next_cursor of the page before, unchanged."),
        Code("LOG_CURSOR_EXPIRED", 410, "The log was deleted by retention; read again without a cursor."),
        Code("INVALID_LOG_SOURCE", 422, "Use source all, system or runtime."),
        Code("INVALID_LOG_QUERY", 422, "Use limit or tail 1..1000, and not tail and cursor together."),
        Code("URL_EXPIRED", 403, "Ask for new download URLs."),
        Code("BLOB_BEING_DELETED", 503, "Try again in a moment; the old copy is being removed."),
        Code("UPLOAD_BUSY", 503, "Another client sends the same bytes; ask for the offset and go on."),
        Code("RATE_LIMITED", 429, "Wait as long as Retry-After says."),
        Code("NOT_READY", 503, "Try again in a moment; this server is still starting."),
        Code("LOG_STORAGE_UNAVAILABLE", 503, "Try again; the log store did not answer."),
        Code("STORAGE_UNAVAILABLE", 503, "Try again; an admin should look at the server's data folder."),
        Code("STORAGE_FULL", 507, "Free space in the server's data folder."),
        Code("DATABASE_UNAVAILABLE", 503, "Try again; the database did not answer."),
        Code("INTERNAL_ERROR", 500, "Report it with the request id in the server's log."),
    )
}

_ORDER = {name: place for place, name in enumerate(CODES)}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request: where (``trials[0].spec.image``), which rule, in a sentence."""

    path: str
    code: str
    message: str
    hint: str = ""
    """What to do next, where that is more than what the code's own hint says."""

    def as_dict(self) -> dict[str, str]:
        return {"path": self.path, "code": self.code, "message": self.message}


class Refusal(Exception):
    """A request that is not carried out. Nothing was changed.

    ``extra`` holds further keys of the answer (``differences`` of a conflict, say), ``left_out`` says how
    many faults were found beside those that are told.
    """

    def __init__(
        self,
        faults: Iterable[Fault],
        *,
        extra: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        left_out: int = 0,
    ) -> None:
        self.faults = tuple(sorted(faults, key=lambda f: _ORDER.get(f.code, len(_ORDER))))
        if not self.faults:
            raise ValueError("a refusal needs at least one fault")
        self.extra = dict(extra or {})
        self.retry_after = retry_after
        self.left_out = left_out
        super().__init__(self.message)

    @classmethod
    def of(cls, code: str, message: str, *, path: str = "", hint: str = "", **extra: Any) -> Refusal:
        """A refusal with one fault; without ``hint`` the code's own is given."""
        return cls([Fault(path, code, message, hint)], extra=extra)

    @property
    def code(self) -> str:
        first = self.faults[0].code
        return first if first in CODES else "INVALID_SPEC"

    @property
    def status(self) -> int:
        return CODES[self.code].status

    @property
    def message(self) -> str:
        return self.faults[0].message

    @property
    def hint(self) -> str:
        """Of the first fault, as headline and status are; then other faults' own, as many as have room."""
        said = self.faults[0].hint or CODES[self.code].hint
        for hint in dict.fromkeys(fault.hint for fault in self.faults[1:] if fault.hint):
            if hint not in said and len(said) + 1 + len(hint) <= MAX_HINT_CHARS:
                said = f"{said} {hint}"
        return said

    def body(self) -> dict[str, Any]:
        """The one error shape, at most `MAX_BODY_BYTES` as compact JSON."""
        base = {
            "code": self.code,
            "message": _clip(self.message, 600),
            "hint": _clip(self.hint, MAX_HINT_CHARS),
            **self.extra,
        }
        if _size(base) > MAX_BODY_BYTES // 2:
            base = {key: base[key] for key in ("code", "message", "hint")}
        shown: list[dict[str, str]] = []
        budget = MAX_BODY_BYTES - _size(base) - 100
        for fault in self.faults:
            entry = {
                "path": _clip(fault.path, 200),
                "code": fault.code,
                "message": _clip(fault.message, 600),
            }
            budget -= _size(entry) + 2
            if budget < 0:
                break
            shown.append(entry)
        body: dict[str, Any] = {**base, "errors": shown}
        if missing := len(self.faults) - len(shown) + self.left_out:
            body["errors_not_shown"] = missing
        return body


@dataclass(slots=True)
class FaultList:
    """Collects faults so that all of them are answered at once."""

    faults: list[Fault] = field(default_factory=list)

    def add(self, path: str, code: str, message: str, hint: str = "") -> None:
        self.faults.append(Fault(path, code, message, hint))

    def __bool__(self) -> bool:
        return bool(self.faults)

    def raise_if_any(self) -> None:
        if self.faults:
            raise Refusal(self.faults)


def _clip(text: str, limit: int) -> str:
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=True, separators=(",", ":")))
