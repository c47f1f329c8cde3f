"""GPUs of this machine through NVML, and simulated ones for machines without."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml  # type: ignore[import-untyped] # nvidia-ml-py ships no types

from trainshed.engines.contract import EngineError
from trainshed.model.resources import Gpu

_MIB = 1 << 20
_NVML_GUARD = threading.Lock()
_SIMULATED_MEMORY_MB = {
    "A10": 24_576,
    "A100": 81_920,
    "B200": 196_608,
    "H100": 81_920,
    "H200": 144_384,
    "L4": 24_576,
    "L40S": 49_152,
    "T4": 16_384,
    "V100": 32_768,
}
_SHARED_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps")
"""They give access to no GPU by themselves."""
_OTHER_MEMORY_MB = 81_920
_NOISE = re.compile(
    r"^(NVIDIA|Tesla|GeForce|Quadro|Graphics|Device|\d+GB|HBM\w*|PCIe|SXM\d*|NVL|Generation)$"
)


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """What one real GPU does now."""

    index: int
    model: str
    uuid: str
    utilisation: float | None
    """Share of the last sample period in which a kernel ran, 0..1; ``None`` where not reported."""
    memory_used_mb: int
    memory_total_mb: int
    power_watts: float | None
    temperature_c: float | None
    pids: tuple[int, ...]
    """Processes with a compute context, as the driver numbers them (the host's ids)."""


def model_name(product: str) -> str:
    """The short name under which requests ask for a GPU: ``NVIDIA A100-SXM4-80GB`` is ``A100``."""
    words = [word for word in re.split(r"[\s-]+", product) if not _NOISE.match(word)]
    if words[:1] == ["RTX"]:
        return "".join(words[:2])
    return words[0] if words else product


@contextmanager
def nvml() -> Iterator[bool]:
    """Run with NVML; ``False`` where there is no driver. One user at a time."""
    with _NVML_GUARD:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            yield False
            return
        try:
            yield True
        finally:
            pynvml.nvmlShutdown()


def inventory() -> tuple[Gpu, ...]:
    """The real GPUs, by NVML index. A device that does not answer is left out."""
    found = []
    with nvml() as there:
        for index in range(pynvml.nvmlDeviceGetCount() if there else 0):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                name, uuid = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)
                memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB
            except pynvml.NVMLError:
                continue
            found.append(Gpu(index=index, model=model_name(_text(name)), uuid=_text(uuid), memory_mb=memory))
    return tuple(found)


def at_bus(address: str) -> str | None:
    """The id of the real GPU at a PCI address such as ``0000:3b:00``; ``None`` if none answers there."""
    with nvml() as there:
        for index in range(pynvml.nvmlDeviceGetCount() if there else 0):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                place = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()
                if place.endswith(address.lower()) or place.partition(".")[0].endswith(address.lower()):
                    return _text(pynvml.nvmlDeviceGetUUID(handle))
            except pynvml.NVMLError:
                continue
    return None


def metrics() -> tuple[GpuMetrics, ...]:
    """Utilisation, memory, power, temperature and users of each real GPU now."""
    found = []
    with nvml() as there:
        for index in range(pynvml.nvmlDeviceGetCount() if there else 0):
            try:
                found.append(_measure(index))
            except pynvml.NVMLError:
                continue
    return tuple(found)


def _measure(index: int) -> GpuMetrics:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuMetrics(
        index=index,
        model=model_name(_text(pynvml.nvmlDeviceGetName(handle))),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        utilisation=_optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        memory_used_mb=int(memory.used) // _MIB,
        memory_total_mb=int(memory.total) // _MIB,
        power_watts=_optional(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        temperature_c=_optional(
            lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        ),
        pids=tuple(int(user.pid) for user in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    )


def device_files(assigned: Sequence[Gpu]) -> list[str]:
    """What of ``/dev`` a program needs for these GPUs and no others; nothing for simulated ones.

    Raises `EngineError` for a GPU that does not answer.
    """
    real = [gpu for gpu in assigned if not gpu.simulated]
    with nvml() as there:
        if not there or not real:
            return []
        try:
            handles = [pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in real]
            own = [f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(handle)}" for handle in handles]
        except pynvml.NVMLError as error:
            raise EngineError("GPU_LOST", f"a GPU does not answer: {error}", retryable=True) from error
    return own + [path for path in _SHARED_DEVICES if Path(path).exists()]


def simulated(spec: Mapping[str, int] | Sequence[str]) -> tuple[Gpu, ...]:
    """Simulated GPUs from ``{"H100": 8}`` or ``["H100:8", "A100:1"]``, numbered in that order.

    Raises `ValueError` for anything but a model and a positive number, and for a model named twice.
    """
    pairs = list(spec.items()) if isinstance(spec, Mapping) else [_parse(item) for item in spec]
    counts = dict(pairs)
    if len(counts) < len(pairs):
        raise ValueError(f"simulated GPUs are given as MODEL:COUNT, each model once, not {' '.join(spec)}")
    models = []
    for model, count in counts.items():
        if count < 1 or not model:
            raise ValueError(
                f"simulated GPUs are given as MODEL:COUNT with COUNT at least 1, such as H100:8, not"
                f" {model}:{count}"
            )
        models += [model] * count
    return tuple(
        Gpu(
            index=index,
            model=model,
            uuid=f"SIMULATED-{model}-{index}",
            memory_mb=_SIMULATED_MEMORY_MB.get(model, _OTHER_MEMORY_MB),
            simulated=True,
        )
        for index, model in enumerate(models)
    )


def _parse(item: str) -> tuple[str, int]:
    model, _, count = item.partition(":")
    if not count.isdecimal():
        raise ValueError(f"simulated GPUs are given as MODEL:COUNT, such as H100:8, not {item!r}")
    return model, int(count)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _optional(read: Callable[[], float]) -> float | None:
    try:
        return float(read())
    except pynvml.NVMLError:
        return None
