"""The Ray engine: gangs on a Ray cluster that is there already, joined by its address (``trainshed[ray]``).

Nothing here imports Ray but what runs in a process of its own: `trainshed.engines.ray.helper` beside the
server, `trainshed.engines.ray.host` on the cluster's nodes
([decision 19](../../../../docs/decisions/0019-ray-in-a-process-of-its-own.md)).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainshed.engines.ray.engine import RayEngine, open_ray_engine

__all__ = ["RayEngine", "open_ray_engine"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: on the nodes, which load the host alone, there is nothing to import it with.
    if name in __all__:
        from trainshed.engines.ray import engine  # noqa: PLC0415 - see above

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
