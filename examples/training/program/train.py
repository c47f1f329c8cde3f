"""Trains a small network on several processes, on CPUs or GPUs; saves when told to, and goes on later.

Started by torchrun on every replica. Whatever ends an Attempt - a stop, a preemption, a failure - the next
one goes on from the newest checkpoint in $CHECKPOINTS (default /volume/out), which has to outlive it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "200"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # to watch it work, or to stop it in the middle
SAVE_EVERY = 50
CHECKPOINT = Path(os.environ.get("CHECKPOINTS", "/volume/out")) / "checkpoint.pt"

notices: list[int] = []


def notice(number: int, _: object) -> None:
    """The platform's exit notice: there is time to save, but not for ever."""
    notices.append(number)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write the checkpoint whole or not at all."""
    if dist.get_rank() == 0:
        beside = CHECKPOINT.with_suffix(".new")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(CHECKPOINT)
        print(f"saved step {step}", flush=True)
    dist.barrier()


def batch(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and whether they lie in the unit circle; another part of them for each process."""
    random = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    points = torch.rand(256, 2, generator=random) * 2 - 1
    return points.to(device), (points.norm(dim=1) < 1).float().to(device)


def main() -> None:
    signal.signal(signal.SIGUSR1, notice)
    gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpus else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = int(state["step"])
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, beginning at step {start} of {STEPS}", flush=True)
    parallel = DistributedDataParallel(model)
    for step in range(start + 1, STEPS + 1):
        points, inside = batch(step, device)
        loss = nn.functional.binary_cross_entropy_with_logits(parallel(points).squeeze(1), inside)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # One process hears of the notice a step before another: all of them have to stop at the same one.
        leave = torch.tensor([float(bool(notices))], device=device)
        dist.all_reduce(leave, op=dist.ReduceOp.MAX)
        if step % SAVE_EVERY == 0 or step == STEPS or leave.item():
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            save(model, optimizer, step)
        if leave.item():
            break
        time.sleep(STEP_SECONDS)
    dist.barrier()
    dist.destroy_process_group()
    # What PyTorch does at the interpreter's end is slow and aborts at times; everything is written.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
