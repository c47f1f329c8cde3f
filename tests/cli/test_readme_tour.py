"""Every command of the README's tour, run as written by a person with nothing set up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.leftovers import processes_of
from support.waiting import wait_until

README = Path(__file__).parents[2] / "README.md"
PERSON = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.invalid",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.invalid",
}


def tour() -> str:
    section = README.read_text().split("## Five minutes\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))


@pytest.fixture
def environment(tmp_path):
    """A fresh person: an empty home, our programs on the path, no server yet."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRAINSHED_", "ENVLOOP_"))
    }
    mark = {name: value for name, value in os.environ.items() if name.startswith("TRAINSHED_TEST")}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"HOME": str(tmp_path), "TRAINSHED_HOME": str(tmp_path / "home"), "PATH": programs}
    yield {**kept, **mark, **PERSON, **own}
    subprocess.run(["trainshed", "stop"], env={**kept, **own}, check=True, capture_output=True)


def test_the_tour_works_as_written_and_leaves_nothing(tmp_path, environment):
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", tour()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n--- stderr\n{done.stderr}"
    assert "hello from trial-1, GPU 0" in done.stdout
    assert "tour/first@" in done.stdout
    assert "[a] step 5: estimate" in done.stdout
    assert "from Python\ncompleted\n" in done.stdout
    assert done.stdout.rstrip().endswith("Stopped; running Jobs go on.")
    estimate = json.loads((tmp_path / "first-runner/fetched/results/estimate.json").read_text())["estimate"]
    assert 2.5 < estimate < 3.5
    jobs = set(re.findall(r"^job\s+(job_\w+)", done.stdout, re.MULTILINE))
    assert len(jobs) == 2, "the same request id is one Job"
    assert not (tmp_path / "home/server/server.json").exists()
    wait_until(lambda: not processes_of(tmp_path), 10, "every process of the tour to be gone")
