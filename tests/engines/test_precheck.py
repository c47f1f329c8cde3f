"""The check before training (C31, C32), and training itself, with a real PyTorch on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import LIMITS, SETTLED, written
from engines.gangs import codes, gang, report, settled
from engines.machinery import LocalHarness
from support.torch import torch_path
from support.waiting import wait_until
from trainshed.engines import EndedBy, Launch, Observation, Precheck
from trainshed.engines.local.gpus import simulated
from trainshed.jobkit import frames

ROOMY = replace(LIMITS, memory_mb=4096)
LONG = 240.0


def checked(local: LocalHarness, texts: Sequence[str], precheck: Precheck, *, path: str) -> list[Launch]:
    """A gang of members with a simulated GPU each and a check."""
    gpus = simulated(["H100:8"])
    return [
        replace(
            each,
            env={"OMP_NUM_THREADS": "1", **each.env, "PATH": path},
            gpus=(gpus[number],),
            limits=ROOMY,
            timeout_seconds=600,
            precheck=precheck,
        )
        for number, each in enumerate(gang(local, texts))
    ]


def ends(local: LocalHarness, launches: Sequence[Launch]) -> list[Observation]:
    """The same as `settled`, for what takes PyTorch's time."""

    def over() -> list[Observation] | None:
        seen = list(local.engine.observe([each.attempt_id for each in launches]).values())
        return seen if {each.phase for each in seen} <= SETTLED else None

    return wait_until(over, timeout=LONG)


def log(local: LocalHarness, launch: Launch) -> str:
    file = local.engine.logs(launch.attempt_id).frames
    return (written(file) + written(file, frames.STDERR)).decode()


@pytest.mark.timeout(300)
def test_C31_user_code_starts_after_all_passed_and_the_numbers_are_told(local: LocalHarness) -> None:
    check = Precheck({"ONLY_IN_THE_CHECK": "1"}, timeout_seconds=LONG)
    launches = checked(local, ['echo "began ${ONLY_IN_THE_CHECK-not here}"'] * 2, check, path=torch_path())
    local.engine.launch_many(launches)
    wait_until(
        lambda: local.observe(launches[0].attempt_id).stage == "prechecking", what="the check", timeout=LONG
    )
    ended = ends(local, launches)
    assert [each.exit.code for each in ended] == [0, 0], [log(local, each) for each in launches]
    for number, each in enumerate(launches):
        assert log(local, each).endswith("began not here\n")
        assert codes(local, each.attempt_id) == ["READY", "PRECHECK_STARTED", "PRECHECK_PASSED"]
        passed = report(local, each.attempt_id, "PRECHECK_PASSED")
        assert "simulated" in passed.message
        assert passed.data["backend"] == "gloo"
        assert passed.data["slowest_rank"] in {0, 1}
        [gpu] = passed.data["gpus"]
        assert (gpu["gpu"], gpu["rank"]) == (number, number)
        assert gpu["tflops"] > 0
        assert gpu["bus_gbps"] > 0
    latest = max(report(local, each.attempt_id, "PRECHECK_PASSED").at for each in launches)
    assert min(each.started_at for each in ended) >= latest


@pytest.mark.timeout(300)
def test_C31_too_slow_a_gpu_fails_the_check_and_user_code_never_runs(local: LocalHarness) -> None:
    check = Precheck({}, {"min_tflops": 1e9}, timeout_seconds=LONG)
    launches = checked(local, ["true"] * 2, check, path=torch_path())
    local.engine.launch_many(launches)
    ended = ends(local, launches)
    assert EndedBy.PRECHECK in {each.exit.ended_by for each in ended} <= {EndedBy.PRECHECK, EndedBy.GANG}
    assert [local.starts(each.attempt_id) for each in launches] == [0, 0]
    for rank, each in enumerate(ended):
        assert each.exit.code is None
        if each.exit.ended_by is EndedBy.PRECHECK:
            assert each.exit.detail.startswith(f"PRECHECK_FAILED: replica {rank}, GPU {rank}, GEMM: ")
            assert "but this pool asks for 1e+09" in each.exit.detail
            assert codes(local, launches[rank].attempt_id)[-1] == "PRECHECK_FAILED"


