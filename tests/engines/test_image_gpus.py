"""GPUs in images: a Trial sees those that it was given and no others, and where it cannot, that is said.

No GPU is needed: a specification (CDI) gives each device a file and a variable, as NVIDIA's own do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.containers import ImageGround
from support.docker import running_docker
from trainshed.engines import EngineError
from trainshed.engines.local import ImageSettings, LocalEngine, cdi
from trainshed.engines.local.docker import Docker
from trainshed.engines.local.podman import Podman
from trainshed.jobkit import linux
from trainshed.model.resources import Gpu

GPUS = [Gpu(index=number, model="H100", uuid=f"GPU-{number}", memory_mb=81_920) for number in range(4)]
_DRIVER = """
import json, os, subprocess, sys
from pathlib import Path
from trainshed.engines import EngineError, Launch, Limits, Phase
from trainshed.engines.local import ImageSettings, LocalEngine
from trainshed.model.resources import Gpu
root, image, runtime, cases = Path(sys.argv[1]), *sys.argv[2:4], json.loads(sys.argv[4])
if specification := sys.argv[5]:
    # Nobody else sees what is mounted here.
    place = Path(sys.argv[6])
    for each in ("upper", "work"):
        (place / each).mkdir()
    options = f"lowerdir=/etc,upperdir={place}/upper,workdir={place}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", "/etc"], check=True)
    os.makedirs("/etc/cdi", exist_ok=True)
    for old in Path("/etc/cdi").iterdir():
        old.unlink()
    Path("/etc/cdi/nvidia.yaml").write_text(specification)
engine = LocalEngine(root, images=ImageSettings(runtime=runtime))
engine.prepare(image, lambda sentence: None, lambda: False)
look = "cd /dev; ls -d nvidia[0-9]* 2>/dev/null; echo $NVIDIA_VISIBLE_DEVICES; echo $CUDA_VISIBLE_DEVICES"
look += "; for each in nvidia[0-9]*; do [ -c $each ] && head -c 2 $each | wc -c; done"
look += "; env | grep ^OF_GPU | sort"
found = {}
for name, indices in cases.items():
    gpus = tuple(Gpu(index=n, model="H100", uuid=f"GPU-{n}", memory_mb=81920) for n in indices)
    limits = Limits(cpus=1, memory_mb=256, storage_mb=64, shm_mb=16)
    argv = ("bash", "-c", f"({look}) > seen")
    try:
        engine.launch(Launch(name, argv, {}, (), gpus, limits, 60, image=image))
    except EngineError as error:
        found[name] = [error.code, error.message]
        continue
    while engine.observe([name])[name].phase not in {Phase.EXITED, Phase.LOST}:
        engine.changed(0.1)
    seen = engine.work_directory(name) / "seen"
    found[name] = seen.read_text().split() if seen.exists() else engine.observe([name])[name].detail
for name in cases:
    assert engine.release(name).confirmed
    engine.forget(name)
engine.close()
print(json.dumps(found))
"""
_TOOLKIT = """#!/usr/bin/env python3
# What NVIDIA's runtime does: it adds the devices that a variable of the container names.
import json, os, stat, sys
if "create" in sys.argv and "--bundle" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    names = dict(each.split("=", 1) for each in config["process"]["env"]).get("NVIDIA_VISIBLE_DEVICES", "")
    for name in names.split(",") if names not in ("", "void") else ():
        device = {"path": "/dev/nvidia" + name.removeprefix("GPU-"), "type": "c", "major": 1, "minor": 5}
        config["linux"].setdefault("devices", []).append({**device, "fileMode": 0o666, "uid": 0, "gid": 0})
        config["process"]["env"].append(f"OF_GPU_{name.removeprefix('GPU-')}=yes")
    with open(path, "w") as file:
        json.dump(config, file)
