"""The check before training (C31): process group, GEMM and all-reduce, in one process for each GPU.

The text of this file is what the program's own Python runs, so it needs nothing but torch. ``argv`` holds
the descriptor for findings and the settings as JSON; each finding is one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

_GEMM_GPU, _GEMM_CPU = 8192, 384
_REDUCE_GPU, _REDUCE_CPU = 256 << 20, 1 << 20
_REPEATS = 5
_DETAIL_CHARS = 500

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Run the checks in order; the first that fails ends it."""
    output, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    local = settings["local"]
    found = {"local": local, "gpu": settings["gpu"], "rank": settings["rank"]}
    check = "torch"
    try:
        import torch  # type: ignore[import-not-found] # noqa: PLC0415 - the program's, and it may lack it
        import torch.distributed as dist  # type: ignore[import-not-found] # noqa: PLC0415 - as above

        check = "device"
        device = _device(torch, settings)
        found["backend"] = "nccl" if device.type == "cuda" else "gloo"
        check = "process group"
        started = time.monotonic()
        dist.init_process_group(
            found["backend"],
            init_method=f"tcp://{settings['address']}:{settings['port']}",
            rank=settings["rank"],
            world_size=settings["world"],
            timeout=timedelta(seconds=settings["timeout"]),
        )
        _agree(torch, dist, device, settings["world"])
        found["group_seconds"] = round(time.monotonic() - started, 3)
        check = "GEMM"
        found["tflops"] = _multiply(torch, device)
        _compare("TFLOP/s", found["tflops"], settings["thresholds"].get("min_tflops"))
        check = "all-reduce"
        found["bus_gbps"] = _reduce(torch, dist, device, settings["world"])
        _compare("GB/s on the bus", found["bus_gbps"], settings["thresholds"].get("min_bus_gbps"))
        found["slowest_rank"] = _slowest(torch, dist, device, settings["world"], found["tflops"])
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        found["failed"] = check
        found["detail"] = _words(error)
    os.write(output, json.dumps(found).encode() + b"\n")
    sys.stdout.flush()
    os._exit(1 if "failed" in found else 0)  # teardown of torch's threads may abort


def _device(torch: Any, settings: dict[str, Any]) -> Any:
    if settings["simulated"]:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device, although GPUs are assigned")
    if torch.cuda.device_count() <= settings["local"]:
        raise RuntimeError(f"torch finds only {torch.cuda.device_count()} CUDA device(s)")
    device = torch.device("cuda", settings["local"])
    torch.cuda.set_device(device)
    return device


def _agree(torch: Any, dist: Any, device: Any, world: int) -> None:
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones)
    if int(ones.item()) != world:
        raise RuntimeError(f"the sum of {world} ones over all ranks is {ones.item():g}")


def _multiply(torch: Any, device: Any) -> float:
    """TFLOP/s of a square matrix product, the best of some."""
    on_gpu = device.type == "cuda"
    size = _GEMM_GPU if on_gpu else _GEMM_CPU
    kind = torch.bfloat16 if on_gpu else torch.float32
    left = torch.full((size, size), 0.5, device=device, dtype=kind)
    right = torch.full((size, size), 2.0, device=device, dtype=kind)
    best = float("inf")
    for _ in range(_REPEATS):
        started = _now(torch, on_gpu)
        product = left @ right
        best = min(best, _now(torch, on_gpu) - started)
    wrong = (product.float() - size).abs().max().item()
    if not wrong <= size / 100:
        raise RuntimeError(f"a matrix product is wrong by {wrong:g}")
    return round(2 * size**3 / max(best, 1e-9) / 1e12, 4)


def _reduce(torch: Any, dist: Any, device: Any, world: int) -> float:
    """Bus bandwidth of an all-reduce in GB/s: what each link must carry, however many ranks there are."""
    on_gpu = device.type == "cuda"
    count = (_REDUCE_GPU if on_gpu else _REDUCE_CPU) // 4
    best = float("inf")
    for _ in range(_REPEATS):
        data = torch.ones(count, device=device)
        dist.barrier()
        started = _now(torch, on_gpu)
        dist.all_reduce(data)
        best = min(best, _now(torch, on_gpu) - started)
        if data[0].item() != world or data[-1].item() != world:
            raise RuntimeError(f"an all-reduce of ones over {world} ranks gave {data[0].item():g}")
    moved = count * 4 * max(1.0, 2 * (world - 1) / world)
    return round(moved / max(best, 1e-9) / 1e9, 4)


def _slowest(torch: Any, dist: Any, device: Any, world: int, mine: float) -> int:
    speeds = torch.zeros(world, device=device)
    speeds[dist.get_rank()] = mine
    dist.all_reduce(speeds)
    return int(speeds.argmin().item())


def _now(torch: Any, on_gpu: bool) -> float:  # noqa: FBT001 - two of a kind
    if on_gpu:
        torch.cuda.synchronize()
    return time.monotonic()


def _compare(what: str, value: float, least: float | None) -> None:
    if least is not None and value < least:
        raise RuntimeError(f"{value:g} {what}, but this pool asks for {least:g}")


def _words(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"the program's Python ({sys.executable}) cannot import torch: {error}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:_DETAIL_CHARS]


if __name__ == "__main__":
    main()
