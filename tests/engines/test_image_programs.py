"""What a program sees in an image, and that nothing of it is left, whoever is killed and whenever."""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from engines.conformance import LIMITS, SETTLED, Behaviour, written
from engines.containers import ImageGround, ImageHarness, built, image_engine, make
from engines.machinery import LocalHarness
from support.leftovers import processes_of
from support.registry import Registry
from support.waiting import wait_until
from trainshed.engines import EndedBy, EngineError, Exit, Mount, Phase
from trainshed.engines.local import DEFAULT_USER
from trainshed.engines.local.runtimes import LABEL
from trainshed.jobkit import frames


def run(harness: LocalHarness, text: str, **settings: object) -> Exit:
    harness.engine.launch(harness.shell("attempt-1", text, **settings))
    observation = harness.until("attempt-1", SETTLED)
    assert observation.phase is Phase.EXITED
    assert observation.exit is not None
    return observation.exit


def output(harness: LocalHarness, stream: int = frames.STDOUT) -> str:
    return written(harness.engine.logs("attempt-1").frames, stream).decode()


# What a program sees


def test_E43_a_tag_that_moved_changes_nothing_for_who_was_frozen_before(
    contained: ImageHarness, registry: Registry
) -> None:
    assert run(contained, "cat /marker").code == 0
    registry.push(registry.image("busybox", marker="moved"), "team/python", "1")
    assert registry.digest("team/python", "1") not in contained.image
    contained.engine.launch(contained.shell("attempt-2", "cat /marker"))
    contained.until("attempt-2", SETTLED)
    assert output(contained) == written(contained.engine.logs("attempt-2").frames).decode() == "of the image"


def test_a_program_sees_the_image_and_its_own_folders_and_nothing_of_the_machine(
    contained: ImageHarness,
) -> None:
    text = (
        "pwd; id -u; echo $PATH; echo $HOME; ls /marker; ls /work /data 2>/dev/null; echo one > /root/one;"
        " echo two > /tmp/two; echo three > /var/tmp/three; echo four > four; ls /proc/1/root 2>&1 | head -1"
    )
    assert run(contained, text).code == 0
    first = output(contained).splitlines()
    assert first[:5] == [
        "/run/work",
        "0",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/root",
        "/marker",
    ]
    assert (contained.engine.work_directory("attempt-1") / "four").read_text() == "four\n"
    assert sorted(each.name for each in (contained.folder("attempt-1") / "tmp").iterdir()) == ["three", "two"]


def test_what_a_program_changes_in_the_image_is_gone_with_it(contained: ImageHarness) -> None:
    assert run(contained, "echo changed > /root/mine; rm /bin/uname").code == 0
    contained.engine.launch(contained.shell("attempt-2", "ls /root/mine /bin/uname"))
    contained.until("attempt-2", SETTLED)
    assert written(contained.engine.logs("attempt-2").frames) == b"/bin/uname\n"


def test_what_a_program_writes_into_the_image_counts_as_its_disk(contained: ImageHarness) -> None:
    text = "i=0; while :; do dd if=/dev/zero of=/root/$((i++)) bs=1M count=4 status=none; sleep 0.02; done"
    exit_ = run(contained, text, limits=replace(LIMITS, storage_mb=40))
    assert exit_.ended_by is EndedBy.DISK


def test_the_images_own_start_is_not_run_and_its_variables_and_volumes_hold(
    contained: ImageHarness, registry: Registry
) -> None:
    def change(tree: Path) -> None:
        (tree / "start").write_text("#!/bin/bash\necho started by the image\n")
        (tree / "start").chmod(0o755)
        (tree / "volume").mkdir()

    image = built(
        registry, "with-start", change, entrypoint='["/start"]', env="OF_THE_IMAGE=yes", volume="/volume"
    )
    contained.engine.prepare(image, lambda _sentence: None, lambda: False)
    text = (
        'echo "$OF_THE_IMAGE"; echo x > /volume/file; '
        "while read -r line; do case $line in */volume*) echo mounted;; esac; done < /proc/self/mountinfo"
    )
    contained.image = image
    contained.engine.launch(contained.program("attempt-1", ["bash", "-c", text]))
    contained.until("attempt-1", SETTLED)
    if contained.runtime == "docker":  # it makes a volume, which nobody measures
        assert output(contained) == "yes\nmounted\n"
        assert "Read-only" in output(contained, frames.STDERR)
    else:
        assert (output(contained), output(contained, frames.STDERR)) == ("yes\n", "")


