"""What every provider must do: the numbered rules of `trainshed.engines.providers.contract`, one by one.

A provider's tests subclass `ProviderRules` and give a fixture ``harness`` that answers a `Harness`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trainshed.engines.providers.contract import (
    ENDED,
    AuthRequired,
    InvalidJob,
    Phase,
    Provider,
    ProviderError,
    ProviderPermanent,
    QuotaExhausted,
    RateLimited,
    RemoteNotFound,
    Run,
    Submission,
    Unavailable,
)

CLASSES = (
    Unavailable,
    RateLimited,
    QuotaExhausted,
    AuthRequired,
    RemoteNotFound,
    InvalidJob,
    ProviderPermanent,
)
SECRET = "conformance-secret-value"
LINES = tuple(f"line {number}" for number in range(30))
OUTPUTS = {"model.bin": b"weights", "logs/day 1.txt": b"text"}


@dataclass(frozen=True)
class Program:
    """What a run is to do, in whatever way a harness has it done."""

    lines: tuple[str, ...] = LINES
    outputs: dict[str, bytes] = field(default_factory=lambda: dict(OUTPUTS))
    code: int = 0
    forever: bool = False
    """Runs until it is cancelled."""


class Harness(ABC):
    """A provider under test, and the world around it."""

    provider: Provider
    loses_answers = True
    """Whether answers can be lost on the way here."""
    cancel_removes = False
    """Whether nothing is known any more of a run that was cancelled."""

    @abstractmethod
    def submission(self, key: str, program: Program) -> Submission:
        """A submission whose run will be ``program``."""

    @abstractmethod
    def reopen(self) -> None:
        """Make ``provider`` anew, as after a restart of the server."""

    @abstractmethod
    def pass_time(self) -> None:
        """Let some time pass: a moment of real time, or a step of the injected clock."""

    @abstractmethod
    def runs(self) -> int:
        """How many runs there ever were at the provider."""

    def lose_answer(self, method: str) -> None:
        """Have the next call do its work and its answer get lost."""
        raise AssertionError(f"{method}: this harness says that it loses answers")

    def written(self) -> str:
        """Everything that is kept of runs where others may read it."""
        return ""

    def until(self, run: Run, done: Callable[[Phase], bool]) -> Phase:
        """Pass time until the run's phase is as wanted."""
        deadline = time.monotonic() + 60
        while True:
            phase = self.provider.status(run).phase
            if done(phase):
                return phase
            if time.monotonic() > deadline:
                raise AssertionError(f"the run is still {phase}")
            self.pass_time()

    def ended(self, run: Run) -> Phase:
        return self.until(run, ENDED.__contains__)

    def lines_of(self, run: Run) -> list[str]:
        """The whole log, read in one go; the runner's own lines left out."""
        found, cursor = [], None
        while True:
            chunk = self.provider.logs(run, cursor)
            found += chunk.lines
            if chunk.finished or chunk.cursor == cursor:
                return [line for line in found if line.startswith("line ")]
            cursor = chunk.cursor


