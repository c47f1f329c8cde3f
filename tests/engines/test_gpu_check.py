"""``scripts/gpu-check`` itself: what can be proved of it without a GPU."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import trainshed

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = Path(trainshed.__file__).parent.parent


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"gpu_check.{name}")

    return load


def wheel(folder: Path, name: str, content: str) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr(name.split("-", maxsplit=1)[0] + ".py", content)


def test_the_wheels_that_fit_this_python_are_unpacked(part, tmp_path: Path, monkeypatch) -> None:
    wheels = part("wheels")
    folder, target = tmp_path / "wheels", tmp_path / "code"
    wheel(folder, "trainshed-0.1.0-py3-none-any.whl", "ours")
    wheel(folder, "fast-1-cp311-cp311-manylinux_2_17_x86_64.whl", "for 3.11")
    wheel(folder, "fast-1-cp312-cp312-manylinux_2_17_x86_64.whl", "for 3.12")
    wheel(folder, "stable-1-cp36-abi3-manylinux_2_17_x86_64.whl", "for all")
    wheel(folder, "stable-1-cp314-abi3-manylinux_2_17_x86_64.whl", "for later ones")
    monkeypatch.setattr(wheels.sys, "version_info", SimpleNamespace(minor=12))
    used = wheels.unpack(folder, target)
    assert len(used) == 3
    assert {path.name: path.read_text() for path in target.iterdir()} == {
        "trainshed.py": "ours",
        "fast.py": "for 3.12",
        "stable.py": "for all",
    }


def test_a_folder_without_our_wheel_is_refused(part, tmp_path: Path) -> None:
    wheels = part("wheels")
    with pytest.raises(wheels.WheelError, match="--prepare"):
        wheels.unpack(tmp_path, tmp_path / "code")


def test_a_rehearsal_on_one_simulated_gpu_drives_the_real_server(part, tmp_path: Path) -> None:
    checks, platform, main = part("checks"), part("platform"), part("main")
    with platform.running(CODE, tmp_path, "H100:1") as server:
        context = checks.Context(server, main.simulated_inventory("H100:1"), simulated=True)
        assert "one visible device" in checks.cuda_trial(context)
        assert "the second waited" in checks.two_trials(context)
        assert "no process left" in checks.killed_program(context)


def test_a_check_that_sees_something_else_fails(part) -> None:
    checks = part("checks")
    with pytest.raises(checks.CheckError, match="seen instead"):
        checks.expect(condition=False, otherwise="seen instead")


def test_without_a_gpu_it_says_so(part, tmp_path: Path, monkeypatch, capsys) -> None:
    main, platform = part("main"), part("platform")
    monkeypatch.setattr(main.wheels, "unpack", lambda *_: [])
    monkeypatch.setattr(
        main, "running", lambda *_: platform.contextlib.nullcontext(SimpleNamespace(inventory=list))
    )
    monkeypatch.setattr(sys, "argv", ["gpu-check", "--wheels", str(tmp_path)])
    assert main.main() == main.UNUSABLE
    assert "NVML finds no GPU" in capsys.readouterr().err