def test_C31_a_python_without_torch_fails_the_check_by_name(local: LocalHarness, tmp_path: Path) -> None:
    launches = checked(local, ["true"] * 2, Precheck({}, timeout_seconds=60), path="/usr/bin:/bin")
    local.engine.launch_many(launches)
    details = [
        each.exit.detail for each in settled(local, launches) if each.exit.ended_by is EndedBy.PRECHECK
    ]
    assert details
    assert "GPU" in details[0]
    assert "torch" in details[0]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "bash").symlink_to("/bin/bash")
    [alone] = checked(local, ["true"], Precheck({}), path=str(empty))
    local.engine.release(launches[0].attempt_id)
    alone = replace(alone, attempt_id="alone", gang=None)
    local.engine.launch(alone)
    detail = local.until("alone", SETTLED).exit.detail
    assert detail == "PRECHECK_FAILED: replica 0, GPU 0, torch: there is no Python on its PATH"


def fake_python(tmp_path: Path, text: str) -> str:
    """A ``PATH`` whose ``python3`` does this instead of the check."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "python3").write_text(f"#!/bin/bash\n{text}\n")
    (place / "python3").chmod(0o755)
    return f"{place}:/usr/bin:/bin"


def test_C31_a_check_that_hangs_ends_at_its_limit(local: LocalHarness, tmp_path: Path) -> None:
    path = fake_python(tmp_path, "echo it hangs >&2; sleep 1000 & sleep 1000")
    launches = checked(local, ["true"] * 2, Precheck({}, timeout_seconds=1.0), path=path)
    local.engine.launch_many(launches)
    ended = settled(local, launches)
    assert any(each.exit.detail.endswith("time: it did not finish within 1 seconds") for each in ended), ended
    assert [local.starts(each.attempt_id) for each in launches] == [0, 0]
    assert "it hangs" in log(local, launches[0])


def test_C32_P9_a_hidden_value_of_the_check_reaches_it_alone_and_no_log(
    local: LocalHarness, tmp_path: Path
) -> None:
    path = fake_python(
        tmp_path, 'echo "token $TOKEN ${#TOKEN}" >&2; [ ${#TOKEN} = 16 ] || exit 0; sleep 1000'
    )
    check = Precheck({"TOKEN": "other"}, timeout_seconds=1.0, secrets={"TOKEN": "nobody-sees-this"})
    [launch] = checked(local, ["true"], check, path=path)
    local.engine.launch(launch)
    assert "did not finish" in local.until(launch.attempt_id, SETTLED).exit.detail
    assert log(local, launch) == "token *** 16\n"
    for place in local.folder(launch.attempt_id).rglob("*"):
        if place.is_file():
            assert b"nobody-sees-this" not in place.read_bytes(), place


def test_C31_a_member_that_is_lost_in_the_check_fails_all(local: LocalHarness, tmp_path: Path) -> None:
    path = fake_python(tmp_path, "sleep 1000")
    launches = checked(local, ["true"] * 2, Precheck({}, timeout_seconds=600), path=path)
    local.engine.launch_many(launches)
    for each in launches:
        report(local, each.attempt_id, "PRECHECK_STARTED")
    local.lose(launches[1].attempt_id)
    first = local.until(launches[0].attempt_id, SETTLED).exit
    assert first.ended_by is EndedBy.GANG
    assert "rank 1 vanished before it started" in first.detail
    local.engine.launch(launches[1])
    assert local.until(launches[1].attempt_id, SETTLED).exit.ended_by is EndedBy.GANG
    assert [local.starts(each.attempt_id) for each in launches] == [0, 0]