class ProviderRules:
    """The suite."""

    def test_rule_1_a_key_has_one_run_however_often_it_is_submitted(self, harness: Harness):
        submission = harness.submission("gpu-one-1", Program())
        first = harness.provider.submit(submission)
        second = harness.provider.submit(submission)
        harness.reopen()
        third = harness.provider.submit(submission)
        assert first.ref == second.ref == third.ref
        assert harness.runs() == 1
        harness.ended(first)
        assert harness.provider.submit(submission).ref == first.ref, "also after its end"
        assert harness.runs() == 1

    def test_rule_1_a_lost_answer_makes_no_second_run(self, harness: Harness):
        if not harness.loses_answers:
            assert harness.provider.capabilities().lookup_by_key is False, "nothing is lost on the way here"
            return
        submission = harness.submission("gpu-lost-1", Program())
        harness.lose_answer("submit")
        with pytest.raises((Unavailable, RateLimited)):  # rule 2: nothing definite
            harness.provider.submit(submission)
        run = harness.provider.submit(submission)
        assert harness.runs() == 1
        assert harness.ended(run) is Phase.SUCCEEDED

    def test_rule_3_a_run_is_found_by_its_key(self, harness: Harness):
        provider = harness.provider
        if not provider.capabilities().lookup_by_key:
            assert provider.lookup_by_key("gpu-nobody-1") is None
            return
        assert provider.lookup_by_key("gpu-found-1") is None
        run = provider.submit(harness.submission("gpu-found-1", Program()))
        harness.reopen()
        found = harness.provider.lookup_by_key("gpu-found-1")
        assert found is not None
        assert found.ref == run.ref
        assert harness.provider.lookup_by_key("gpu-found-11") is None, "no prefix of a key is a key"

    def test_rule_4_looking_changes_nothing(self, harness: Harness):
        run = harness.provider.submit(harness.submission("gpu-look-1", Program(forever=True)))
        harness.until(run, lambda phase: phase is Phase.RUNNING)
        for _ in range(3):
            harness.provider.status(run)
            harness.provider.logs(run, None)
            harness.provider.quota()
            harness.provider.healthcheck()
        assert harness.runs() == 1
        assert harness.provider.status(run).phase is Phase.RUNNING
        harness.provider.cancel(run)
        if not harness.cancel_removes:
            harness.ended(run)

    def test_rule_5_a_cancel_ends_a_run_and_may_be_repeated(self, harness: Harness):
        run = harness.provider.submit(harness.submission("gpu-stop-1", Program(forever=True)))
        harness.until(run, lambda phase: phase is Phase.RUNNING)
        harness.provider.cancel(run)
        harness.provider.cancel(run)
        if harness.cancel_removes:
            with pytest.raises(RemoteNotFound):
                harness.ended(run)
            return
        assert harness.ended(run) is Phase.CANCELLED
        harness.provider.cancel(run)
        assert harness.provider.status(run).phase is Phase.CANCELLED

    def test_rule_5_a_cancel_of_what_has_ended_changes_nothing(self, harness: Harness):
        run = harness.provider.submit(harness.submission("gpu-late-1", Program()))
        assert harness.ended(run) is Phase.SUCCEEDED
        harness.provider.cancel(run)
        assert harness.provider.status(run).phase is Phase.SUCCEEDED

    def test_exit_codes_are_the_programs_own(self, harness: Harness):
        run = harness.provider.submit(harness.submission("gpu-code-1", Program(code=3)))
        assert harness.ended(run) is Phase.FAILED
        assert harness.provider.status(run).exit_code in {3, None}

    def test_rule_6_a_cursor_yields_each_line_once_across_restarts(self, harness: Harness):
        run = harness.provider.submit(harness.submission("gpu-logs-1", Program()))
        found: list[str] = []
        cursor, finished = None, False
        deadline = time.monotonic() + 60
        while not finished:
            assert time.monotonic() < deadline, "the log does not end"
            chunk = harness.provider.logs(run, cursor)
            found += [line for line in chunk.lines if line.startswith("line ")]
            cursor, finished = chunk.cursor, chunk.finished
            harness.reopen()
            harness.pass_time()
        assert tuple(found) == LINES
        assert harness.provider.logs(run, cursor).lines == ()
        assert tuple(harness.lines_of(run)) == LINES, "from the begin it is there still"

    def test_rule_7_outputs_are_fetched_as_often_as_wanted_and_nothing_else_is_touched(
        self, harness: Harness, tmp_path: Path
    ):
        run = harness.provider.submit(harness.submission("gpu-fetch-1", Program()))
        harness.ended(run)
        into = tmp_path / "fetched"
        (into / "outputs").mkdir(parents=True)
        (into / "outputs" / "mine.txt").write_text("mine")
        for _ in range(2):
            fetched = harness.provider.fetch(run, into)
            assert fetched.files >= len(OUTPUTS)
        top = into / "outputs"
        there = {p.relative_to(top).as_posix(): p.read_bytes() for p in top.rglob("*") if p.is_file()}
        assert there == {**OUTPUTS, "mine.txt": b"mine"}
        assert not [p for p in into.rglob("*") if p.is_symlink()]

    def test_rule_8_an_unknown_run_is_not_found_and_says_no_secret(self, harness: Harness):
        with pytest.raises(ProviderError) as caught:
            harness.provider.status(Run("gpu_nobody_9"))
        assert isinstance(caught.value, CLASSES)
        assert SECRET not in caught.value.message

    def test_rule_8_a_secret_appears_nowhere(self, harness: Harness):
        run = harness.provider.submit(harness.submission("gpu-hide-1", Program()))
        harness.ended(run)
        assert SECRET not in run.ref + (run.url or "")
        assert SECRET not in "\n".join(harness.lines_of(run))
        assert SECRET not in harness.written()

    def test_rule_9_nothing_is_remembered_but_by_the_provider(self, harness: Harness):
        run = harness.provider.submit(harness.submission("gpu-new-1", Program()))
        ended = harness.ended(run)
        harness.reopen()
        assert harness.provider.status(run).phase is ended

    def test_a_dataset_is_found_again_by_its_digest(self, harness: Harness, tmp_path: Path):
        if not harness.provider.capabilities().data:
            assert harness.provider.capabilities().data is False
            return
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "x").write_text("1")
        first = harness.provider.stage_data("a" * 64, tmp_path / "set", single_file=None)
        harness.reopen()
        assert harness.provider.stage_data("a" * 64, tmp_path / "set", single_file=None) == first

    def test_a_run_that_ended_is_released_and_that_may_be_repeated(self, harness: Harness):
        run = harness.provider.submit(harness.submission("gpu-gone-1", Program()))
        harness.ended(run)
        deadline = time.monotonic() + 30
        while not harness.provider.release(run):
            assert time.monotonic() < deadline
            harness.pass_time()
        assert harness.provider.release(run)


def bundle(place: Path, code: dict[str, bytes], manifest: bytes) -> Path:
    """A folder as providers are given it."""
    for name, data in {
        **{f"code/{path}": data for path, data in code.items()},
        "manifest.json": manifest,
    }.items():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return place


__all__ = ["CLASSES", "LINES", "OUTPUTS", "SECRET", "Harness", "Program", "ProviderRules", "bundle"]
