"""What this machine has in total, for the accounting and as the ceiling of every real limit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil

from trainshed.model.resources import Amounts

_MIB = 1 << 20


def totals(data: Path) -> Amounts:
    """CPU cores usable by us, memory, and the disk space free below ``data`` now. No GPUs.

    Shared memory counts as memory, so as much of it is offered as there is memory.
    """
    memory = psutil.virtual_memory().total // _MIB
    return Amounts(
        cpus=len(os.sched_getaffinity(0)),
        memory_mb=memory,
        storage_mb=shutil.disk_usage(data).free // _MIB,
        shm_mb=memory,
    )
