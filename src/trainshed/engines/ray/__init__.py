"""The Ray engine: gangs on a Ray cluster that is there already, joined by its address (``trainshed[ray]``).

Nothing here imports Ray but what runs in a process of its own: `trainshed.engines.ray.helper` beside the
server, `trainshed.engines.ray.host` on the cluster's nodes
([decision 19](../../../../docs/decisions/0019-ray-in-a-process-of-its-own.md)).
"""

from trainshed.engines.ray.engine import RayEngine, open_ray_engine

__all__ = ["RayEngine", "open_ray_engine"]