def test_a_program_in_an_image_has_no_privileges(contained: ImageHarness) -> None:
    text = """
import ctypes, os, re
status = open("/proc/self/status").read()
print(re.findall(r"Cap(?:Prm|Eff|Bnd|Amb):\\s+(\\w+)", status), re.search(r"NoNewPrivs:\\s+(\\d)", status)[1])
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, *arguments):
    ctypes.set_errno(0)
    print(name, getattr(libc, name)(*arguments), ctypes.get_errno())
tried("unshare", 0x10000000)
tried("mount", b"none", b"/root", b"tmpfs", 0, None)
tried("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0)
tried("syscall", 425, 1, None)
tried("syscall", 250, 0, 0, 0)
for path in ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/proc/sysrq-trigger"):
    try:
        open(path, "w")
        print("opened", path)
    except OSError:
        pass
os.kill(1, 9)
print("alone" if all(int(name) < 100 for name in os.listdir("/proc") if name.isdigit()) else "not alone")
"""
    launch = contained.python("attempt-1", text)
    contained.engine.launch(launch)
    exit_ = contained.until("attempt-1", SETTLED).exit
    assert exit_ is not None
    assert exit_.code == 0, output(contained, frames.STDERR)
    lines = output(contained).splitlines()
    assert lines[0] == f"{['0' * 16] * 4} 1"
    assert lines[1:6] == [
        "unshare -1 1",
        "mount -1 1",
        "setns -1 1",
        "syscall -1 1",
        "syscall -1 1",
    ]
    assert lines[6:] == ["alone"]


