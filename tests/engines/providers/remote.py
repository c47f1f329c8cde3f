"""What the suite needs of providers elsewhere, and what they must do besides its rules."""

from __future__ import annotations

import json
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.providers.conformance import SECRET, Harness, Program
from trainshed.control.scripts.bundles import Bundles
from trainshed.engines.providers.contract import (
    LIMITS,
    GpuOffer,
    Phase,
    ProviderError,
    StagedData,
    Submission,
    Unavailable,
)
from trainshed.engines.providers.limits import Deadline
from trainshed.model.scripts.spec import Bundle, ScriptSpec

PATIENCE = 4.0
"""Seconds: a limit of one, and whatever else this machine does just now."""
LOGIN_WORD = "correct-horse-battery-staple"
"""What the login at the provider consists of."""
PROGRAM = """
import json, os, sys, time
for line in json.loads(os.environ["LINES"]):
    print(line)
for name, text in json.loads(os.environ["OUTPUTS"]).items():
    place = os.path.join(os.environ["GPU_OUTPUT_DIR"], name)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    open(place, "w").write(text)
while os.environ.get("FOREVER"):
    time.sleep(0.05)
sys.exit(int(os.environ["CODE"]))
"""


class RemoteHarness(Harness):
    """Runs that really run, in simulated sessions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deadline = Deadline()
        self.reopen()

    def submission(self, key: str, program: Program) -> Submission:
        outputs = {name: data.decode() for name, data in program.outputs.items()}
        env = {"LINES": json.dumps(program.lines), "OUTPUTS": json.dumps(outputs), "CODE": str(program.code)}
        env |= {"FOREVER": "1"} if program.forever else {}
        return self.packed(key, {"train.py": PROGRAM}, env=env, secrets={"TOKEN": SECRET})

    def packed(
        self, key: str, files: Mapping[str, str], env: Mapping[str, str] | None = None, **more: Any
    ) -> Submission:
        """One Attempt of a packed project whose script is ``train.py``."""
        code = self.folder / "code" / key
        for name, text in files.items():
            place = code / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        bundles = Bundles(self.folder / "bundles")
        shipped = Bundle("0" * 64, len(files), sum(map(len, files.values())))
        spec = ScriptSpec(project_dir="/home/ada/p", bundle=shipped, name="train", script="train.py")
        number = key.rpartition("-")[2]
        base = {"TRAINSHED_JOB_ID": "abc", "TRAINSHED_ATTEMPT": number, "TRAINSHED_PROTOCOL": "1"}
        values: dict[str, Any] = {
            "name": "train",
            "env": {**base, **(env or {})},
            "secrets": {},
            "gpu": GpuOffer("T4", 16.0),
            "timeout_seconds": 40_000.0,
            "attempt_id": "att_" + key.replace("-", "_"),
            **more,
        }
        place = bundles.make(key, spec, code)
        return Submission(key=key, bundle=place, archive=bundles.archive(key), **values)

    @abstractmethod
    def refuse(self) -> None:
        """Have the provider refuse runs for good."""

    @abstractmethod
    def slow_down(self, seconds: float | None) -> None:
        """Have the provider take so long for each request; ``None``: for ever."""

    @abstractmethod
    def go_down(self) -> None:
        """Have the provider fail at everything, and say `LOGIN_WORD` as it does."""


class RemoteRules:
    """Besides `ProviderRules`."""

    def test_rule_2_what_is_refused_for_good_was_not_begun(self, harness: RemoteHarness):
        harness.refuse()
        with pytest.raises(ProviderError):
            harness.provider.submit(harness.submission("gpu-refused-1", Program()))
        assert harness.runs() == 0
        assert harness.provider.lookup_by_key("gpu-refused-1") is None

    def test_rule_8_no_error_holds_a_credential(self, harness: RemoteHarness, tmp_path: Path):
        run = harness.provider.submit(harness.submission("gpu-down-1", Program()))
        harness.ended(run)
        harness.go_down()
        calls = [
            lambda: harness.provider.status(run),
            lambda: harness.provider.logs(run, None),
            lambda: harness.provider.fetch(run, tmp_path / "down"),
            lambda: harness.provider.cancel(run),
            lambda: harness.provider.lookup_by_key("gpu-down-1"),
            lambda: harness.provider.submit(harness.submission("gpu-down-2", Program())),
        ]
        for call in calls:
            with pytest.raises(ProviderError) as caught:
                call()
            assert LOGIN_WORD not in caught.value.message
        health = harness.provider.healthcheck()
        assert not health.ok
        assert LOGIN_WORD not in health.message + health.hint

    @pytest.mark.parametrize("seconds", [None, 0.25])
    def test_rule_10_every_call_ends_within_its_limit_whoever_is_slow(
        self, harness: RemoteHarness, tmp_path: Path, seconds: float | None
    ):
        run = harness.provider.submit(harness.submission("gpu-slow-1", Program()))
        harness.ended(run)
        submission = harness.submission("gpu-slow-2", Program())
        submission.archive()
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "x").write_text("1")
        harness.deadline = Deadline(dict.fromkeys(LIMITS, 1.0))
        harness.reopen()
        harness.slow_down(seconds)
        provider = harness.provider
        calls: dict[str, Callable[[], object]] = {
            "submit": lambda: provider.submit(submission),
            "status": lambda: provider.status(run),
            "logs": lambda: provider.logs(run, None),
            "cancel": lambda: provider.cancel(run),
            "quota": provider.quota,
            "healthcheck": provider.healthcheck,
            "lookup_by_key": lambda: provider.lookup_by_key("gpu-slow-1"),
            "fetch": lambda: provider.fetch(run, tmp_path / "into"),
            "stage_data": lambda: provider.stage_data("c" * 64, tmp_path / "set", single_file=None),
        }
        assert set(calls) == set(LIMITS)
        if not provider.capabilities().data:
            del calls["stage_data"]
        cut = set()
        for name, call in calls.items():
            begun = time.monotonic()
            try:
                call()
            except Unavailable:
                cut.add(name)
            assert time.monotonic() - begun < PATIENCE, name
        assert "submit" in cut, "it makes more requests than there is time for"
        assert seconds is not None or cut >= {"status", "cancel", "fetch", "lookup_by_key"}

    def test_a_runner_that_somebody_kills_is_lost_and_its_program_not_to_blame(self, harness: RemoteHarness):
        script = "import os, time\nprint(f'line {os.getppid()}', flush=True)\ntime.sleep(600)\n"
        run = harness.provider.submit(harness.packed("gpu-killed-1", {"train.py": script}))
        deadline = time.monotonic() + 60
        while not (lines := harness.lines_of(run)):
            assert time.monotonic() < deadline
            harness.pass_time()
        os.kill(int(lines[0].split()[1]), signal.SIGKILL)
        assert harness.ended(run) is Phase.LOST
        assert "signal ended the runner" in harness.provider.status(run).message

    def test_rule_7_no_link_is_followed_where_files_land(self, harness: RemoteHarness, tmp_path: Path):
        run = harness.provider.submit(harness.submission("gpu-link-1", Program()))
        harness.ended(run)
        outside, trap = tmp_path / "outside", tmp_path / "trap"
        outside.mkdir()
        (trap / "outputs").mkdir(parents=True)
        (trap / "outputs" / "logs").symlink_to(outside)
        fetched = harness.provider.fetch(run, trap)
        assert list(outside.iterdir()) == []
        assert fetched.skipped == ("outputs/logs/day 1.txt",)

    def test_G51_G54_data_secrets_and_checkpoints_reach_the_program(
        self, harness: RemoteHarness, tmp_path: Path
    ):
        folder = tmp_path / "set"
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "a.txt").write_text("one")
        reads = (
            "import os, pathlib, gpu\n"
            "print('line', pathlib.Path(os.environ['GPU_DATA_DIR'], 'set', 'sub', 'a.txt').read_text())\n"
            "print('line', (gpu.data_dir() / 'single').read_text())\n"
        )
        show = (
            "import os, gpu\n"
            "print('line', os.environ['MY_SECRET'] == 'not-to-be-seen-\u00fc')\n"
            "print('line', gpu.is_resumed(), (gpu.resume_dir() / 'step').read_text())\n"
        )
        save = (
            "import gpu, pathlib\n"
            "with gpu.atomic_checkpoint('step') as place: pathlib.Path(place).write_text('7')\n"
        )
        first = harness.provider.submit(harness.packed("gpu-data-1", {"train.py": save}))
        assert harness.ended(first) is Phase.SUCCEEDED
        harness.provider.fetch(first, tmp_path / "first")
        stored = max((tmp_path / "first" / "checkpoints").glob("*/manifest.json")).parent
        data: tuple[StagedData, ...] = ()
        if harness.provider.capabilities().data:
            tree = harness.provider.stage_data("c" * 64, folder, single_file=None)
            single = harness.provider.stage_data("d" * 64, folder / "sub", single_file="a.txt")
            data = StagedData("set", tree), StagedData("single", single, "a.txt")
        second = harness.packed(
            "gpu-data-2",
            {"train.py": (reads if data else "") + show},
            secrets={"MY_SECRET": "not-to-be-seen-\u00fc"},
            data=data,
            resume=stored,
        )
        run = harness.provider.submit(second)
        assert harness.ended(run) is Phase.SUCCEEDED
        wanted = ["line one", "line one"] if data else []
        assert harness.lines_of(run) == [*wanted, "line True", "line True 7"]
