"""The module `gpu` of script Jobs: in a Job, and anywhere else (contract G, section f)."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainshed.jobkit import gpu_module

PREFIX = b"::gpu:: "
CALLS = [
    "output_dir",
    "data_dir",
    "checkpoint_dir",
    "resume_dir",
    "latest_checkpoint",
    "is_resumed",
    "checkpoint_requested",
    "enabled",
]


def fresh() -> ModuleType:
    """The module as a program of its own would have it."""
    spec = importlib.util.spec_from_file_location("gpu", gpu_module.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module outside a Job, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("GPU_", "TRAINSHED_", "RANK")):
            monkeypatch.delenv(name)
    return fresh()


class Lines:
    """What was printed on standard output by the wire."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self) -> list[dict[str, Any]]:
        lines = self._capfd.readouterr().out.encode().splitlines()
        assert all(line.startswith(PREFIX) for line in lines)
        return [json.loads(line[len(PREFIX) :], parse_constant=pytest.fail) for line in lines]


@pytest.fixture
def said(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Lines:
    """The module is in a Job; what it says."""
    monkeypatch.setenv("TRAINSHED_JOB_ID", "a1b2c3d4e5f6")
    monkeypatch.setenv("TRAINSHED_PROTOCOL", "1")
    return Lines(capfd)


def test_outside_a_job_every_call_works_with_folders_here_and_says_nothing(gpu, tmp_path, capfd):
    assert gpu.output_dir() == tmp_path / "outputs"
    assert gpu.output_dir().is_dir()
    assert gpu.data_dir() == tmp_path / "data"
    assert gpu.checkpoint_dir() == tmp_path / "checkpoints"
    assert (gpu.resume_dir(), gpu.latest_checkpoint()) == (None, None)
    assert [gpu.is_resumed(), gpu.enabled(), gpu.checkpoint_requested()] == [False] * 3
    gpu.total_steps(10)
    gpu.log(1, loss=0.5)
    gpu.summary({"loss": 0.5})
    with gpu.checkpoint(1) as folder:
        (folder / "model").write_text("1")
    with gpu.atomic_checkpoint("other") as path:
        path.write_text("2")
    assert json.loads((tmp_path / "outputs" / "summary.json").read_text()) == {"loss": 0.5}
    assert sorted(path.name for path in gpu.checkpoint_dir().iterdir()) == ["other", "step-00000001"]
    assert capfd.readouterr() == ("", "")


def test_in_a_job_the_folders_are_the_jobs(gpu, said, tmp_path, monkeypatch):
    for name, value in (("OUTPUT", "o"), ("DATA", "d"), ("CHECKPOINT", "c"), ("RESUME", "r")):
        monkeypatch.setenv(f"GPU_{name}_DIR", str(tmp_path / value))
    (tmp_path / "r").mkdir()
    found = [gpu.output_dir(), gpu.data_dir(), gpu.checkpoint_dir(), gpu.resume_dir()]
    assert found == [tmp_path / name for name in "odcr"]
    assert gpu.enabled()
    assert gpu.is_resumed()


class Tensor:
    def __init__(self, value: object) -> None:
        self._value = value

    def item(self) -> object:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


def test_metrics_are_numbers_of_whatever_kind_and_nothing_else(gpu, said):
    bad = {
        "nan": math.nan,
        "inf": Tensor(-math.inf),
        "text": "1",
        "none": None,
        "list": [1],
        "boom": Tensor(ValueError()),
    }
    gpu.log(Tensor(7), loss=Tensor(0.25), count=3, huge=10**400, **{"a/b": 1, "a b": 1, "n" * 65: 1}, **bad)
    assert said() == [{"t": "metric", "step": 7, "values": {"loss": 0.25, "count": 3, "a/b": 1}}]


def test_a_call_has_thirty_two_metrics(gpu, said):
    gpu.log(**{f"m{n}": n for n in range(40)})
    assert len(said()[0]["values"]) == 32


def test_what_says_nothing_is_not_said(gpu, said):
    gpu.log()
    gpu.log(step="x", loss="y")
    gpu.log(-1)
    gpu.total_steps(0)
    gpu.total_steps(-5)
    gpu.total_steps("many")
    assert said() == []
    gpu.total_steps(Tensor(12))
    assert said() == [{"t": "total", "n": 12}]


def test_of_several_processes_that_train_together_the_first_one_speaks(gpu, said, monkeypatch):
    for rank in ("1", "0", "17"):
        monkeypatch.setenv("RANK", rank)
        gpu.log(int(rank))
    assert [line["step"] for line in said()] == [0]


def test_a_checkpoint_of_a_step_appears_whole_and_says_so(gpu, said):
    with gpu.checkpoint(12) as folder:
        (folder / "model").write_text("x")
        assert gpu.latest_checkpoint() is None
    assert gpu.latest_checkpoint() == gpu.checkpoint_dir() / "step-00000012"
    about = {"where": "script", "name": "step-00000012", "step": 12}
    assert said() == [{"t": "ckpt_begin", **about}, {"t": "ckpt_end", **about, "ok": True}]


def test_old_steps_make_way(gpu):
    for step in (1, 2, 10, 9, 11):
        with gpu.checkpoint(step, keep=2) as folder:
            (folder / "model").write_text("x")
    assert sorted(path.name for path in gpu.checkpoint_dir().iterdir()) == ["step-00000010", "step-00000011"]


def test_an_error_while_saving_a_step_goes_on_and_leaves_nothing(gpu, said):
    with pytest.raises(FileNotFoundError), gpu.checkpoint(3) as folder:
        (folder / "no" / "model").write_text("x")
    assert list(gpu.checkpoint_dir().iterdir()) == []
    assert said()[-1]["ok"] is False


def test_a_step_that_cannot_be_put_in_its_place_does_not_end_the_training(gpu, said, tmp_path, capfd):
    (tmp_path / "checkpoints").write_text("no folder")
    with gpu.checkpoint(3):
        pass
    out, err = capfd.readouterr()
    assert "checkpoint of step 3" in err
    assert '"ok": false' in out


@pytest.mark.parametrize("name", ["", "/abs", "../up", "a/../b", "a//b", "nul\0", ".gpu-tmp/x"])
def test_a_checkpoint_cannot_be_named_out_of_its_folder(gpu, name):
    with pytest.raises(ValueError, match="checkpoint cannot be named"), gpu.atomic_checkpoint(name):
        pytest.fail("there is nothing to save to")


def test_an_atomic_checkpoint_is_a_file_or_a_folder_and_takes_the_place_of_another(gpu):
    for text in ("first", "second"):
        with gpu.atomic_checkpoint("deep/model.pt") as path:
            assert path.parent.parent == gpu.checkpoint_dir() / ".gpu-tmp"
            assert path.name == "model.pt"
            path.write_text(text)
        with gpu.atomic_checkpoint("state") as path:
            path.mkdir()
            (path / text).write_text(text)
    assert (gpu.checkpoint_dir() / "deep" / "model.pt").read_text() == "second"
    assert [path.name for path in (gpu.checkpoint_dir() / "state").iterdir()] == ["second"]
    with gpu.atomic_checkpoint("state") as path:
        path.write_text("a file")
    with gpu.atomic_checkpoint("deep") as path:
        path.mkdir()
    assert (gpu.checkpoint_dir() / "state").read_text() == "a file"
    assert sorted(path.name for path in gpu.checkpoint_dir().iterdir()) == ["deep", "state"]


def test_an_atomic_checkpoint_in_which_nothing_was_saved_is_an_error(gpu, said):
    with pytest.raises(FileNotFoundError, match="nothing was saved"), gpu.atomic_checkpoint("model"):
        pass
    assert [line.get("ok") for line in said()] == [None, False]


def test_an_error_in_an_atomic_checkpoint_keeps_the_one_before(gpu):
    with gpu.atomic_checkpoint("model") as path:
        path.write_text("whole")
    with pytest.raises(ZeroDivisionError), gpu.atomic_checkpoint("model") as path:
        path.write_text("torn" * (1 // 0))
    assert [path.read_text() for path in gpu.checkpoint_dir().iterdir()] == ["whole"]


def test_the_newest_checkpoint_is_by_time_and_only_what_is_finished(gpu, tmp_path, monkeypatch):
    resumed = tmp_path / "resume"
    (resumed / "step-9").mkdir(parents=True)
    (resumed / "step-9" / "model").write_text("9")
    monkeypatch.setenv("GPU_RESUME_DIR", str(resumed))
    assert gpu.latest_checkpoint() == resumed / "step-9"
    for age, name in enumerate(["new", "old", ".hidden", "model.tmp"]):
        path = gpu.checkpoint_dir() / name
        path.write_text("x")
        os.utime(path, (1000 - age, 1000 - age))
    (gpu.checkpoint_dir() / "empty").mkdir()
    assert gpu.latest_checkpoint() == gpu.checkpoint_dir() / "new"


def test_a_checkpoint_is_wanted_from_when_it_was_asked_for_until_this_process_saved(
    gpu, said, tmp_path, monkeypatch
):
    asked = tmp_path / "asked"
    monkeypatch.setenv("TRAINSHED_CHECKPOINT_REQUEST", str(asked))
    assert not gpu.checkpoint_requested()
    asked.touch()
    os.utime(asked, (1000, 1000))
    assert gpu.checkpoint_requested()
    with gpu.checkpoint(1) as folder:
        (folder / "model").write_text("x")
    assert not gpu.checkpoint_requested()
    os.utime(asked, (2**33, 2**33))
    assert gpu.checkpoint_requested()


def test_a_summary_is_json_whatever_is_in_it(gpu):
    gpu.summary({"a": Tensor(1.5), "nan": math.nan, "path": Path("x"), 3: (1, {"b": None}), "t": True})
    found = json.loads((gpu.output_dir() / "summary.json").read_text())
    assert found == {"a": 1.5, "nan": None, "path": "x", "3": [1, {"b": None}], "t": True}
    gpu.summary({"a": 2})
    assert json.loads((gpu.output_dir() / "summary.json").read_text()) == {"a": 2}


def test_no_call_raises_where_nothing_can_be_written(gpu, said, tmp_path, monkeypatch, capfd):
    for name in ("OUTPUT", "DATA", "CHECKPOINT", "RESUME"):
        monkeypatch.setenv(f"GPU_{name}_DIR", "/dev/null/x")
    for name in CALLS:
        getattr(gpu, name)()
    gpu.summary({"a": 1})
    gpu.summary(5)
    assert "the summary could not be written" in capfd.readouterr().err


def test_no_call_raises_in_a_folder_that_is_gone(gpu, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert [getattr(gpu, name)() is not Exception for name in CALLS] == [True] * len(CALLS)
    gpu.summary({"a": 1})


@given(
    st.dictionaries(st.text(max_size=9), st.none() | st.floats() | st.integers() | st.text() | st.binary())
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_whatever_is_logged_is_no_error_and_the_line_is_json(gpu, said, values):
    values.pop("step", None)
    gpu.log(1, **values)
    assert [line["step"] for line in said()] == [1]


def test_what_is_saved_can_be_read_by_whoever_may_read_the_folder(gpu):
    with gpu.checkpoint(1) as folder:
        (folder / "model").write_text("x")
    mode = stat.S_IMODE((gpu.checkpoint_dir() / "step-00000001").stat().st_mode)
    assert mode & 0o500 == 0o500