def test_a_device_file_of_an_image_is_of_no_use(contained: ImageHarness, registry: Registry) -> None:
    disk = Path("/").stat().st_dev

    def change(tree: Path) -> None:
        os.mknod(tree / "disk", stat.S_IFBLK | 0o666, disk)
        os.mknod(tree / "memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))

    contained.image = built(registry, "with-devices", change)
    contained.engine.prepare(contained.image, lambda _sentence: None, lambda: False)
    text = "[ -b /disk ] && echo disk; [ -c /memory ] && echo memory; : < /disk; : < /memory"
    contained.engine.launch(contained.program("attempt-1", ["bash", "-c", text]))
    contained.until("attempt-1", SETTLED)
    assert output(contained) == "disk\nmemory\n"
    assert output(contained, frames.STDERR).count("Permission denied") == 2


def test_C12_a_mount_in_an_image_is_also_where_it_is_asked_for(
    contained: ImageHarness, tmp_path: Path
) -> None:
    source = tmp_path / 'odd, name: "a=b"'
    source.mkdir()
    (source / "x").write_text("bytes")
    launch = replace(
        contained.shell("attempt-1", 'cat "$DATA/x" /volume/data/x; echo y > /volume/data/y'),
        mounts=(Mount(source, "inputs/data", target="/volume/data"),),
        paths={"DATA": "inputs/data"},
    )
    contained.engine.launch(launch)
    contained.until("attempt-1", SETTLED)
    assert output(contained) == "bytesbytes"
    assert "Read-only file system" in output(contained, frames.STDERR)
    assert [each.name for each in source.iterdir()] == ["x"]


@pytest.mark.parametrize("isolated", [False, True])
def test_the_network_is_the_machines_unless_trials_are_isolated(
    tmp_path: Path, ground: ImageGround, *, isolated: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with image_engine(tmp_path, ground, isolated=isolated) as harness:
            exit_ = run(harness, f"id -u; echo $HOME; : < /dev/tcp/127.0.0.1/{port}; echo mine > file")
            user, home = ("0", "/root") if not isolated or os.geteuid() else (str(DEFAULT_USER), "/tmp")
            assert output(harness).splitlines() == [user, home]
            refused = "Connection refused" in output(harness, frames.STDERR)
            assert (exit_.code, refused) == (0, isolated)
            assert (harness.engine.work_directory("attempt-1") / "file").read_text() == "mine\n"


# Crashes, and that nothing is left


@pytest.mark.parametrize("window", ["runtime.txt", "started.json"])
def test_P3_a_shim_killed_while_its_container_is_made_starts_user_code_at_most_once(
    contained: ImageHarness, window: str
) -> None:
    _kill_the_shim(contained, window)


@pytest.mark.parametrize("window", ["monitor-*.pid", "keeper-*.pid"])
def test_P3_a_shim_killed_while_podman_makes_its_container_starts_user_code_at_most_once(
    podman: ImageHarness, window: str
) -> None:
    _kill_the_shim(podman, window)


def _kill_the_shim(contained: ImageHarness, window: str) -> None:
    """Kill it in that window, launch again, and assert what both tests promise."""
    launch = contained.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED)
    contained.engine.launch(launch)
    wait_until(lambda: list(contained.folder("attempt-1").glob(window)))
    contained.lose("attempt-1")
    wait_until(lambda: contained.programs("attempt-1") == set(), what="the end of what the shim left")
    started = (contained.folder("attempt-1") / "started.json").exists()
    assert contained.observe("attempt-1").phase is (Phase.LOST if started else Phase.PREPARING)
    contained.reopen()
    contained.engine.launch(launch)
    if not started:
        contained.running("attempt-1")
    assert contained.engine.release("attempt-1").confirmed
    assert contained.starts("attempt-1") <= 1
    assert contained.containers() == []


def test_P3_a_container_that_docker_made_for_a_killed_shim_is_out_of_the_way_of_the_next_launch(
    tmp_path: Path, docker_ground: ImageGround
) -> None:
    with image_engine(tmp_path, docker_ground) as docker:
        make(docker, "attempt-1")
        assert docker.containers()
        docker.run("attempt-1", Behaviour.SUCCEEDS)
        assert docker.starts("attempt-1") == 1
        assert docker.engine.release("attempt-1").confirmed
        assert docker.containers() == []


def test_P6_a_container_that_docker_still_makes_for_a_killed_client_is_waited_for(
    tmp_path: Path, docker_ground: ImageGround, docker_host: str
) -> None:
    with image_engine(tmp_path, docker_ground) as docker, socket.socket(socket.AF_UNIX) as client:
        runtime = docker.engine._containers.runtime
        label = {LABEL: docker.engine.instance}
        body = json.dumps({"Image": docker.image, "Cmd": ["true"], "Labels": label})
        client.connect(docker_host.removeprefix("unix://"))
        client.sendall(
            b"POST /containers/create?name=begun HTTP/1.0\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        runtime.settle("begun", docker.image)
        assert runtime.remove("begun") is None
        assert b" 201 " in client.recv(256)
        assert docker.containers() == []


def test_a_stop_while_the_container_is_made_means_that_it_never_starts(contained: ImageHarness) -> None:
    contained.engine.launch(contained.launch("attempt-1", Behaviour.SUCCEEDS))
    wait_until((contained.folder("attempt-1") / "runtime.txt").exists)
    contained.engine.stop("attempt-1")
    observation = contained.until("attempt-1", SETTLED)
    assert observation.exit is not None
    assert observation.exit.ended_by in {EndedBy.STOP, EndedBy.EXIT}
    assert contained.starts("attempt-1") == (observation.started_at is not None)
    release = contained.engine.release("attempt-1")
    assert (release.confirmed, release.checks["container"]) == (True, "removed")


def test_P6_a_container_whose_folder_is_gone_is_found_by_its_label(contained: ImageHarness) -> None:
    contained.engine.launch(contained.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    contained.running("attempt-1")
    contained.lose("attempt-1")
    wait_until(lambda: contained.programs("attempt-1") == set())
    path = contained.folder("attempt-1")
    path.rename(contained.path / "elsewhere")
    contained.reopen()
    assert list(contained.engine.sweep({"other"})) == ["attempt-1"]
    assert contained.containers() == []
    assert list(contained.engine.sweep({"other"})) == []


def test_a_try_of_a_server_that_was_killed_is_removed(contained: ImageHarness) -> None:
    make(contained, ".check-left")
    assert contained.containers()
    assert list(contained.engine.sweep(())) == []
    assert contained.containers() == []


def test_a_container_that_the_runtime_does_not_remove_keeps_the_attempt_unreleased(
    contained: ImageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    contained.run("attempt-1", Behaviour.SUCCEEDS)
    with monkeypatch.context() as broken:
        broken.setattr(contained.engine._containers.runtime, "remove", lambda _name: "it hangs")
        release = contained.engine.release("attempt-1")
        assert not release.confirmed
        assert release.checks["container"] == "not removed: it hangs"
        assert contained.engine.work_directory("attempt-1").is_dir()
        with pytest.raises(EngineError, match="it hangs"):
            contained.engine.forget("attempt-1")
    assert contained.engine.release("attempt-1").confirmed


def test_every_program_of_a_container_ends_with_the_attempt(contained: ImageHarness) -> None:
    text = "(trap '' TERM; setsid sleep 1000 & ) ; echo going; exec sleep 1000"
    contained.engine.launch(contained.shell("attempt-1", text))
    contained.running("attempt-1")
    release = contained.engine.release("attempt-1")
    assert release.confirmed
    assert contained.processes("attempt-1") == set()
    assert not [line for line in processes_of(contained.root) if "conmon" in line]


def test_programs_that_lost_their_parent_are_collected(contained: ImageHarness) -> None:
    text = (
        "for i in 1 2 3 4 5; do (sleep 0 & ); done; sleep 0.3; cat /proc/[0-9]*/stat | grep -c ') Z ' ; true"
    )
    assert run(contained, text).code == 0
    assert output(contained) == "0\n"
