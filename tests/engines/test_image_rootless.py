"""Images where the server is not root: rootless podman, in a process of another user."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainshed
from engines.containers import ImageGround
from engines.machinery import public_interpreter
from support.leftovers import processes_of
from support.waiting import wait_until

NOBODY = 65_534
DRIVER = """
import json, os, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[3])
from trainshed.engines import Launch, Limits, Phase
from trainshed.engines.local import LocalEngine
engine = LocalEngine(Path(sys.argv[1]))
found = {"why": engine.images(), "tree": engine.enforcement()["tree"]}
if found["why"] is None:
    engine.prepare(sys.argv[2], lambda sentence: None, lambda: False)
    programs = {
        "writes": "cat /marker > seen; id -u > user; : > /root/mine; : > /tmp/mine; exit 3",
        "killed": "kill -KILL $$",
        "stopped": "exec sleep 1000",
        "twice": "(setsid sleep 1000 &); cat seen; true",
    }
    for name, text in programs.items():
        limits = Limits(cpus=1, memory_mb=256, storage_mb=64, shm_mb=16)
        engine.launch(Launch(name, ("bash", "-c", text), {}, (), (), limits, 60, image=sys.argv[2]))
        while (seen := engine.observe([name])[name]).phase is Phase.PREPARING:
            engine.changed(0.1)
        if name == "stopped":
            engine.stop(name)
        while (seen := engine.observe([name])[name]).phase not in {Phase.EXITED, Phase.LOST}:
            engine.changed(0.1)
        work = engine.work_directory(name)
        files = {each.name: each.read_text() for each in work.iterdir()}
        release = engine.release(name)
        found[name] = [seen.exit and seen.exit.code, seen.exit and seen.exit.signal, seen.detail]
        found[name] += [files, release.confirmed, dict(release.checks)]
    found["strangers"] = list(engine.sweep(()))
engine.close()
print(json.dumps(found))
"""


@pytest.fixture
def others_folder() -> Iterator[Path]:
    """A folder of a user who is not root; the tests' own lie where only root can walk."""
    folder = Path(tempfile.mkdtemp(prefix="trainshed-rootless-"))
    (folder / "run").mkdir()
    for path in (folder, folder / "run"):
        os.chown(path, NOBODY, NOBODY)
    yield folder
    subprocess.run(["umount", "-l", *_mounted(folder)], check=False, capture_output=True)
    shutil.rmtree(folder)


def _mounted(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if str(folder) in line]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_rules_hold_with_rootless_podman(image_ground: ImageGround, others_folder: Path) -> None:
    python = public_interpreter()
    paths = [str(Path(trainshed.__file__).resolve().parent.parent), *site.getsitepackages()]
    identity: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(others_folder),
        "XDG_RUNTIME_DIR": str(others_folder / "run"),
    }
    imports = f"import sys; sys.path[:0] = {paths!r}; import trainshed.engines.local"
    tried = subprocess.run([python, "-c", imports], env=env, check=False, capture_output=True, **identity)
    if tried.returncode != 0:
        pytest.skip("another user than root cannot import what the engine needs")
    done = subprocess.run(
        [python, "-c", DRIVER, str(others_folder / "engine"), image_ground.image, json.dumps(paths)],
        env=env,
        cwd=others_folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **identity,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if found["why"] is not None:
        pytest.skip(f"no rootless containers on this machine: {found['why']}")
    code, signal, detail, files, released, checks = found["writes"]
    assert (code, signal) == (3, None), detail
    assert files == {"seen": "of the image", "user": "0\n"}
    assert (released, checks["container"]) == (True, "removed")
    assert found["killed"][:2] == [137, 9]
    assert found["stopped"][:2] == [143, 15]
    assert found["twice"][:2] == [0, None]
    assert all(found[name][4] for name in ("killed", "stopped", "twice"))
    assert found["strangers"] == []
    assert not [each.name for each in (others_folder / "run").glob("trainshed/*/tmp")]
    wait_until(lambda: not processes_of(others_folder), what="the end of everything in it")
