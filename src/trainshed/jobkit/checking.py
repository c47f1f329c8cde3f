"""Running the check before training where the program will run, and reading what it found (C31, C32).

The child that waits to become the program forks the check's processes: so they have its files, its groups and
its GPUs. They are all gone before it is let go.
"""

from __future__ import annotations

import json
import os
import shutil
import signal

from trainshed.jobkit import linux, seccomp

FAILED = "PRECHECK_FAILED"
_LINE_BYTES = 4096

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import Json


def source() -> str:
    """The text of the check: read before we are where its file is not."""
    with open(os.path.join(os.path.dirname(__file__), "precheck.py"), encoding="utf-8") as file:
        return file.read()


def run(text: str, launch: Json, output: int) -> None:
    """Run the check's processes to their end; their findings go to ``output``."""
    check = launch["precheck"]
    env = launch["env"] | check["env"]
    names = (name for name in ("python3", "python") if shutil.which(name, path=env.get("PATH")))
    program = next(names, "")
    if not program:
        finding = {"local": 0, "gpu": None, "failed": "torch", "detail": "there is no Python on its PATH"}
        os.write(output, json.dumps(finding).encode() + b"\n")
        return
    pids = [_start(program, text, rank, env, launch, output) for rank in check["ranks"]]
    for pid in pids:
        os.waitpid(pid, 0)


def _start(program: str, text: str, rank: Json, env: dict[str, str], launch: Json, output: int) -> int:
    parent = os.getpid()
    pid = linux.fork()
    if pid:
        return pid
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() == parent:
            os.dup2(2, 1)
            copy = os.dup(output)
            os.set_inheritable(copy, True)  # noqa: FBT003 - the function has one meaning
            if launch.get("container"):
                seccomp.forbid()
            argv = [program, "-c", text, str(copy), json.dumps(rank)]
            os.execvpe(program, argv, env)  # noqa: S606 - the program's own Python, with text of ours
    except OSError as error:
        finding = {"local": rank["local"], "gpu": rank["gpu"], "failed": "torch", "detail": str(error)}
        os.write(output, json.dumps(finding).encode() + b"\n")
    os._exit(127)


class Findings:
    """What came out of one member's check."""

    def __init__(self, settings: Json, rank: int) -> None:
        self._ranks = settings["ranks"]
        self._replica = rank
        self._data = b""
        self._found: dict[int, Json] = {}

    def take(self, data: bytes) -> None:
        """Take what a process wrote."""
        self._data += data
        *lines, self._data = self._data.split(b"\n")
        for line in lines:
            try:
                finding = json.loads(line[:_LINE_BYTES])
                self._found[int(finding["local"])] = finding
            except (ValueError, KeyError, TypeError):
                continue

    def failure(self, *, late: float | None = None) -> str:
        """Why the check failed, naming replica, GPU and check; empty if it passed."""
        for rank in self._ranks:
            found = self._found.get(rank["local"])
            if found is not None and found.get("failed"):
                return self._sentence(rank, str(found["failed"]), str(found.get("detail", "")))
        missing = [rank for rank in self._ranks if rank["local"] not in self._found]
        if missing and late is not None:
            return self._sentence(missing[0], "time", f"it did not finish within {late:g} seconds")
        if missing:
            return self._sentence(missing[0], "process", "it ended without a word (its output is in the log)")
        return ""

    def _sentence(self, rank: Json, check: str, detail: str) -> str:
        gpu = "its CPU" if rank["gpu"] is None else f"GPU {rank['gpu']}"
        return f"{FAILED}: replica {self._replica}, {gpu}, {check}: {detail}"

    def numbers(self) -> Json:
        """The measurements, by GPU."""
        kept = ("gpu", "rank", "tflops", "bus_gbps", "group_seconds")
        gpus = [
            {name: each[name] for name in kept if name in each} for _, each in sorted(self._found.items())
        ]
        first = next(iter(self._found.values()), {})
        return {
            "gpus": gpus,
            "backend": first.get("backend"),
            "simulated": bool(self._ranks[0]["simulated"]),
            "slowest_rank": first.get("slowest_rank"),
        }

    def sentence(self) -> str:
        """What was measured, for people."""
        tflops = [each["tflops"] for each in self._found.values() if "tflops" in each]
        bus = [each["bus_gbps"] for each in self._found.values() if "bus_gbps" in each]
        numbers = self.numbers()
        words = f"The check before training passed: at least {min(tflops, default=0):g} TFLOP/s"
        words += f" and {min(bus, default=0):g} GB/s ({numbers['backend']}),"
        words += f" slowest rank {numbers['slowest_rank']}."
        if numbers["simulated"]:
            words += " Its GPUs are simulated: these are numbers of the CPU."
        return words
