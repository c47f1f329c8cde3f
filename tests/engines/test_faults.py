"""What of a machine broke (C34): made up for simulated GPUs, told by kernel and driver for real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainshed.engines.local import LocalEngine, faults
from trainshed.engines.local.gpus import simulated
from trainshed.model.resources import Gpu

REAL = tuple(Gpu(index, "H100", f"GPU-{index}", 81_920) for index in range(2))


@contextmanager
def engine(root: Path) -> Iterator[LocalEngine]:
    made = LocalEngine(root, simulate_gpus=["H100:4"], node_name="n1")
    try:
        yield made
    finally:
        made.close()


def test_C34_faults_of_simulated_gpus_are_made_up_in_a_file(tmp_path: Path) -> None:
    with engine(tmp_path / "engine") as local:
        assert local.faults() == {}
        hook = tmp_path / "engine" / faults.HOOK
        hook.write_text("gpu:2 XID 79: it fell off the bus.\ngpu:9 no such GPU\nnonsense\n\ngpu:0\n")
        assert local.faults() == {
            "n1/gpu:2": "XID 79: it fell off the bus.",
            "n1/gpu:0": "made up for a test",
        }
        hook.write_text("node The machine burns.\n")
        assert local.faults() == {"n1": "The machine burns."}
        hook.unlink()
        assert local.faults() == {}


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The kernel's messages as a pipe that the test writes to; both real GPUs answer."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    monkeypatch.setattr(faults, "_open_messages", lambda: reader)
    monkeypatch.setattr(faults.gpus, "inventory", lambda: REAL)
    monkeypatch.setattr(faults.gpus, "at_bus", {"0000:3b:00": "GPU-1"}.get)
    monkeypatch.setattr(faults, "_INTERFACES", tmp_path / "net")
    return writer


def xid(number: int, bus: str = "0000:3b:00") -> bytes:
    return f"4,123,456,-;NVRM: Xid (PCI:{bus}): {number}, pid=77, name=python\n".encode()


@pytest.mark.parametrize("number", sorted(faults.XIDS))
def test_C34_errors_of_the_driver_that_break_a_gpu_are_faults(
    messages: int, tmp_path: Path, number: int
) -> None:
    looking = faults.Faults(tmp_path, "n1")
    os.write(messages, xid(13) + xid(number))
    found = looking.found(REAL)
    assert list(found) == ["n1/gpu:1"]
    assert f"XID {number}: {faults.XIDS[number]}" in found["n1/gpu:1"]
    assert looking.found(REAL) == found, "a fault stays until the server is started anew"


def test_C34_errors_of_programs_are_no_faults(messages: int, tmp_path: Path) -> None:
    looking = faults.Faults(tmp_path, "n1")
    os.write(messages, xid(13) + xid(31) + xid(43) + b"6,1,1,-;something else\n")
    assert looking.found(REAL) == {}


def test_C34_a_gpu_that_cannot_be_named_breaks_its_machine(messages: int, tmp_path: Path) -> None:
    looking = faults.Faults(tmp_path, "n1")
    os.write(messages, xid(79, "0000:ff:00"))
    assert "0000:ff:00 reported XID 79" in looking.found(REAL)["n1"]


def test_C34_a_gpu_that_does_not_answer_any_more_is_a_fault(
    messages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del messages
    looking = faults.Faults(tmp_path, "n1")
    assert looking.found(REAL) == {}
    monkeypatch.setattr(faults.gpus, "inventory", lambda: REAL[:1])
    assert looking.found(REAL[:1]) == {"n1/gpu:1": "GPU 1 (GPU-1) does not answer any more."}


def test_C34_a_link_that_went_down_is_a_fault_until_it_is_back(
    messages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del messages
    for name, state in (("eth0", "1"), ("eth1", "0"), ("lo", "1")):
        place = tmp_path / "net" / name
        place.mkdir(parents=True)
        (place / "carrier").write_text(f"{state}\n")
        if name != "lo":
            (place / "device").mkdir()
    port = tmp_path / "ib" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    monkeypatch.setattr(faults, "_INFINIBAND", tmp_path / "ib")
    looking = faults.Faults(tmp_path, "n1")
    assert looking.found(REAL) == {}, "what was down before was never used"
    (tmp_path / "net" / "eth0" / "carrier").write_text("0\n")
    (port / "state").write_text("1: DOWN\n")
    assert looking.found(REAL) == {"n1": "The link of eth0 and mlx5_0/1 is down."}
    (tmp_path / "net" / "eth0" / "carrier").write_text("1\n")
    (port / "state").write_text("4: ACTIVE\n")
    assert looking.found(REAL) == {}


def test_C34_simulated_gpus_need_no_driver(tmp_path: Path) -> None:
    assert faults.Faults(tmp_path, "n1").found(simulated(["H100:2"])) == {}
