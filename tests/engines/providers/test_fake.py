"""The provider in memory keeps to the rules, and does what its course says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.providers.conformance import SECRET, Harness, Program, ProviderRules, bundle
from trainshed.engines.providers.contract import Run, Submission
from trainshed.engines.providers.fake import Course, FakeProvider, RemoteWorld, Save


class FakeHarness(Harness):
    """Virtual time, a minute a step."""

    def __init__(self, root: Path) -> None:
        self.world = RemoteWorld()
        self.at = 1_000_000.0
        self._root = root
        self.reopen()

    def reopen(self) -> None:
        self.provider = FakeProvider("fake", self.world, lambda: self.at)

    def submission(self, key: str, program: Program) -> Submission:
        folder = bundle(self._root / key, {"train.py": b""}, b"{}")
        self.world.courses[key] = Course(
            start_after=1.0,
            run_seconds=None if program.forever else 60.0,
            code=program.code,
            lines=tuple((float(number), line) for number, line in enumerate(program.lines, 1)),
            outputs=program.outputs,
        )
        return Submission(key, "name", folder, lambda: folder, {}, {"TOKEN": SECRET}, None, None)

    def pass_time(self) -> None:
        self.at += 7.0

    def runs(self) -> int:
        return len(self.world.runs)

    def lose_answer(self, method: str) -> None:
        self.world.lost_answers[method] = 1


@pytest.fixture
def harness(tmp_path: Path) -> FakeHarness:
    return FakeHarness(tmp_path)


class TestFake(ProviderRules):
    """See `engines.providers.conformance`."""


def test_a_run_saves_when_it_is_asked_to_and_its_store_is_the_runners(harness, tmp_path):
    submission = harness.submission("gpu-save-1", Program(forever=True))
    harness.world.courses["gpu-save-1"] = Course(run_seconds=None, answers_after=5.0, saves=(Save(2.0, 4),))
    run = harness.provider.submit(submission)
    harness.at += 10.0
    assert harness.provider.request_checkpoint(run)
    harness.at += 6.0
    harness.provider.fetch(run, tmp_path / "into")
    store = tmp_path / "into" / "checkpoints"
    assert json.loads((store / "latest").read_text())["n"] == 2
    assert [json.loads((store / n / "manifest.json").read_text())["step"] for n in "12"] == [4, 5]


def test_a_run_that_hears_nothing_cannot_be_asked(harness):
    run = harness.provider.submit(harness.submission("gpu-deaf-1", Program(forever=True)))
    assert harness.provider.request_checkpoint(run) is False
    assert harness.provider.lookup_by_key("gpu-deaf-1") == Run(
        "gpu-deaf-1", "https://fake.example/gpu-deaf-1"
    )
