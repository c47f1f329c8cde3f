"""E46: a Runner Job is made of published content; nothing where it is submitted is scanned or sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.proxy import Fault, FaultProxy
from support.watching import Watch
from trainshed.sdk import Client

CANARY = "only-on-this-machine"
PROGRAM = Path(sys.executable).with_name("trainshed")
OPTIONS = ("job", "submit", "--runner", "envloop/bash@main", "--gpu-type", "H100", "--gpu", "1")
REQUEST = {
    "request_id": "from-a-file",
    "trials": [{"spec": {"runner": "envloop/bash@main", "command": "python train.py || true"}}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project as people have it, with what a scan would stumble over and what a Runner is named like."""
    place = tmp_path / "project"
    for name in (
        "train.py",
        "local.sh",
        "runner.toml",
        "pyproject.toml",
        ".env",
        ".env.local",
        ".git/config",
        "envloop/bash/main.sh",
        "envloop/bash@main/main.sh",
        "deep/er/than/one/looks",
    ):
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{CANARY}\n")
    os.mkfifo(place / "pipe")
    (place / "loop").symlink_to(".")
    (place / "unreadable").write_text(CANARY)
    (place / "unreadable").chmod(0)
    with (place / "large").open("wb") as large:
        large.truncate(1 << 34)
    return place


@pytest.fixture
def proxy(module_server) -> Iterator[FaultProxy]:
    with FaultProxy(module_server.url, lambda _method, _path: Fault.NONE) as proxy:
        yield proxy


def stored(server) -> set[str]:
    """The files of the server's content store."""
    return {str(path) for path in (server.data / "content").rglob("*") if path.is_file()}


def submit(server, proxy, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINSHED_", "ENVLOOP_"))}
    return subprocess.run(
        [str(PROGRAM), *arguments, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**own, **server.environment, "TRAINSHED_URL": proxy.url},
        timeout=60,
        check=False,
    )


def only_submission(proxy: FaultProxy) -> dict:
    """The body of the one request that was made, after a look at all that was sent."""
    assert [(seen.method, seen.path) for seen in proxy.seen] == [("POST", "/v1/jobs")]
    (message,) = (seen.message for seen in proxy.seen)
    assert CANARY.encode() not in message
    return json.loads(message.partition(b"\r\n\r\n")[2])


def test_a_scan_and_a_read_would_be_seen(folder):
    with Watch(folder) as watch:
        list((folder / "deep").iterdir())
        (folder / "envloop/bash/main.sh").read_text()
        assert watch.opened() == {"deep", "envloop/bash/main.sh"}


def test_E46_the_options_of_a_submission_send_themselves_and_nothing_local(module_server, proxy, folder):
    before = stored(module_server)
    with Watch(folder) as watch:
        done = submit(
            module_server, proxy, folder, *OPTIONS, "--command", "sh local.sh; python train.py; true"
        )
        assert done.returncode == 0, done.stderr
        assert watch.opened() == set()
    sent = only_submission(proxy)
    assert sent.keys() == {"type", "request_id", "trials"}
    assert sent["trials"][0]["spec"] == {
        "runner": "envloop/bash@main",
        "command": "sh local.sh; python train.py; true",
        "resources": {"gpu_type": "H100", "gpus": 1},
    }
    assert stored(module_server) == before
    module_server.wait_for_release(json.loads(done.stdout)["job_id"])
    lines = [record["content"] for record in module_server.log_records(json.loads(done.stdout)["job_id"])]
    assert lines, "what the command names is missing there, and is told"
    assert CANARY not in "".join(lines)


def test_E46_of_a_request_file_its_own_bytes_are_read_and_nothing_beside_it(module_server, proxy, folder):
    (folder / "request.json").write_text(json.dumps(REQUEST))
    before = stored(module_server)
    with Watch(folder) as watch:
        done = submit(module_server, proxy, folder, "job", "submit", "--spec", "request.json")
        assert done.returncode == 0, done.stderr
        assert watch.opened() == {"request.json"}
    assert only_submission(proxy) == {"type": "train", **REQUEST}
    assert stored(module_server) == before
    module_server.wait_for_release(json.loads(done.stdout)["job_id"])


def test_E46_the_sdk_sends_the_dictionary_and_nothing_local(module_server, proxy, folder, monkeypatch):
    monkeypatch.chdir(folder)
    request = {**REQUEST, "request_id": "from-the-sdk"}
    with Watch(folder) as watch, Client(proxy.url, module_server.key) as client:
        job = client.training_jobs.submit(request)
        assert watch.opened() == set()
    assert only_submission(proxy) == {"type": "train", **request}
    module_server.wait_for_release(job.job_id)
