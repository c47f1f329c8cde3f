"""Trainshed: freezes a training program, runs it on GPUs, and proves what it released.

``from trainshed import Client`` loads the client on first use, so that importing the package alone stays
cheap for the command line and for the programs beside user code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainshed.sdk import Client, TrainshedError

__version__ = "0.1.0"
__all__ = ["Client", "TrainshedError", "__version__"]


def __getattr__(name: str) -> Any:
    if name in {"Client", "TrainshedError"}:
        from trainshed import sdk  # noqa: PLC0415 - loaded on first use, see above

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
