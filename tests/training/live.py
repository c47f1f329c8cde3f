"""Training tasks on a server as users start one, by HTTP: real programs, simulated GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from support.http import Answer, Http
from support.processes import kill_programs
from support.server import ServerProcess
from support.torch import torch_path
from support.waiting import wait_until

ENDED = frozenset({"Succeeded", "Failed", "Stopped"})
MOUNT = "/volume/out"
VOLUME = "out"
PAGE = (
    'torchrun --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" --nnodes "$WORLD_SIZE"'
    ' --nproc_per_node 2 --node_rank "$RANK" train.py'
)
"""The command line of the page (C44); two processes instead of eight."""
_NUMBERS = itertools.count(1)


class Live:
    """One server, a volume that its tasks may mount, and what tests do with tasks."""

    def __init__(self, server: ServerProcess, volume: Path) -> None:
        self.server = server
        self.volume = volume
        volume.mkdir(exist_ok=True)

    @classmethod
    def make(cls, new_server: Callable[..., ServerProcess], folder: Path, **options: Any) -> Live:
        """A server that runs, with its volume and, of ``settings``, more lines of ``[training]``.

        Who does not heed SIGTERM is killed after 2 seconds instead of 10.
        """
        volume, settings = folder / "volume", folder / "settings.toml"
        lines = [f'volumes = ["{VOLUME}={volume}"]', *options.pop("settings", ())]
        quick = "[trials]\nstop_grace_seconds = 2.0\n"
        settings.write_text("[training]\n" + "\n".join(lines) + "\n" + quick)
        server = new_server(options=["--config", str(settings), *options.pop("options", ())], **options)
        live = cls(server, volume)
        server.start()
        return live

    @property
    def http(self) -> Http:
        return self.server.http()

    def create(self, cmd: str, *, key: str | None = None, **spec: Any) -> str:
        """Create a task that must be accepted; its Job's id. ``None`` removes a field."""
        answer = self.ask(cmd, key=key, **spec)
        assert answer.status == 201, answer.body
        return str(answer.json["job_id"])

    def ask(self, cmd: str, *, key: str | None = None, **spec: Any) -> Answer:
        """Ask for a task of one replica with one simulated GPU, unless ``spec`` says otherwise."""
        return self.server.http(key).post("/v1/jobs", document(cmd, **spec))

    def task(self, ref: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/tasks/{ref}")
        assert answer.status == 200, answer.body
        return dict(answer.json)

    def until(self, ref: str, *states: str, timeout: float = 60.0) -> dict[str, Any]:
        """The task once it is in one of these states of the page; another end fails the test at once."""

        def there() -> dict[str, Any] | None:
            task = self.task(ref)
            if task["state"] in states:
                return task
            assert task["state"] not in ENDED, (task["state"], task["failure"], task["attempts"])
            return None

        return wait_until(there, timeout, f"{ref} to be {' or '.join(states)}")

    def ended(self, ref: str, timeout: float = 60.0) -> dict[str, Any]:
        """The task once it has ended, however it did, and everything that it held is confirmed as free."""
        self.server.wait_for_job(ref, timeout=timeout)
        self.server.wait_for_release(ref)
        return self.task(ref)

    def succeeded(self, ref: str, timeout: float = 60.0) -> dict[str, Any]:
        """The same for one that must succeed."""
        task = self.ended(ref, timeout)
        assert task["state"] == "Succeeded", (task["failure"], self.codes(ref))
        return task

    def stop(self, ref: str) -> None:
        assert self.http.post(f"/v1/tasks/{ref}/stop").status == 200

    def end_everything(self) -> None:
        """Stop what a test that failed left, and wait until it is gone, wherever that test broke off.

        Programs are killed: after an exit notice each would have all the time that its task gives it.
        """
        if not self.server.running:
            kill_programs(self.server.data)
            return
        tasks = self.http.get("/v1/tasks?limit=100").json["items"]
        left = [task["job_id"] for task in tasks if task["state"] not in ENDED]
        for ref in left:
            self.http.post(f"/v1/tasks/{ref}/stop")

        def gone() -> bool:
            kill_programs(self.server.data)
            trials = [trial for ref in left for trial in self.server.job(ref)["training"]["trials"]]
            return all(trial["cleanup_confirmed"] for trial in trials)

        wait_until(gone, 60, f"the end of {left}")

    def events(self, ref: str) -> list[dict[str, Any]]:
        """Everything told of it, oldest first."""
        answer = self.http.get(f"/v1/jobs/{ref}/events?limit=100")
        assert answer.status == 200, answer.body
        return list(reversed(answer.json["items"]))

    def codes(self, ref: str) -> list[str]:
        return [event["code"] for event in self.events(ref)]

    def told(self, ref: str, code: str, timeout: float = 60.0) -> list[str]:
        """The sentences of the events with this code, once there is one."""

        def find() -> list[str]:
            return [event["message"] for event in self.events(ref) if event["code"] == code]

        return wait_until(find, timeout, f"{code} of {ref}")

    def file(self, name: str, timeout: float = 60.0) -> Path:
        """A file of the volume once it is there and whole: programs write it at once, or rename it."""
        path = self.volume / name

        def there() -> bool:
            return path.exists() and path.stat().st_size > 0

        wait_until(there, timeout, f"{path}")
        return path


def document(cmd: str, **spec: Any) -> dict[str, Any]:
    """The request of `Live.ask`."""
    number = next(_NUMBERS)
    whole = {
        "kind": "pytorch",
        "name_prefix": f"proof-{number}",
        "image": "host",
        "cmd": cmd,
        "resource_type": "ondemand",
        "instance": {"specs": ["h100x1"]},
        "mounts": [{"type": "volume", "ref": VOLUME, "mount_path": MOUNT}],
        **spec,
    }
    kept = {key: value for key, value in whole.items() if value is not None}
    return {"type": "train", "request_id": f"proof-{number}", "spec": kept}


def torch_env() -> list[dict[str, Any]]:
    """Variables that make PyTorch's Python and torchrun the first on ``PATH``; skips where it is missing."""
    return [{"name": "PATH", "value": torch_path()}, {"name": "OMP_NUM_THREADS", "value": "1"}]


def causes(task: dict[str, Any]) -> list[str]:
    """The ledger of C33."""
    return [attempt["cause"] for attempt in task["attempts"]]


def classes(task: dict[str, Any]) -> list[str | None]:
    """How each Attempt ended (C35)."""
    return [attempt["exit_class"] for attempt in task["attempts"]]


def in_order(codes: Sequence[str], wanted: Collection[str]) -> bool:
    """Whether these codes come in this order, among others."""
    rest = iter(codes)
    return all(code in rest for code in wanted)
