"""The HTTP room: handlers, their OpenAPI document, the process that serves them (`trainshed.server.run`)."""

import sys

if not sys.modules.keys() & {"rich", "structlog"}:
    # structlog would load rich, 3 MB, to draw tracebacks; a server writes its log as JSON.
    sys.modules["rich"] = None  # type: ignore[assignment]  # how Python is told that a module is not there
    try:
        import structlog  # noqa: F401 - loaded here for the reason above
    finally:
        del sys.modules["rich"]
