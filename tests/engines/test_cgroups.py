"""The version 2 backend against a tree of plain files: this machine's kernel has no such controllers."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

import pytest

from trainshed.jobkit import cgroups

FILES = {
    "cgroup.procs": "",
    "cgroup.kill": "",
    "cgroup.subtree_control": "",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n",
    "memory.peak": "52428800\n",
    "pids.max": "max\n",
    "cpu.max": "max 100000\n",
}
V1_FILES = {
    "cgroup.procs": "",
    "tasks": "",
    "memory.limit_in_bytes": "",
    "pids.max": "",
    "cpu.cfs_quota_us": "",
}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes folders that look like new control groups, as the kernel does on ``mkdir``."""
    real, content = os.makedirs, dict(FILES)

    def makedirs(path, mode=0o777, *, exist_ok=False):
        parts = Path(path)
        missing = [folder for folder in (parts, *parts.parents) if not folder.exists()]
        for folder in reversed(missing):
            if not os.access(folder.parent, os.W_OK) or (folder.parent / "read-only").exists():
                raise PermissionError(folder)
            real(folder, mode, exist_ok=exist_ok)
            files = V1_FILES if str(tmp_path / "v1") in str(folder) else content
            for name, text in files.items():
                (folder / name).write_text(text)

    monkeypatch.setattr(os, "makedirs", makedirs)
    return content


def mount(tmp_path: Path, *lines: str) -> tuple[str, str]:
    mountinfo, own = tmp_path / "mountinfo", tmp_path / "own"
    mountinfo.write_text("".join(f"30 1 0:30 / {line}\n" for line in lines))
    own.write_text("0::/user.slice/app.service\n5:pids:/user.slice\n4:memory:/\n")
    return str(mountinfo), str(own)


def unified(tmp_path: Path) -> Path:
    top = tmp_path / "unified"
    top.mkdir()
    (top / "cgroup.subtree_control").write_text("")
    return top


def detect(tmp_path: Path, *lines: str) -> cgroups.Layout:
    mountinfo, own = mount(tmp_path, *lines)
    return cgroups.detect("i1", mountinfo=mountinfo, own=own)


def test_all_limits_go_through_version_2_where_it_has_the_controllers(tmp_path: Path, fake) -> None:
    top = unified(tmp_path)
    layout = detect(tmp_path, f"{top} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")
    assert layout.killing() == "cgroup-v2"
    assert layout.v1 == {}
    group = cgroups.Group(layout, "a1")
    enforcement = group.create(memory_mb=100, pids=64, cpus=3)
    assert enforcement == {"memory": "cgroup-v2", "pids": "cgroup-v2", "cpus": "cgroup-v2"}
    made = top / "trainshed" / "i1" / "a1"
    assert (made / "memory.max").read_text() == "104857600"
    assert (made / "memory.swap.max").read_text().startswith("0")
    assert (made / "pids.max").read_text().startswith("64")
    assert (made / "cpu.max").read_text() == "300000 100000"
    for folder in (top, top / "trainshed", top / "trainshed" / "i1"):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert group.out_of_memory_kills() == 2
    assert group.max_memory_bytes() == 50 << 20


def test_limits_that_version_2_lacks_go_through_version_1(
    tmp_path: Path, fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = unified(tmp_path)
    for name in ("memory", "cpu"):
        (tmp_path / "v1" / name).mkdir(parents=True)
    monkeypatch.setattr(cgroups, "_delegate", lambda _: ("pids",))
    layout = detect(
        tmp_path,
        f"{top} rw - cgroup2 cgroup2 rw",
        f"{tmp_path}/v1/memory rw - cgroup cgroup rw,memory",
        f"{tmp_path}/v1/cpu rw - cgroup cgroup rw,cpu,cpuacct",
    )
    enforcement = cgroups.Group(layout, "a1").create(memory_mb=1, pids=5, cpus=2)
    assert enforcement == {"memory": "cgroup-v1", "pids": "cgroup-v2", "cpus": "cgroup-v1"}
    assert (tmp_path / "v1/cpu/trainshed/i1/a1/cpu.cfs_quota_us").read_text() == "200000"
    assert layout.killing() == "cgroup-v2"


def test_a_delegated_group_is_divided_where_the_top_is_not_ours(tmp_path: Path, fake) -> None:
    top = unified(tmp_path)
    own = top / "user.slice" / "app.service"
    own.mkdir(parents=True)
    for folder in (own.parent, own):
        (folder / "cgroup.subtree_control").write_text("")
    (top / "read-only").touch()
    layout = detect(tmp_path, f"{top} rw - cgroup2 cgroup2 rw")
    assert layout.v2 == str(own / "trainshed" / "i1")


def test_a_limit_whose_file_is_missing_is_reported_as_not_enforced(tmp_path: Path, fake) -> None:
    top = unified(tmp_path)
    layout = detect(tmp_path, f"{top} rw - cgroup2 cgroup2 rw")
    del fake["memory.max"]
    enforcement = cgroups.Group(layout, "a1").create(memory_mb=100, pids=64, cpus=3)
    assert enforcement["memory"] == "not enforced"
    assert enforcement["pids"] == "cgroup-v2"


def test_nothing_mounted_means_nothing_enforced_and_killing_by_tree(tmp_path: Path) -> None:
    layout = detect(tmp_path)
    group = cgroups.Group(layout, "a1")
    assert set(group.create(memory_mb=1, pids=1, cpus=1).values()) == {"not enforced"}
    assert layout.killing() == "process tree"
    assert (group.pids(), group.exists(), group.out_of_memory_kills()) == (set(), False, 0)


def test_a_layout_survives_the_way_to_the_shim() -> None:
    layout = cgroups.Layout("/v2", ("memory",), {"pids": "/v1/pids"})
    copy = cgroups.Layout.from_json(layout.to_json())
    assert (copy.v2, copy.v2_controllers, copy.v1) == (layout.v2, layout.v2_controllers, layout.v1)


def test_version_1_alone_kills_through_its_freezer(tmp_path: Path, fake) -> None:
    (tmp_path / "v1" / "freezer").mkdir(parents=True)
    layout = detect(tmp_path, f"{tmp_path}/v1/freezer rw - cgroup cgroup rw,freezer")
    assert layout.killing() == "cgroup-v1"


def test_version_1_alone_really_kills_a_tree_through_its_freezer(tmp_path: Path) -> None:
    instance = f"test-{uuid.uuid4().hex[:8]}"
    mounts = [
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines(keepends=True)
        if " cgroup2 " not in line
    ]
    (tmp_path / "mountinfo").write_text("".join(mounts))
    layout = cgroups.detect(instance, mountinfo=str(tmp_path / "mountinfo"))
    if "freezer" not in layout.v1:
        pytest.skip("no version 1 hierarchy is writable here")  # version 2 alone: nothing to try
    group = cgroups.Group(layout, "a1")
    group.create(memory_mb=100, pids=100, cpus=1)
    script = "read go; trap '' TERM; for n in 1 2 3; do setsid sleep 1000 & done; wait"
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE, text=True) as program:
        for parent in layout.parents():
            (Path(parent) / "a1" / "cgroup.procs").write_text(str(program.pid))
        program.stdin.write("go\n")
        program.stdin.flush()
        while len(group.pids()) < 4:
            assert program.poll() is None
        assert group.kill_until_empty(5)[1]
        assert program.wait() == -9
    assert group.remove(5)
    layout.remove_parents()
