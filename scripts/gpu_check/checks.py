"""The checks themselves. Each returns a sentence of what it saw, or raises `CheckError`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from gpu_check.platform import CheckError, Platform, wait

USED = re.compile(r'^trainshed_gpu_memory_used_mb\{[^}]*index="(\d+)"[^}]*\} ([0-9.e+]+)$', re.MULTILINE)
KILLED = 137
HELD_MIB = 1024
SLACK_MIB = 128
"""What a driver may keep for itself after a context is gone."""


class Context:
    """What the checks share: the platform, the GPUs, whether they are simulated."""

    def __init__(self, platform: Platform, gpus: list[dict], *, simulated: bool) -> None:
        self.platform = platform
        self.gpus = gpus
        self.simulated = simulated
        self.model = gpus[0]["model"]


def inventory(context: Context) -> str:
    """NVML finds the GPUs, the same as nvidia-smi does."""
    names = ", ".join(f"{gpu['index']}: {gpu['model']} {gpu['memory_mb']} MiB" for gpu in context.gpus)
    program = shutil.which("nvidia-smi")
    if context.simulated or program is None:
        return f"{names} (nvidia-smi not compared)"
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
    uuids = re.findall(r"^GPU \d+:.*\(UUID: (\S+)\)", listed, re.MULTILINE)
    expect(uuids == [gpu["uuid"] for gpu in context.gpus], f"nvidia-smi lists {uuids}")
    return f"{names}; nvidia-smi agrees"


def cuda_trial(context: Context) -> str:
    """A Trial computes on the device it was given, and sees no other."""
    job = context.platform.submit(context.model, "compute", "0")
    (trial,) = context.platform.ended(job)
    expect(trial["exit_code"] == 0, f"exit code {trial['exit_code']}, log {context.platform.said(job)}")
    last = context.platform.said(job)[-1]
    assigned = uuid_of(context, trial)
    expect(last["correct"], "it computed wrong numbers")
    expect(last["uuid"] == assigned, f"given {assigned}, used {last['uuid']}")
    expect(last["devices"] == 1, f"it saw {last['devices']} devices")
    return f"correct through {last['through']} on {last['uuid']}, the one visible device"


def two_trials(context: Context) -> str:
    """Two Trials use different devices at the same time, or one waits for the other."""
    job = context.platform.submit(context.model, "compute", "3", trials=2)
    trials = context.platform.ended(job)
    expect(all(trial["exit_code"] == 0 for trial in trials), f"exit codes {[t['exit_code'] for t in trials]}")
    spans = []
    for trial in trials:
        said = [line for line in context.platform.said(job) if line["trial"] == trial["name"]]
        expect(len(said) == 2, f"{trial['name']} said {said}")
        expect(said[0]["uuid"] == uuid_of(context, trial), f"{trial['name']} used {said[0]['uuid']}")
        spans.append((said[0]["at"], said[1]["at"], said[0]["uuid"]))
    (_, end_1, uuid_1), (begin_2, end_2, uuid_2) = sorted(spans)
    if uuid_1 != uuid_2:
        return f"{uuid_1} and {uuid_2}, together for {min(end_1, end_2) - begin_2:.1f} s"
    expect(begin_2 >= end_1, f"both used {uuid_1} at the same time")
    return f"the second waited for {uuid_1} and began {begin_2 - end_1:.2f} s after the first ended"


def killed_program(context: Context) -> str:
    """A CUDA program that kills itself, with a daemon on the GPU, leaves nothing behind."""
    before = memory(context)
    job = context.platform.submit(context.model, "die", str(HELD_MIB))
    (trial,) = context.platform.ended(job)
    expect(trial["exit_code"] == KILLED, f"exit code {trial['exit_code']}")
    held = [line for line in context.platform.said(job) if line["event"] == "holding"]
    expect(len(held) == 2, f"the program and its daemon said {held}")
    expect(not alive(trial), f"still alive: {alive(trial)}")
    wait(lambda: memory(context) <= before + SLACK_MIB, "the GPU's memory to be free again", 20)
    after = memory(context)
    return f"exit 137, release confirmed, no process left, GPU memory {before} MiB before, {after} after"


def gpu_metrics(context: Context) -> str:
    """The server's metrics show what a program holds, and that it is gone after a stop."""
    before = memory(context)
    job = context.platform.submit(context.model, "hold", str(HELD_MIB))
    wait(
        lambda: sum(line["event"] == "holding" for line in context.platform.said(job)) == 2,
        "the program and its daemon to hold memory",
    )
    during = memory(context)
    page = context.platform.metrics_page()
    (trial,) = context.platform.trials(job)
    processes = len(alive(trial))
    context.platform.cli("job", "stop", job)
    (trial,) = context.platform.ended(job)
    expect(not alive(trial), f"still alive after the stop: {alive(trial)}")
    expect(processes >= 2, f"{processes} processes carried the mark while it ran")
    if context.simulated:
        return "simulated GPUs have no metrics; the stop ended the program and its daemon"
    expect(during >= before + HELD_MIB, f"{before} MiB before, {during} MiB while {2 * HELD_MIB} are held")
    values = dict(
        re.findall(
            r'^trainshed_gpu_memory_used_mb\{[^}]*index="(\d+)"[^}]*\} ([0-9.e+]+)$', page, re.MULTILINE
        )
    )
    index = str(trial["gpu"]["indices"][0])
    expect(float(values.get(index, 0)) >= before + HELD_MIB, f"/metrics says {values}")
    wait(lambda: memory(context) <= before + SLACK_MIB, "the GPU's memory to be free again", 20)
    return f"GPU memory {before} -> {during} -> {memory(context)} MiB; /metrics shows it"


CHECKS: tuple[tuple[str, Callable[[Context], str]], ...] = (
    ("inventory through NVML", inventory),
    ("a Trial uses CUDA", cuda_trial),
    ("two Trials, two devices or one after the other", two_trials),
    ("release after a killed CUDA program", killed_program),
    ("GPU metrics and stop", gpu_metrics),
)


def expect(condition: object, otherwise: str) -> None:
    """Raise `CheckError` with what was seen instead."""
    if not condition:
        raise CheckError(otherwise)


def uuid_of(context: Context, trial: dict) -> str:
    """The uuid of the device that the platform says it gave to a Trial."""
    (index,) = trial["gpu"]["indices"]
    return next(str(gpu["uuid"]) for gpu in context.gpus if gpu["index"] == index)


def memory(context: Context) -> int:
    """MiB in use on all GPUs."""
    return sum(int(gpu["memory_used_mb"]) for gpu in context.platform.gpu_metrics())


def alive(trial: dict) -> list[int]:
    """Processes on this machine that carry the mark of one of the Trial's Attempts."""
    marks = {f"TRAINSHED_ATTEMPT_ID={attempt['attempt_id']}".encode() for attempt in trial["attempts"]}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marks & set(variables):
                found.append(int(entry.name))
    return found
