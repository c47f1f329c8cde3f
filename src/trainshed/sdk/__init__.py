"""The Python client. ``from trainshed import Client`` is the usual door; names load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainshed.sdk.checkpoints import Checkpoint, CheckpointFile
    from trainshed.sdk.client import Client
    from trainshed.sdk.content_objects import Content, ContentVersion, PublishedContent, PublishProgress
    from trainshed.sdk.download import Downloaded
    from trainshed.sdk.errors import (
        ApiError,
        ConfigurationError,
        Conflict,
        ConnectionFailed,
        ContentChanged,
        FieldFault,
        IntegrityError,
        InvalidAnswer,
        InvalidSpec,
        LocalFileError,
        NotAuthenticated,
        NotFound,
        NotFreezable,
        PermissionRefused,
        RateLimited,
        RequestRefused,
        ServerStartFailed,
        ServerUnavailable,
        TrainshedError,
        UnsafeName,
        WaitTimeout,
    )
    from trainshed.sdk.objects import Artifact, Event, Job, LogRecord, Page, Runner, Trial
    from trainshed.sdk.pools import Pool, Quota
    from trainshed.sdk.runners import Published
    from trainshed.sdk.task_objects import SubmittedTask, Task, TaskEvent, Validation, Why
    from trainshed.sdk.transport import RetryPolicy

_HOMES = {
    "checkpoints": ("Checkpoint", "CheckpointFile"),
    "client": ("Client",),
    "content_objects": ("Content", "ContentVersion", "PublishProgress", "PublishedContent"),
    "download": ("Downloaded",),
    "errors": (
        "ApiError",
        "ConfigurationError",
        "Conflict",
        "ConnectionFailed",
        "ContentChanged",
        "FieldFault",
        "IntegrityError",
        "InvalidAnswer",
        "InvalidSpec",
        "LocalFileError",
        "NotAuthenticated",
        "NotFound",
        "NotFreezable",
        "PermissionRefused",
        "RateLimited",
        "RequestRefused",
        "ServerStartFailed",
        "ServerUnavailable",
        "TrainshedError",
        "UnsafeName",
        "WaitTimeout",
    ),
    "objects": ("Artifact", "Event", "Job", "LogRecord", "Page", "Runner", "Trial"),
    "pools": ("Pool", "Quota"),
    "runners": ("Published",),
    "task_objects": ("SubmittedTask", "Task", "TaskEvent", "Validation", "Why"),
    "transport": ("RetryPolicy",),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names}

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
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