os.execv(REAL, [REAL, *sys.argv[1:]])
"""


def specification(*names: str, kind: str = cdi.KIND, **more: Any) -> str:
    """A specification whose devices are ``/dev/zero`` under other names, as JSON, which is YAML."""
    devices = [
        {
            "name": name,
            "containerEdits": {
                "env": [f"OF_GPU_{name}=yes"],
                "deviceNodes": [{"path": f"/dev/nvidia{name}", "hostPath": "/dev/zero"}],
            },
        }
        for name in names
    ]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices, **more})


def trials(
    ground: ImageGround, cases: Mapping[str, Sequence[int]], given: str = "", place: Path | None = None
) -> Any:
    """What Trials see that were given GPUs of these indices; ``given`` is the only specification then."""
    driver = [sys.executable, "-c", _DRIVER, str(ground.root), ground.image, ground.runtime]
    alone = ["unshare", "--mount", "--propagation=private"] if given else []
    done = subprocess.run(
        [*alone, *driver, json.dumps(cases), given, str(place or "")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def seen(*indices: int, variable: str) -> list[str]:
    """What a Trial says that sees these GPUs and can read from each."""
    devices = [f"nvidia{index}" for index in indices]
    uuids = [",".join(f"GPU-{index}" for index in indices)] if indices else []
    return [
        *devices,
        variable,
        *uuids,
        *["2" for _ in indices],
        *[f"OF_GPU_{index}=yes" for index in indices],
    ]


@contextmanager
def _memory(place: Path) -> Iterator[Path]:
    """A file system in memory: an overlay cannot lie on another."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        linux.unmount(str(place))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide the machine's own specifications")
def test_a_trial_sees_exactly_the_gpus_that_it_was_given(image_ground: ImageGround, tmp_path: Path) -> None:
    cases = {"first": [3], "others": [0, 2], "none": [], "unknown": [7]}
    with _memory(tmp_path / "etc") as place:
        found = trials(image_ground, cases, specification("0", "1", "2", "3", "all"), place)
    for name, indices in cases.items():
        if name != "unknown":
            assert found[name] == seen(*indices, variable="void"), name
    code, message = found["unknown"]
    assert code == "GPU_LOST"
    assert "do not name GPU 7 (GPU-7)" in message


# Whether images get GPUs, asked where it is accepted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that stands for those of specifications."""
    place = tmp_path / "cdi"
    place.mkdir()
    monkeypatch.setattr(cdi.names, "__defaults__", ((place,),))
    return place


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("nvidia.yaml", ""),
        ("nvidia.yaml", "devices: [\n"),
        ("nvidia.yaml", "\0"),
        ("nvidia.json", "{"),
        ("nvidia.json", "[" * 100_000),
        ("nvidia.yaml", specification("0", "1", "2", "3", kind="amd.com/gpu")),
        ("nvidia.yaml", specification("0", "1", "2", "3", cdiVersion=None)),
        ("nvidia.yaml", specification("0", "1", "2", "3", devices=[{"name": "0"}])),
        ("nvidia.yaml", specification("0", "1", "2", "3", devices=["0"])),
        ("nvidia.txt", specification("0", "1", "2", "3")),
    ],
)
def test_a_specification_that_no_runtime_can_use_counts_as_none(folder: Path, file: str, text: str) -> None:
    assert "no CDI specification" in str(cdi.names(GPUS)[1])
    (folder / file).write_text(text)
    assert "no CDI specification" in str(cdi.names(GPUS)[1])


def test_gpus_are_named_by_what_does_not_change_where_the_specification_does(folder: Path) -> None:
    (folder / "nvidia.json").write_text(specification("0", "1", "2"))
    assert cdi.names(GPUS[:3]) == (["nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=2"], None)
    assert "do not name GPU 3 (GPU-3) among" in str(cdi.names(GPUS)[1])
    (folder / "more.yaml").write_text(specification("GPU-1", "3"))
    names = ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1", "nvidia.com/gpu=2", "nvidia.com/gpu=3"]
    assert cdi.names(GPUS) == (names, None)
    (folder / "twice.yaml").write_text(specification("0"))
    assert "do not name GPU 0 (GPU-0) among" in str(cdi.names(GPUS)[1]), "runtimes refuse what is there twice"


