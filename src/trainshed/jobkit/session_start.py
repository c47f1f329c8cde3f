"""What begins a run in a session of a notebook provider: it unpacks what was sent and starts the runner.

It is sent as text, with its settings written into it (`trainshed.engines.providers.sending`), so it needs
nothing but the Python there is (3.8 or later). Whatever happens it leaves a record of the end, and its own
exit status is 0: a provider that sees a session fail may keep less of what it wrote.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from typing import Any

SETTINGS: dict[str, Any] = {}
"""``key``, ``work``, ``out``, ``env``, ``pad``, ``seconds``, and files to look for: ``inputs``, ``data``."""

NOT_BEGUN = 90
"""The exit code that blames no program."""
GRACE_SECONDS = 120.0
"""From the moment a run is told to end to the moment it is ended."""
HIDDEN = ("KAGGLE_KEY", "KAGGLE_USERNAME", "KAGGLE_API_TOKEN")


class NotBegun(Exception):
    """Something that was sent is not there, or is not what was sent."""


def place(text: str) -> str:
    """A path of the provider's; the folder that all of them are below can be moved for tests."""
    return os.environ.get("TRAINSHED_SESSION_ROOT", "") + text


def found(item: dict[str, Any]) -> str:
    """The file that was sent; one that came in parts is put together."""
    if "parts" in item:
        whole = place(item["whole"])
        with open(whole, "wb") as target:
            for part in item["parts"]:
                with open(place(part), "rb") as source:
                    shutil.copyfileobj(source, target)
        return whole
    for candidate in item["places"]:
        path = place(candidate)
        if os.path.isfile(path):
            return path
    top, tail = place(item["below"]), os.path.join(item["folder"], item["file"])
    for folder, _, _ in os.walk(top):
        path = os.path.join(folder, tail)
        if os.path.isfile(path):
            return path
    raise NotBegun(f"{tail} is not in the session")


def checked(item: dict[str, Any]) -> str:
    """The same, and it is what was sent."""
    path = found(item)
    if item.get("sha256"):
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
        if digest.hexdigest() != item["sha256"]:
            raise NotBegun(f"{os.path.basename(path)} is not what was sent")
    return path


def unpack(path: str, into: str) -> None:
    """An archive of ours."""
    os.makedirs(into, exist_ok=True)
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(into, filter="data")
        else:
            archive.extractall(into)  # noqa: S202 - our own archive, on a Python without filters


def hidden(item: dict[str, Any], pad: str) -> dict[str, str]:
    """Values that lie in the session only half; the other half is in this program."""
    with open(checked(item), "rb") as file:
        half = file.read()
    values: dict[str, str] = json.loads(bytes(a ^ b for a, b in zip(half, base64.b64decode(pad))))
    return values


def prepared(settings: dict[str, Any], work: str, out: str) -> dict[str, str]:
    """Everything in its place; the environment of the runner."""
    inputs = settings["inputs"]
    unpack(checked(inputs["bundle"]), work)
    env = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    env.update(settings["env"])
    env["GPU_OUTPUT_DIR"] = os.path.join(out, "outputs")
    env["GPU_CHECKPOINT_STORE"] = os.path.join(out, "checkpoint_store")
    env["GPU_DATA_DIR"] = "data"
    env["TRAINSHED_STOP_GRACE_S"] = "60"
    if "hidden" in inputs:
        env.update(hidden(inputs["hidden"], settings["pad"]))
    if "resume" in inputs:
        unpack(checked(inputs["resume"]), os.path.join(work, "resume"))
        env["GPU_RESUME_DIR"] = "resume"
    for item in settings["data"]:
        target = os.path.join(work, "data", item["mount"])
        if item["single"]:
            aside = os.path.join(work, ".data", item["mount"])
            unpack(found(item), aside)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(os.path.join(aside, item["single"]), target)
        else:
            unpack(found(item), target)
    return env


def run(settings: dict[str, Any], work: str, env: dict[str, str], began: float) -> tuple[int, str]:
    """Run the runner; its exit code, and what ended it: ``""``, ``deadline``, ``asked`` or ``signal``.

    ``signal``: somebody killed the runner, which tells of its program's end in every other case.
    """
    asked: list[int] = []
    runner = subprocess.Popen([sys.executable, "gpu_runner/__main__.py"], cwd=work, env=env)

    def pass_on(number: int, _frame: object) -> None:
        asked.append(number)
        runner.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    ended_by, until = "", began + settings["seconds"] if settings["seconds"] else float("inf")
    force = float("inf")
    while True:
        try:
            code = runner.wait(1.0)
            ended_by = ended_by or ("asked" if asked else "signal" if code < 0 else "")
            return (128 - code if code < 0 else code), ended_by
        except subprocess.TimeoutExpired:
            now = time.time()
        heed(settings, work, asked, runner)
        if asked and force == float("inf"):
            force = now + GRACE_SECONDS
        if now >= until and not ended_by:
            print("gpu: the session ends soon, the program is stopped", flush=True)  # noqa: T201 - its log
            ended_by, force = "deadline", now + GRACE_SECONDS
            runner.terminate()
        if now >= force:
            runner.kill()


def heed(settings: dict[str, Any], work: str, asked: list[int], runner: subprocess.Popen[bytes]) -> None:
    """What is said to a run by files, where a provider has no other way."""
    if not asked and "stop" in settings and os.path.exists(place(settings["stop"])):
        asked.append(signal.SIGTERM)
        runner.terminate()
    if "ask" in settings and os.path.exists(place(settings["ask"])) and os.path.isdir(work + "/.gpu"):
        with open(work + "/.gpu/checkpoint_requested", "w", encoding="utf-8"):
            pass
        os.remove(place(settings["ask"]))


def pack(out: str, name: str) -> None:
    """Everything that the run wrote, in one file."""
    path = os.path.join(out, name)
    with tarfile.open(path + ".part", "w") as archive:
        for folder in ("outputs", "checkpoint_store"):
            if os.path.isdir(os.path.join(out, folder)):
                archive.add(os.path.join(out, folder), folder)
    os.replace(path + ".part", path)


def main() -> int:
    """Begin the run, wait for its end, leave the record."""
    began, settings = time.time(), SETTINGS
    work, out = place(settings["work"]), place(settings["out"])
    record = {"version": 1, "key": settings["key"], "code": NOT_BEGUN, "ended_by": "", "message": ""}
    try:
        os.makedirs(out, exist_ok=True)
        os.makedirs(work, exist_ok=True)
        env = prepared(settings, work, out)
        record["code"], record["ended_by"] = run(settings, work, env, began)
    except (NotBegun, OSError, ValueError, tarfile.TarError) as problem:
        record["message"] = str(problem)
        print(f"gpu: the run cannot begin: {problem}", flush=True)  # noqa: T201 - as above
    if settings.get("pack"):
        try:
            pack(out, settings["pack"])
        except (OSError, tarfile.TarError) as problem:
            print(f"gpu: what it wrote cannot be packed: {problem}", flush=True)  # noqa: T201 - as above
    record["started_at"], record["finished_at"] = began, time.time()
    path = os.path.join(out, "trainshed_end.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(path + ".part", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
