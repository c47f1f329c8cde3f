"""Trainshed: freezes a training program, runs it on GPUs, and proves what it released.

``from trainshed import Client`` loads the client on first use, so that importing the package alone stays
cheap for the command line and for the programs beside user code. Everything that `trainshed.sdk` offers can
be imported from here: the client, what it answers, and its errors.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""Loading typing costs as much as starting Python does; type checkers know this name and take it as true."""
if TYPE_CHECKING:
    from typing import Any

    from trainshed.sdk import (
        ApiError,
        Artifact,
        Checkpoint,
        CheckpointFile,
        Client,
        ConfigurationError,
        Conflict,
        ConnectionFailed,
        Content,
        ContentChanged,
        ContentVersion,
        Downloaded,
        Event,
        FieldFault,
        IntegrityError,
        InvalidAnswer,
        InvalidSpec,
        Job,
        LocalFileError,
        LogRecord,
        NotAuthenticated,
        NotFound,
        NotFreezable,
        Page,
        PermissionRefused,
        Pool,
        Published,
        PublishedContent,
        PublishProgress,
        Quota,
        RateLimited,
        RequestRefused,
        RetryPolicy,
        Runner,
        ServerStartFailed,
        ServerUnavailable,
        SubmittedTask,
        Task,
        TaskEvent,
        TrainshedError,
        Trial,
        UnsafeName,
        Validation,
        WaitTimeout,
        Why,
    )

__version__ = "0.1.0"
__all__ = [
    "ApiError",
    "Artifact",
    "Checkpoint",
    "CheckpointFile",
    "Client",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "Content",
    "ContentChanged",
    "ContentVersion",
    "Downloaded",
    "Event",
    "FieldFault",
    "IntegrityError",
    "InvalidAnswer",
    "InvalidSpec",
    "Job",
    "LocalFileError",
    "LogRecord",
    "NotAuthenticated",
    "NotFound",
    "NotFreezable",
    "Page",
    "PermissionRefused",
    "Pool",
    "PublishProgress",
    "Published",
    "PublishedContent",
    "Quota",
    "RateLimited",
    "RequestRefused",
    "RetryPolicy",
    "Runner",
    "ServerStartFailed",
    "ServerUnavailable",
    "SubmittedTask",
    "Task",
    "TaskEvent",
    "TrainshedError",
    "Trial",
    "UnsafeName",
    "Validation",
    "WaitTimeout",
    "Why",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from trainshed import sdk  # noqa: PLC0415 - loaded on first use, see above

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
