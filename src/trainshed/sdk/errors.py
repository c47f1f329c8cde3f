"""Everything the SDK raises, one tree; ``again`` says whether the same call can work later.

::

    TrainshedError
    ├── ConfigurationError     no   an address, key or file of this user cannot be used as it is
    ├── LocalFileError         no   a local file stands in the way of a download or an upload
    │   ├── UnsafeName         no   a name would lead out of the target folder, or through a link
    │   └── ContentChanged     no   a file does not hold any more what it held when it was hashed
    ├── NotFreezable           no   a directory or commit cannot be published; nothing was sent
    ├── InvalidSpec            no   a folder, gpu.yaml or arguments make no script Job; nothing was sent
    ├── IntegrityError         yes  bytes arrived whose size or SHA-256 is not the announced one
    ├── InvalidAnswer          no   what answered does not speak this API
    ├── WaitTimeout            yes  the time given ran out; the Job goes on
    ├── ConnectionFailed       yes  no answer, after the automatic retries
    │   └── ServerStartFailed  no   the embedded server did not come up; the message has its log's tail
    └── ApiError               the server refused: ``code``, ``status``, ``message``, ``faults``
        ├── RequestRefused     no   4xx: the request has to change
        ├── NotAuthenticated   no   401
        ├── PermissionRefused  no   403
        ├── NotFound           no   404, 410
        ├── Conflict           no   409, 412
        ├── RateLimited        yes  429; ``retry_after`` says in how many seconds
        └── ServerUnavailable  yes  5xx
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


class TrainshedError(Exception):
    """The root of the tree: catch this to catch all of it."""

    again: ClassVar[bool] = False
    """Whether the same call, unchanged, can succeed later."""
    hint: str = ""
    """What to do next, in a sentence; may be empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigurationError(TrainshedError):
    """An address, a key or a file of this user cannot be used as it is."""


class LocalFileError(TrainshedError):
    """A local file or folder stands in the way."""


class UnsafeName(LocalFileError):
    """A name would lead out of the target folder or through a link; nothing was written."""


class ContentChanged(LocalFileError):
    """A file does not hold any more what it held when it was hashed; nothing of it was stored."""


class IntegrityError(TrainshedError):
    """Bytes arrived whose size or SHA-256 is not the announced one; they were thrown away."""

    again = True


class InvalidAnswer(TrainshedError):
    """What answered does not speak this API: not JSON, or a required field is missing."""


class WaitTimeout(TrainshedError):
    """The time given ran out. The Job or Trial goes on; waiting again continues."""

    again = True


class ConnectionFailed(TrainshedError):
    """The server gave no answer, after the automatic retries."""

    again = True


class ServerStartFailed(ConnectionFailed):
    """The embedded server did not come up; the message holds the end of its log."""

    again = False

    def __init__(self, message: str, *, hint: str = "", status: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        """How its process exited; ``None`` if it had to be ended."""


@dataclass(frozen=True, slots=True)
class FieldFault:
    """One thing wrong with a request: where (``trials[0].spec.image``), which rule, in a sentence."""

    path: str
    code: str
    message: str


class NotFreezable(TrainshedError):
    """A directory or commit cannot be published as a Runner or a content. Nothing was sent."""

    def __init__(
        self, code: str, message: str, faults: tuple[FieldFault, ...] = (), *, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.faults = faults

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class InvalidSpec(TrainshedError):
    """A folder, its gpu.yaml or the arguments beside it make no script Job. Nothing was sent.

    ``code`` is ``invalid_spec`` or ``invalid_request``; ``detail`` holds JSON values, such as every fault.
    """

    def __init__(
        self, code: str, message: str, hint: str = "", detail: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.detail: Mapping[str, Any] = detail or {}

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class ApiError(TrainshedError):
    """The server refused. ``code`` is the contract's word, ``faults`` name every field at once."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        faults: tuple[FieldFault, ...] = (),
        hint: str = "",
        retry_after: float | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.faults = faults
        self.retry_after = retry_after
        """Seconds to wait before asking again, where the server said so."""
        self.body: Mapping[str, Any] = body or {}
        """The whole answer, with the extra keys that some codes carry."""

    def __str__(self) -> str:
        return f"{self.code} ({self.status}): {self.message}"


class RequestRefused(ApiError):
    """4xx: the request itself has to change."""


class NotAuthenticated(ApiError):
    """401: no key, or one that is not valid any more."""


class PermissionRefused(ApiError):
    """403: the key may not do this."""


class NotFound(ApiError):
    """404 or 410: there is no such thing, or this key may not see it."""


class Conflict(ApiError):
    """409 or 412: it collides with what is there."""


class RateLimited(ApiError):
    """429, after the automatic retries."""

    again = True


class ServerUnavailable(ApiError):
    """5xx, after the automatic retries."""

    again = True


DAMAGED_HINT = (
    "Download it again; if it stays so, the stored bytes are damaged. An administrator finds that with "
    "`trainshed content verify`, and mends with --repair what can be published again."
)
_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: NotAuthenticated,
    403: PermissionRefused,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    412: Conflict,
    429: RateLimited,
}
_SERVER_FAULT = 500


def api_error(status: int, body: Any, retry_after: float | None = None) -> ApiError:
    """The error for an answer; a body that is not the contract's shape gives the code ``HTTP_ERROR``."""
    document = body if isinstance(body, dict) else {}
    code = document.get("code")
    errors = document.get("errors")
    faults = tuple(
        FieldFault(str(entry.get("path", "")), str(entry.get("code", "")), str(entry.get("message", "")))
        for entry in (errors if isinstance(errors, list) else ())
        if isinstance(entry, dict)
    )
    kind = _BY_STATUS.get(status, ServerUnavailable if status >= _SERVER_FAULT else RequestRefused)
    return kind(
        status,
        code if isinstance(code, str) else "HTTP_ERROR",
        str(document.get("message") or f"the server answered with HTTP status {status}"),
        faults=faults,
        hint=str(document.get("hint") or ""),
        retry_after=retry_after,
        body=document,
    )
