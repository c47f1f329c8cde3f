"""Amounts of hardware: what a Trial asks for, what a node offers, what is left.

Units are those of the wire (contract E b2): whole GPUs, CPU cores, MiB.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

GPU_SHARE_CPUS = 16
GPU_SHARE_MEMORY_MB = 256 * 1024
GPU_SHARE_SHM_MB = 64 * 1024
GPU_SHARE_STORAGE_MB = 500 * 1024


@dataclass(frozen=True, slots=True)
class Amounts:
    """A vector of countable resources. GPUs are counted without their model."""

    gpus: int = 0
    cpus: int = 0
    memory_mb: int = 0
    storage_mb: int = 0
    shm_mb: int = 0

    def __add__(self, other: Self) -> Amounts:
        return Amounts(
            self.gpus + other.gpus,
            self.cpus + other.cpus,
            self.memory_mb + other.memory_mb,
            self.storage_mb + other.storage_mb,
            self.shm_mb + other.shm_mb,
        )

    def __sub__(self, other: Self) -> Amounts:
        return Amounts(
            self.gpus - other.gpus,
            self.cpus - other.cpus,
            self.memory_mb - other.memory_mb,
            self.storage_mb - other.storage_mb,
            self.shm_mb - other.shm_mb,
        )

    def __mul__(self, times: int) -> Amounts:
        return Amounts(
            self.gpus * times,
            self.cpus * times,
            self.memory_mb * times,
            self.storage_mb * times,
            self.shm_mb * times,
        )

    def fits_in(self, room: Amounts) -> bool:
        """Whether every component is at most the same component of ``room``."""
        return not self.shortfalls(room)

    def shortfalls(self, room: Amounts) -> dict[str, tuple[int, int]]:
        """Components that do not fit, as ``{name: (wanted, there)}``."""
        pairs = {f.name: (getattr(self, f.name), getattr(room, f.name)) for f in fields(self)}
        return {name: (want, there) for name, (want, there) in pairs.items() if want > there}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node. ``simulated`` ones exist only in the accounting."""

    index: int
    model: str
    uuid: str
    memory_mb: int
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of an engine: its GPUs and its totals for the accounting.

    ``amounts`` already contains what simulated GPUs bring along; real limits set on processes
    never exceed the machine, whatever this says.
    """

    name: str
    gpus: tuple[Gpu, ...]
    amounts: Amounts

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus)


def simulated_share(gpus: int) -> Amounts:
    """What ``gpus`` simulated GPUs add to a node's accounting."""
    return (
        Amounts(
            gpus=1,
            cpus=GPU_SHARE_CPUS,
            memory_mb=GPU_SHARE_MEMORY_MB,
            storage_mb=GPU_SHARE_STORAGE_MB,
            shm_mb=GPU_SHARE_SHM_MB,
        )
        * gpus
    )
