"""What a script Job takes along runs under an old Python, whatever else is there (contract G, section f)."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from support.wheels import wheel
from support.work_folders import WorkFolder
from trainshed.jobkit import gpu_files

OLDEST = (3, 8)
SOURCES = gpu_files.files()


@functools.cache
def old_python() -> str | None:
    """An interpreter of the oldest version that we promise, if this machine has one."""
    name = ".".join(map(str, OLDEST))
    kept = sorted(Path.home().glob(f".pyenv/versions/{name}*/bin/python{name}"))
    for program in [shutil.which(f"python{name}"), *map(str, kept)]:
        if program and subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0:
            return program
    return None


@pytest.mark.parametrize("path", SOURCES)
def test_what_is_shipped_is_written_in_the_oldest_python(path):
    assert ast.parse(SOURCES[path].decode(), path, feature_version=OLDEST).body


def test_a_whole_job_runs_under_the_oldest_python(tmp_path):
    """Packages, checkpoints, metrics, and going on from where the Attempt before ended."""
    python = old_python()
    if python is None:
        pytest.skip(f"this machine has no Python {OLDEST}; that it is written in it is tested by its syntax")
    wheel(tmp_path / "links", "tiny_thing")
    work = WorkFolder(tmp_path / "work", python=python).code(
        {
            "requirements.txt": "tiny_thing\n",
            "train.py": "import gpu, sys, tiny_thing\n"
            "gpu.total_steps(4)\n"
            "found = gpu.latest_checkpoint()\n"
            "step = int((found / 'model').read_text()) + 1 if found else 1\n"
            "with gpu.checkpoint(step) as folder: (folder / 'model').write_text(str(step))\n"
            "with gpu.atomic_checkpoint('extra') as path: path.write_text('x')\n"
            "(gpu.checkpoint_dir() / 'extra').unlink()\n"
            "gpu.log(step, loss=0.5)\n"
            "gpu.summary({'step': step})\n"
            "print(step, sys.version_info[:2], tiny_thing.VERSION)\n",
        }
    )
    work.manifest({"script": "train.py"}, {"kind": "requirements", "file": "requirements.txt"})
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "links"), "UV_OFFLINE": "1"}
    for attempt in (1, 2):
        work.attempt = attempt
        done = work.run(TRAINSHED_ENV_CACHE=str(tmp_path / "cache"), **env)
        assert done.code == 0, done.text
        assert done.lines[-1] == f"{attempt} {OLDEST} 1.0"
        assert done.wire("metric")[0]["step"] == attempt
        assert work.record["checkpoint"] == attempt
        shutil.rmtree(work.path / "checkpoints")
    assert (work.path / "outputs" / "summary.json").exists()


def test_what_is_shipped_is_the_same_each_time_and_needs_nothing_of_ours():
    assert list(SOURCES) == sorted(SOURCES)
    assert gpu_files.files() == SOURCES
    assert {gpu_files.MODULE, "gpu_runner/__init__.py", *gpu_files.ENTRY} <= set(SOURCES)
    for path, source in SOURCES.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trainshed"):
                assert node.module == "trainshed.jobkit.gpu_runner" or node.module in {
                    f"trainshed.jobkit.gpu_runner.{Path(name).stem}" for name in SOURCES
                }, path
