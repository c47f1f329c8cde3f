"""The local engine: programs on this machine, one shim each, nothing else to install."""

from trainshed.engines.local.containers import ImageSettings
from trainshed.engines.local.engine import LocalEngine, log_files, samples_in
from trainshed.engines.local.gpus import GpuMetrics, inventory, metrics
from trainshed.engines.local.isolation import DEFAULT_USER, Isolation, describe, why_impossible

__all__ = [
    "DEFAULT_USER",
    "GpuMetrics",
    "ImageSettings",
    "Isolation",
    "LocalEngine",
    "describe",
    "inventory",
    "log_files",
    "metrics",
    "samples_in",
    "why_impossible",
]
