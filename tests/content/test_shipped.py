"""The Runners that come with Trainshed: publishable, repeatable, and doing what they say."""

from __future__ import annotations

import csv
import io
import json
import os
import runpy
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from trainshed.content.runner_revision import verify_revision
from trainshed.content.shipped import SHIPPED_RUNNERS, publish_shipped, shipped_repository, shipped_runner
from trainshed.model.runner import param_variable
from trainshed.sdk.runner_tree import freeze


@pytest.mark.parametrize("name", SHIPPED_RUNNERS)
def test_E8_a_shipped_runner_has_one_commit_id_with_git_and_without(name, store, tmp_path):
    ours = publish_shipped(name, store)
    assert shipped_repository(name, tmp_path / "one") == ours.commit
    assert shipped_repository(name, tmp_path / "two") == ours.commit
    frozen = freeze(tmp_path / "one", "main")
    assert verify_revision(frozen.publication(), store) == ours
    assert ours.definition.name == name
    assert ours.notes == ()


def test_the_commit_id_does_not_depend_on_the_users_git_or_umask(tmp_path, monkeypatch, store):
    (tmp_path / ".gitconfig").write_text(
        "[core]\nautocrlf = true\n[commit]\ngpgsign = true\n[user]\nname = Other\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Other")
    before = os.umask(0)
    try:
        commit = shipped_repository("envloop/bash", tmp_path / "repository")
    finally:
        os.umask(before)
    assert commit == publish_shipped("envloop/bash", store).commit


def test_byte_code_that_an_installer_left_is_not_published(store, tmp_path, monkeypatch):
    copy = tmp_path / "digits"
    copy.mkdir()
    for source in shipped_runner("examples/digits").iterdir():
        if source.is_file():
            (copy / source.name).write_bytes(source.read_bytes())
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"x")
    monkeypatch.setattr("trainshed.content.shipped.shipped_runner", lambda _: copy)
    paths = [file.path for file in publish_shipped("examples/digits", store).files]
    assert paths == ["digits.csv", "main.py", "make_data.py", "runner.toml"]


def run(name: str, work: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """As a Trial does it: the files in a fresh directory, the declared variables, nothing else."""
    work.mkdir()
    for source in shipped_runner(name).iterdir():
        if source.is_file():
            (work / source.name).write_bytes(source.read_bytes())
    command = ["bash", "main.sh"] if (work / "main.sh").exists() else [sys.executable, "main.py"]
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, check=False, timeout=120)


def test_E54_the_bash_runner_without_a_command_tells_what_the_trial_got(tmp_path):
    variables = {"TRAINSHED_TRIAL_NAME": "a", "TRAINSHED_GPUS": "0,1", "TRAINSHED_GPU_MODEL": "H100"}
    done = run("envloop/bash", tmp_path / "w", TRAINSHED_GPUS_SIMULATED="1", **variables)
    assert done.returncode == 0
    assert done.stderr == b""
    assert "H100" in done.stdout.decode()
    assert "0,1 (simulated)" in done.stdout.decode()
    assert (tmp_path / "w" / "outputs" / "trial.txt").read_bytes() == done.stdout


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("printf '%s|' \"a  b\" 'c\nd'", 0, b"a  b|c\nd|"),
        ("echo one\necho two; exit 7", 7, b"one\ntwo\n"),
        ("printf '%s' 'ü \\ $HOME `x` \"'", 0, 'ü \\ $HOME `x` "'.encode()),
        (f": {'x' * 65530}\n", 0, b""),
    ],
)
def test_E50_the_bash_runner_runs_the_command_byte_for_byte(tmp_path, command, code, output):
    done = run("envloop/bash", tmp_path / "w", **{param_variable("run_command"): command})
    assert (done.returncode, done.stdout, done.stderr) == (code, output, b"")


def test_the_digits_runner_learns_on_one_core_in_seconds(tmp_path):
    start = time.process_time()
    done = run("examples/digits", tmp_path / "w")
    assert done.returncode == 0, done.stderr
    assert time.process_time() - start < 15
    metrics = json.loads((tmp_path / "w" / "outputs" / "metrics.json").read_text())
    assert metrics["heldout_accuracy"] > 0.95
    assert len(metrics["curve"]) == metrics["epochs"] == 12
    assert metrics["curve"][-1]["loss"] < metrics["curve"][0]["loss"] / 5
    assert done.stdout.decode().count("held-out accuracy") == 12
    weights = json.loads((tmp_path / "w" / "outputs" / "model.json").read_text())
    assert [len(weights["hidden"]), len(weights["output"])] == [32, 10]


def test_the_digits_runner_honours_its_parameters_and_repeats_itself(tmp_path):
    results = []
    for number, seed in enumerate(("3", "3", "4")):
        parameters = {param_variable("epochs"): "1", param_variable("seed"): seed}
        assert run("examples/digits", tmp_path / f"w{number}", **parameters).returncode == 0
        results.append((tmp_path / f"w{number}" / "outputs" / "model.json").read_bytes())
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("epochs", ["0", "-1", "1.5", "many", ""])
def test_a_parameter_that_makes_no_sense_ends_the_digits_runner_with_a_sentence(tmp_path, epochs):
    done = run("examples/digits", tmp_path / "w", **{param_variable("epochs"): epochs})
    assert done.returncode == 1
    assert b"epochs must be a whole number" in done.stderr
    assert b"Traceback" not in done.stderr


def test_the_digits_are_made_by_the_program_beside_them():
    folder = shipped_runner("examples/digits")
    with redirect_stdout(io.StringIO()):
        made = runpy.run_path(str(folder / "make_data.py"))["rows"]()
    text = (folder / "digits.csv").read_text()
    assert "\n".join(made) + "\n" == text
    assert len(text) < 300_000
    rows = list(csv.DictReader(text.splitlines()))
    held_out = {row["pixels"] for row in rows if row["split"] == "heldout"}
    assert len(rows) == 3000
    assert held_out.isdisjoint(row["pixels"] for row in rows if row["split"] == "train")