def test_a_machine_with_gpus_that_no_image_would_get_takes_no_images(
    image_ground: ImageGround, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.engines.local.gpus.inventory", lambda: tuple(GPUS))
    engine = LocalEngine(image_ground.root, images=ImageSettings(runtime="podman"))
    try:
        assert str(engine.images()).startswith("images get no GPUs here: no CDI specification in")
        (folder / "nvidia.yaml").write_text(specification("0"))
        assert "do not name GPU 1 (GPU-1), 2 (GPU-2), 3 (GPU-3)" in str(engine.images())
        (folder / "nvidia.yaml").write_text(specification("0", "1", "2", "3"))
        assert engine.images() is None
    finally:
        engine.close()


def test_podman_from_before_these_specifications_says_so(
    image_ground: ImageGround, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "nvidia.yaml").write_text(specification("0", "1", "2", "3"))
    engine = LocalEngine(image_ground.root, images=ImageSettings(runtime="podman"))
    try:
        runtime = engine._containers.runtime
        assert runtime.why_no_gpus(GPUS) is None
        monkeypatch.setattr(Podman, "version", lambda _podman: "podman 3.0.1")
        assert runtime.why_no_gpus(GPUS) == "podman 3.0 has no Container Device Interface; 4.1 has"
    finally:
        engine.close()


# docker


def test_docker_without_any_way_to_give_gpus_says_which_there_would_be(docker_ground: ImageGround) -> None:
    engine = LocalEngine(docker_ground.root, images=ImageSettings(runtime="docker"))
    try:
        runtime = engine._containers.runtime
        assert isinstance(runtime, Docker)
        reason = str(runtime.why_no_gpus(GPUS))
        if runtime._specifications:
            assert "no CDI specification" in reason
        else:
            assert "reads no CDI specifications (28 does by itself" in reason
        assert reason.endswith("and it has no runtime called `nvidia`")
        with pytest.raises(EngineError) as refused:
            runtime._gpu_options(GPUS)
        assert (refused.value.code, refused.value.message) == ("GPU_LOST", reason)
    finally:
        engine.close()


def test_docker_that_reads_specifications_is_given_their_names(
    docker_ground: ImageGround, folder: Path
) -> None:
    runtime = Docker("docker", docker_ground.root / "images")
    said = {"ServerVersion": "28.2.2", "CgroupDriver": "cgroupfs", "Driver": "overlay2"}
    runtime._take({**said, "CDISpecDirs": [str(folder)], "Runtimes": {"runc": {}}})
    assert "no CDI specification" in str(runtime.why_no_gpus(GPUS))
    (folder / "nvidia.yaml").write_text(specification("0", "GPU-1"))
    assert runtime.why_no_gpus(GPUS[:2]) is None
    assert runtime._gpu_options(GPUS[:2]) == (
        ["--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=GPU-1"],
        "void",
    )


def test_docker_gives_gpus_by_nvidias_runtime_where_it_has_that(
    docker_ground: ImageGround, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("runc")
    program = tmp_path / "nvidia-container-runtime"
    program.write_text(_TOOLKIT.replace("REAL", repr(real)))
    program.chmod(0o755)
    # As the default it would give all GPUs to every image that asks for them by a variable.
    settings = {"runtimes": {"nvidia": {"path": str(program)}}, "default-runtime": "nvidia"}
    with running_docker(**settings) as host:
        monkeypatch.setenv("DOCKER_HOST", host)
        ground = ImageGround(tmp_path / "engine", docker_ground.image, "docker")
        found = trials(ground, {"first": [3], "others": [0, 2], "none": []})
    assert found["first"] == seen(3, variable="GPU-3")
    assert found["others"] == seen(0, 2, variable="GPU-0,GPU-2")
    assert found["none"] == seen(variable="void")
