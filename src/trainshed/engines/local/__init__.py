"""The local engine: programs on this machine, one shim each, nothing else to install."""

from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.gpus import GpuMetrics, inventory, metrics

__all__ = ["GpuMetrics", "LocalEngine", "inventory", "metrics"]
