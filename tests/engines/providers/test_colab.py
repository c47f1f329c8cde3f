"""Colab's provider against a simulated command line: the contract's rules, and its traps.

None of this was tried against Colab itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.providers.conformance import Program, ProviderRules
from engines.providers.remote import LOGIN_WORD, RemoteHarness, RemoteRules
from support.colab_sim import Colab
from support.waiting import wait_until
from trainshed.engines.providers.colab import ColabProvider
from trainshed.engines.providers.colab.command import Command
from trainshed.engines.providers.contract import (
    AuthRequired,
    GpuOffer,
    InvalidJob,
    Phase,
    RateLimited,
    RemoteNotFound,
    Unavailable,
)


class ColabHarness(RemoteHarness):
    provider: ColabProvider

    def __init__(self, there: Colab, folder: Path) -> None:
        self.there = there
        super().__init__(folder)

    def reopen(self) -> None:
        place = self.folder / "kept"
        place.mkdir(exist_ok=True)
        command = Command(self.there.program, place / "sessions.json", self.deadline)
        self.provider = ColabProvider(command, place, time.time, pause=lambda _seconds: None)

    def pass_time(self) -> None:
        """Each look starts a process, which takes long enough."""

    def runs(self) -> int:
        with self.there.state() as state:
            return len(state["cells"])

    def lose_answer(self, method: str) -> None:
        assert method == "submit"
        self.there.fault("download", "[colab] Download failed: 502 Server Error")

    def written(self) -> str:
        tops = [self.folder / "kept", *(self.there.root / "machines").glob("*/content")]
        files = [path for top in tops for path in top.rglob("*") if path.is_file()]
        with self.there.state() as state:
            calls = str(state["calls"])
        return calls + "\n".join(path.read_bytes().decode("utf-8", "replace") for path in files)

    def refuse(self) -> None:
        self.there.fault("new", "[colab] Backend rejected accelerator 'T4'. You may not have quota")

    def slow_down(self, seconds: float | None) -> None:
        self.there.slow_down(seconds)

    def go_down(self) -> None:
        said = f"[colab] Error: 502 for url https://x/?colab-runtime-proxy-token={LOGIN_WORD}"
        self.there.fault("*", said)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ColabHarness]:
    there = Colab(tmp_path / "colab")
    there.install()
    yield ColabHarness(there, tmp_path)
    there.close()


class TestColab(ProviderRules, RemoteRules):
    """All rules."""


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("[colab] Allocation refused (precondition failed).", RateLimited),
        ("[colab] Backend rejected accelerator 'T4'.", InvalidJob),
        ("No valid default credentials found. To authenticate, run:", AuthRequired),
        ("Traceback (most recent call last): boom", Unavailable),
    ],
)
def test_a_session_that_is_not_given_is_an_error_of_one_kind(harness, said, kind):
    harness.there.fault("new", said)
    with pytest.raises(kind):
        harness.provider.submit(harness.submission("gpu-no-1", Program()))
    assert harness.runs() == 0


def test_G52_a_gpu_that_is_not_known_never_becomes_another(harness):
    wanted = harness.packed("gpu-odd-1", {"train.py": ""}, gpu=GpuOffer("T400", 4.0))
    with pytest.raises(InvalidJob, match="T400"):
        harness.provider.submit(wanted)
    with harness.there.state() as state:
        assert state["calls"] == [], "it would have been an A100"


def test_a_run_is_asked_to_save_and_what_it_saved_is_fetched_while_it_runs(harness, tmp_path):
    save = (
        "import gpu, pathlib, time\n"
        "while not gpu.checkpoint_requested(): time.sleep(0.05)\n"
        "with gpu.atomic_checkpoint('step') as place: pathlib.Path(place).write_text('1')\n"
        "while True: time.sleep(0.05)\n"
    )
    run = harness.provider.submit(harness.packed("gpu-ask-1", {"train.py": save}))
    harness.until(run, lambda phase: phase is Phase.RUNNING)
    assert harness.provider.request_checkpoint(run)
    into = tmp_path / "into"

    def brought() -> bool:
        harness.provider.fetch(run, into)
        return (into / "checkpoints" / "latest").exists()

    wait_until(brought, 60, "a checkpoint")
    assert (into / "checkpoints" / "1" / "files" / "step").read_text() == "1"
    assert harness.provider.status(run).gpu == "T4"
    harness.there.lose(run.ref)
    with pytest.raises(RemoteNotFound):
        harness.provider.status(run)
    with pytest.raises(RemoteNotFound):
        harness.provider.logs(run, None)


def test_every_cell_says_how_long_it_is_waited_for(harness):
    run = harness.provider.submit(harness.submission("gpu-time-1", Program()))
    harness.ended(run)
    with harness.there.state() as state:
        cells = [call for call in state["calls"] if call[0] == "exec"]
    assert [call[call.index("--timeout") + 1] for call in cells] == ["15"]


def test_data_is_refused_with_the_reason(harness, tmp_path):
    assert harness.provider.capabilities().data is False
    with pytest.raises(InvalidJob, match="no datasets"):
        harness.provider.stage_data("a" * 64, tmp_path, single_file=None)


def test_what_is_missing_is_said(harness, tmp_path):
    nowhere = ColabProvider(Command(str(tmp_path / "none"), tmp_path / "s"), tmp_path, time.time)
    health = nowhere.healthcheck()
    assert (health.code, "google-colab-cli" in health.hint) == ("not_installed", True)
    harness.there.fault("sessions", "google.auth.exceptions.RefreshError: Reauthentication is needed.")
    assert harness.provider.healthcheck().code == "auth_required"
    assert harness.provider.healthcheck().ok
    assert harness.provider.quota().limit == 12.5
