"""The GPU inventory: real ones through NVML, simulated ones by configuration, and what programs are told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from engines.conformance import SETTLED, written
from engines.machinery import LocalHarness
from trainshed.engines import EngineError
from trainshed.engines.local import gpus
from trainshed.engines.local.environment import program_environment
from trainshed.model.resources import Gpu


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA H100 NVL", "H100"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_requests_name_a_gpu_by_its_short_model(product: str, model: str) -> None:
    assert gpus.model_name(product) == model


def test_simulated_gpus_are_labelled_and_numbered() -> None:
    made = gpus.simulated({"H100": 2, "A10": 1})
    assert [(gpu.index, gpu.model, gpu.simulated) for gpu in made] == [
        (0, "H100", True),
        (1, "H100", True),
        (2, "A10", True),
    ]
    assert made == gpus.simulated(["H100:2", "A10:1"])
    assert all(gpu.uuid.startswith("SIMULATED-") for gpu in made)


@pytest.mark.parametrize(
    "spec", [["H100:0"], ["H100:-1"], ["H100:many"], [":2"], {"H100": 0}, ["foo"], ["H100:2", "H100:3"]]
)
def test_nonsense_is_no_simulated_gpu(spec: object) -> None:
    with pytest.raises(ValueError, match="MODEL:COUNT"):
        gpus.simulated(spec)


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert gpus.inventory() == ()
    assert gpus.metrics() == ()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """An NVML with two GPUs, the second of which fell off the bus, and without power readings."""

    def unsupported(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def handle(index: int) -> int:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: handle(int(uuid[-1])),
        "nvmlDeviceGetMinorNumber": lambda index: index + 3,
        "nvmlDeviceGetName": lambda _: "NVIDIA H200",
        "nvmlDeviceGetUUID": lambda _: "GPU-1",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=144_384 << 20, used=1 << 30),
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=37),
        "nvmlDeviceGetPowerUsage": unsupported,
        "nvmlDeviceGetTemperature": lambda *_: 41,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=7)],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


def test_a_lost_gpu_is_not_offered(driver: None) -> None:
    assert gpus.inventory() == (Gpu(0, "H200", "GPU-1", 144_384),)


def test_metrics_leave_out_what_the_driver_does_not_report(driver: None) -> None:
    (seen,) = gpus.metrics()
    assert (seen.utilisation, seen.memory_used_mb, seen.power_watts, seen.temperature_c, seen.pids) == (
        0.37,
        1024,
        None,
        41.0,
        (7,),
    )


def test_a_sandbox_gets_the_device_files_of_its_gpus_alone(driver: None) -> None:
    own, *shared = gpus.device_files([Gpu(7, "H200", "GPU-0", 144_384)])
    assert own == "/dev/nvidia3"  # by the driver's number, not by the index
    assert not [path for path in shared if path[-1].isdigit()]
    assert gpus.device_files(gpus.simulated({"H100": 3})) == []
    assert gpus.device_files(()) == []


def test_a_lost_gpu_cannot_be_handed_to_a_sandbox(driver: None) -> None:
    with pytest.raises(EngineError, match="does not answer") as refusal:
        gpus.device_files([Gpu(1, "H200", "GPU-1", 144_384)])
    assert refusal.value.retryable


REAL = (Gpu(2, "H200", "GPU-2", 144_384), Gpu(5, "H200", "GPU-5", 144_384))
SIMULATED = gpus.simulated({"H100": 3})[1:]


@pytest.mark.parametrize(
    ("assigned", "real_present", "isolated", "visible", "ours"),
    [
        (REAL, True, False, "2,5", "2,5"),
        (REAL, True, True, "GPU-2,GPU-5", "2,5"),
        ((), True, False, "", ""),
        ((), False, True, "", ""),
        (SIMULATED, False, False, "1,2", "1,2"),
        (SIMULATED, False, True, "1,2", "1,2"),
        (SIMULATED, True, True, "", "1,2"),
    ],
)
def test_a_program_sees_the_gpus_it_was_given_and_no_others(
    assigned: tuple[Gpu, ...], *, real_present: bool, isolated: bool, visible: str, ours: str
) -> None:
    env = program_environment(
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"},
        assigned,
        attempt_id="a1",
        instance="i1",
        real_gpus_present=real_present,
        isolated=isolated,
    )
    assert (env["CUDA_VISIBLE_DEVICES"], env["TRAINSHED_GPUS"]) == (visible, ours)
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env.get("TRAINSHED_GPU_MODEL") == (assigned[0].model if assigned else None)
    assert env.get("TRAINSHED_GPUS_SIMULATED") == ("1" if assigned and assigned[0].simulated else None)


def test_simulated_gpus_reach_a_real_program(tmp_path: Path) -> None:
    harness = LocalHarness(tmp_path, simulate_gpus=["H100:8"])
    (node,) = harness.engine.nodes()
    script = "echo $TRAINSHED_GPUS $TRAINSHED_GPU_MODEL $TRAINSHED_GPUS_SIMULATED"
    harness.engine.launch(harness.shell("attempt-1", script, gpus=node.gpus[2:4]))
    harness.until("attempt-1", SETTLED)
    assert written(harness.engine.logs("attempt-1").frames) == b"2,3 H100 1\n"
    harness.close()
