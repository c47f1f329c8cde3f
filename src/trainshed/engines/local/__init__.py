"""The local engine: programs on this machine, one shim each, nothing else to install."""

from trainshed.engines.local.engine import LocalEngine, log_files
from trainshed.engines.local.gpus import GpuMetrics, inventory, metrics

__all__ = ["GpuMetrics", "LocalEngine", "inventory", "log_files", "metrics"]
