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
GETTING_STARTED = README.parent / "docs" / "getting-started.md"
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


def run_as_written(
    script: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """What the commands print; none of them may fail."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n--- stderr\n{done.stderr}"
    return done


def test_the_copy_of_the_digits_and_the_call_over_http_work_as_written(tmp_path, environment):
    page = GETTING_STARTED.read_text()
    digits = re.search(r"^((?: {4}.+\n)+)", page.split("publish a copy of what was installed:\n\n")[1])[1]
    over_http = page.split("### The same over HTTP\n")[1].split("```sh\n")[1].split("```")[0]
    simulated = {**environment, "TRAINSHED_SIMULATE_GPUS": "H100:2"}
    copied, *rest = digits.strip().splitlines()
    shorter = "sed -i '/params.epochs/,+1 s/12/2/' digits/runner.toml"  # the whole training is the demo's
    out = run_as_written("\n".join([copied, shorter, *rest, over_http]), tmp_path, simulated).stdout
    assert out.count("held-out accuracy") == 4
    (job,) = json.loads(out[out.rindex('{"items"') :])["items"]
    assert job["status"] == "completed"


def test_the_tour_works_as_written_and_leaves_nothing(tmp_path, environment):
    done = run_as_written(tour(), tmp_path, environment)
    out = done.stdout
    warned = [
        line for line in done.stderr.splitlines() if "warning" in line.lower() or "does not track" in line
    ]
    assert [line for line in warned if "no volume is mounted" not in line] == [], (
        "the task writes nothing; nothing else is odd"
    )
    assert "hello from trial-1, GPU 0" in out
    assert "tour/first@" in out
    assert "[a] step 5: estimate" in out
    assert "from Python\ncompleted\n" in out
    assert out.rstrip().endswith("Stopped. No Trial was going or waiting.")
    estimate = json.loads((tmp_path / "first-runner/fetched/results/estimate.json").read_text())["estimate"]
    assert 2.5 < estimate < 3.5
    jobs = set(re.findall(r"^job\s+(job_\w+)", out, re.MULTILINE))
    assert len(jobs) == 3, "the same request id is one Job; the third is the task"
    assert "\n0.333\n" in out, "what the packed project wrote came back"
    assert not (tmp_path / "home/server/server.json").exists()
    wait_until(lambda: not processes_of(tmp_path), 60, "every process of the tour to be gone")
