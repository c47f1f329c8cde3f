"""The Python client. ``from trainshed import Client`` is the usual door; names load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainshed.sdk.client import Client
    from trainshed.sdk.errors import (
        ApiError,
        ConfigurationError,
        Conflict,
        ConnectionFailed,
        IntegrityError,
        InvalidAnswer,
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
    from trainshed.sdk.transport import RetryPolicy

_HOMES = {
    "client": ("Client",),
    "errors": (
        "ApiError",
        "ConfigurationError",
        "Conflict",
        "ConnectionFailed",
        "IntegrityError",
        "InvalidAnswer",
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
    "transport": ("RetryPolicy",),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ApiError",
    "Artifact",
    "Client",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "Event",
    "IntegrityError",
    "InvalidAnswer",
    "Job",
    "LocalFileError",
    "LogRecord",
    "NotAuthenticated",
    "NotFound",
    "NotFreezable",
    "Page",
    "PermissionRefused",
    "RateLimited",
    "RequestRefused",
    "RetryPolicy",
    "Runner",
    "ServerStartFailed",
    "ServerUnavailable",
    "TrainshedError",
    "Trial",
    "UnsafeName",
    "WaitTimeout",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
