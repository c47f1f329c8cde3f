"""Images: pulled once by digest, proved suitable, kept within a limit; what a program sees in one."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from engines.conformance import LIMITS, SETTLED, Behaviour, written
from engines.containers import ImageGround, ImageHarness, image_engine, left_containers, left_groups
from engines.machinery import LocalHarness
from support.leftovers import processes_of
from support.registry import FOREIGN, Registry, bash_tree, running_registry
from support.waiting import wait_until
from trainshed.engines import EndedBy, EngineError, Exit, Mount, Phase
from trainshed.engines.local import DEFAULT_USER, ImageSettings, LocalEngine, drivers
from trainshed.jobkit import frames, mounts
from trainshed.model.resources import Gpu

PULLED = ImageSettings(keep_seconds=0, stall_seconds=20)
VERSION = "#!/bin/bash\necho python 3.11.0\n"
Progress = list[str]


@pytest.fixture
def fresh(tmp_path: Path, registry: Registry) -> Iterator[Callable[..., LocalEngine]]:
    """Makes engines on a folder of the test's own, without an image in it."""
    del registry  # whoever has it has podman
    made: list[LocalEngine] = []

    def make(settings: ImageSettings = PULLED) -> LocalEngine:
        for engine in made:
            engine.close()
        made.append(LocalEngine(tmp_path / "engine", images=settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
        engine._layout.remove_parents()
        assert not left_groups(engine.instance)
    root = tmp_path / "engine"
    assert not left_containers(root)
    assert not mounts.mounted_below(str(root))


def pushed(registry: Registry, marker: str, tag: str = "1", kind: str = "busybox") -> str:
    """An image of its own, by digest. It has no Bash; pulling it takes a moment only."""
    repository = f"team/{kind}-{marker}"
    return registry.name(
        repository, digest=registry.push(registry.image(kind, marker=marker), repository, tag)
    )


def built(
    registry: Registry, name: str, change: Callable[[Path], None], *, python: str = VERSION, **config: str
) -> str:
    """A small image of Bash and a script called ``python3`` that was changed, by digest."""
    tree = registry.folder / f"made-{name}"
    tree.mkdir()
    tree.chmod(0o755)
    bash_tree(tree)
    if python:
        (tree / "usr/bin/python3").write_text(python)
        (tree / "usr/bin/python3").chmod(0o755)
    change(tree)
    image = registry.build(name, tree, **config)
    shutil.rmtree(tree)
    return registry.name(f"team/{name}", digest=registry.push(image, f"team/{name}", "1"))


def refusal(engine: LocalEngine, image: str, said: Progress | None = None) -> EngineError:
    progress: Progress = [] if said is None else said
    with pytest.raises(EngineError) as refused:
        engine.prepare(image, progress.append, lambda: False)
    return refused.value


def run(harness: LocalHarness, text: str, **settings: object) -> Exit:
    harness.engine.launch(harness.shell("attempt-1", text, **settings))
    observation = harness.until("attempt-1", SETTLED)
    assert observation.phase is Phase.EXITED
    assert observation.exit is not None
    return observation.exit


def output(harness: LocalHarness, stream: int = frames.STDOUT) -> str:
    return written(harness.engine.logs("attempt-1").frames, stream).decode()


# Pulling


def test_E42_an_image_is_pulled_once_for_all_who_wait_for_it(
    fresh: Callable[..., LocalEngine], registry: Registry, image_ground: ImageGround
) -> None:
    engine, image = fresh(), image_ground.image
    before = len(registry.requests())
    heard: list[Progress] = [[] for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda said: engine.prepare(image, said.append, lambda: False), heard))
    blobs = [line for line in registry.requests()[before:] if line.startswith("GET") and "/blobs/" in line]
    assert len(blobs) == len(set(blobs))
    assert all(said and image in said[0] for said in heard)
    assert any("MiB" in sentence for said in heard for sentence in said)
    before = len(registry.requests())
    engine.prepare(image, heard[0].append, lambda: False)
    fresh().prepare(image, heard[0].append, lambda: False)
    assert registry.requests()[before:] == []


def test_E43_a_tag_that_moved_changes_nothing_for_who_was_frozen_before(
    podman: ImageHarness, registry: Registry
) -> None:
    assert run(podman, "cat /marker").code == 0
    registry.push(registry.image("busybox", marker="moved"), "team/python", "1")
    assert registry.digest("team/python", "1") not in podman.image
    podman.engine.launch(podman.shell("attempt-2", "cat /marker"))
    podman.until("attempt-2", SETTLED)
    assert output(podman) == written(podman.engine.logs("attempt-2").frames).decode() == "of the image"


def test_an_index_is_found_again_by_its_own_digest(
    fresh: Callable[..., LocalEngine], registry: Registry
) -> None:
    images = [registry.image("busybox", marker="many"), registry.image("busybox", architecture=FOREIGN)]
    image = registry.name("team/many", digest=registry.push_index(images, "team/many", "1"))
    engine = fresh()
    assert "no Bash" in refusal(engine, image).message
    before = len(registry.requests())
    assert "no Bash" in refusal(engine, image).message
    assert registry.requests()[before:] == []


def test_an_image_that_is_not_frozen_is_refused(fresh: Callable[..., LocalEngine]) -> None:
    error = refusal(fresh(), "127.0.0.1:1/team/python:1")
    assert (error.code, error.retryable) == ("IMAGE_UNSUITABLE", False)
    assert "digest" in error.message


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (503, True), (401, False), (404, False)])
def test_a_registry_that_refuses_is_tried_again_only_where_that_can_help(
    fresh: Callable[..., LocalEngine], status: int, *, retryable: bool
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v2/" else status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            error = refusal(fresh(), f"127.0.0.1:{server.server_port}/team/x@sha256:{'a' * 64}")
        finally:
            server.shutdown()
            thread.join()
    assert (error.code, error.retryable) == ("IMAGE_PULL_FAILED", retryable), error.message


def test_a_registry_that_is_gone_may_come_back(fresh: Callable[..., LocalEngine]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        error = refusal(fresh(), f"127.0.0.1:{closed.getsockname()[1]}/team/x@sha256:{'a' * 64}")
    assert (error.code, error.retryable) == ("IMAGE_PULL_FAILED", True)


def test_E44_an_image_that_wants_credentials_is_not_pulled_with_anybodys(
    fresh: Callable[..., LocalEngine],
) -> None:
    with running_registry(private=True) as private:
        image = pushed(private, "secret")
        error = refusal(fresh(), image)
    assert (error.code, error.retryable) == ("IMAGE_PULL_FAILED", False), error.message


def test_bytes_that_are_not_what_the_digest_says_are_refused_for_good(
    fresh: Callable[..., LocalEngine], registry: Registry
) -> None:
    image = pushed(registry, "damaged")
    repository, _, digest = image.removeprefix(f"{registry.host}/").partition("@")
    layer = registry.blob(registry.manifest(repository, digest)["layers"][0]["digest"])
    whole = layer.read_bytes()
    try:
        layer.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        engine = fresh()
        error = refusal(engine, image)
        assert (error.code, error.retryable) == ("IMAGE_PULL_FAILED", False), error.message
    finally:
        layer.write_bytes(whole)
    assert "no Bash" in refusal(engine, image).message


@pytest.fixture
def silent() -> Iterator[str]:
    """An image of a registry that accepts every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}/team/slow@sha256:{'b' * 64}"


def test_a_pull_that_gets_nothing_fails_and_may_be_tried_again(
    fresh: Callable[..., LocalEngine], silent: str
) -> None:
    error = refusal(fresh(replace(PULLED, stall_seconds=1)), silent)
    assert (error.code, error.retryable) == ("IMAGE_PULL_FAILED", True)
    assert "nothing came for 1 seconds" in error.message


def test_a_pull_that_nobody_waits_for_any_more_is_killed(
    fresh: Callable[..., LocalEngine], silent: str, tmp_path: Path
) -> None:
    engine, given_up = fresh(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first, second = (
            pool.submit(engine.prepare, silent, lambda _sentence: None, stop)
            for stop in (lambda: True, given_up.is_set)
        )
        with pytest.raises(EngineError) as cancelled:
            first.result(timeout=30)
        assert cancelled.value.code == "PREPARE_CANCELLED"
        wait_until(lambda: pulls_below(tmp_path) != [], what="the pull for the other")
        given_up.set()
        with pytest.raises(EngineError, match="nobody waits"):
            second.result(timeout=30)
    wait_until(lambda: not pulls_below(tmp_path), what="the end of the pull")


def pulls_below(path: Path) -> list[int]:
    """Processes that pull an image for an engine below ``path``."""
    mark = f"CONTAINERS_STORAGE_CONF={path}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    mark in (entry / "environ").read_bytes()
                    and b"\0pull\0" in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_pull_ends_with_the_server_that_was_killed_and_the_next_one_pulls_anew(
    fresh: Callable[..., LocalEngine], registry: Registry, silent: str, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path; from trainshed.engines.local import LocalEngine\n"
        "LocalEngine(Path(sys.argv[1])).prepare(sys.argv[2], print, lambda: False)\n"
    )
    server = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "engine"), silent])
    try:
        wait_until(lambda: pulls_below(tmp_path) != [], what="the pull")
    finally:
        server.kill()
        server.wait()
    wait_until(lambda: not pulls_below(tmp_path), what="the end of the pull")
    assert "no Bash" in refusal(fresh(), pushed(registry, "after-a-crash")).message


# E45: what an image must have


def test_E45_an_image_without_bash_is_refused(fresh: Callable[..., LocalEngine], registry: Registry) -> None:
    error = refusal(fresh(), pushed(registry, "no-bash"))
    assert (error.code, error.retryable) == ("IMAGE_UNSUITABLE", False)
    assert "has no Bash" in error.message


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("", "has no Python 3"),
        ("#!/bin/bash\necho python 3.6.9\n", "has Python 3.6.9; Runners need 3.8 or newer"),
        ("#!/bin/bash\nexit 1\n", "has a Python 3 that does not run"),
    ],
)
def test_E45_an_image_without_a_supported_python_is_refused(
    fresh: Callable[..., LocalEngine], registry: Registry, python: str, reason: str
) -> None:
    image = built(registry, f"python-{len(reason)}", lambda _tree: None, python=python)
    error = refusal(fresh(), image)
    assert error.code == "IMAGE_UNSUITABLE"
    assert reason in error.message


@pytest.mark.parametrize("index", [False, True])
def test_E45_an_image_for_another_processor_is_refused(
    fresh: Callable[..., LocalEngine], registry: Registry, *, index: bool
) -> None:
    image = registry.image("busybox", architecture=FOREIGN)
    repository = f"team/foreign-{index}".lower()
    digest = registry.push_index([image], repository) if index else registry.push(image, repository)
    error = refusal(fresh(), registry.name(repository, digest=digest))
    assert (error.code, error.retryable) == ("IMAGE_UNSUITABLE", False), error.message
    assert "this machine" in error.message


@pytest.mark.parametrize(
    ("requires", "satisfied"),
    [
        ("", True),
        ("cuda>=12.4", True),
        ("cuda>=12.5", False),
        ("cuda>=11", True),
        ("cuda>12.4", False),
        ("cuda>=12.6 brand=tesla,driver>=550,driver<551", True),
        ("cuda>=12.6 brand=tesla,driver>=535,driver<536", False),
        ("cuda>=12.6 something=else", True),
        ("driver=550.54.15", True),
        ("driver!=550", False),
    ],
)
def test_E45_what_cuda_libraries_ask_of_a_driver(requires: str, *, satisfied: bool) -> None:
    facts = {"cuda": "12.4", "driver": "550.54.15"}
    assert drivers.satisfied(requires, facts) is satisfied


# The cache


def held(engine: LocalEngine, image: str) -> bool:
    return engine._containers.runtime.inspect(image) is not None


def test_images_that_nobody_uses_make_room_the_oldest_first(
    fresh: Callable[..., LocalEngine], registry: Registry
) -> None:
    images = [pushed(registry, f"cached-{number}") for number in range(3)]
    engine = fresh()
    for image in images:
        refusal(engine, image)
    size = engine._containers.runtime.inspect(images[0])
    assert size is not None
    engine = fresh(replace(PULLED, cache_bytes=2 * size.size))
    engine.sweep(())
    assert [held(engine, image) for image in images] == [False, True, True]
    refusal(engine, images[1])
    engine = fresh(replace(PULLED, cache_bytes=size.size))
    engine.sweep(())
    assert [held(engine, image) for image in images] == [False, True, False]


def test_an_image_that_was_used_just_now_stays_whatever_the_limit(
    fresh: Callable[..., LocalEngine], registry: Registry
) -> None:
    image = pushed(registry, "fresh")
    engine = fresh(ImageSettings(cache_bytes=0))
    refusal(engine, image)
    engine.sweep(())
    assert held(engine, image)


def test_an_image_that_an_attempt_uses_is_never_evicted(
    tmp_path: Path, image_ground: ImageGround, registry: Registry
) -> None:
    with image_engine(tmp_path, image_ground, images=replace(PULLED, cache_bytes=0)) as harness:
        harness.engine._images.find(harness.image)
        harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.running("attempt-1")
        harness.engine.sweep({"attempt-1"})
        other = pushed(registry, "beside")
        refusal(harness.engine, other)
        harness.engine.sweep({"attempt-1"})
        assert held(harness.engine, harness.image)
        assert not held(harness.engine, other)
        # The other tests go on with this image.
        harness.engine._images._settings = ImageSettings()


def test_a_launch_of_an_image_that_is_not_here_may_be_tried_again(podman: ImageHarness) -> None:
    launch = replace(podman.launch("attempt-1", Behaviour.SUCCEEDS), image=f"x.example/y@sha256:{'c' * 64}")
    with pytest.raises(EngineError) as refused:
        podman.engine.launch(launch)
    assert (refused.value.code, refused.value.retryable) == ("IMAGE_GONE", True)
    assert podman.observe("attempt-1").phase is Phase.ABSENT


# What a program sees


def test_a_program_sees_the_image_and_its_own_folders_and_nothing_of_the_machine(
    podman: ImageHarness,
) -> None:
    text = (
        "pwd; id -u; echo $PATH; echo $HOME; ls /marker; ls /work /data 2>/dev/null; echo one > /root/one;"
        " echo two > /tmp/two; echo three > /var/tmp/three; echo four > four; ls /proc/1/root 2>&1 | head -1"
    )
    assert run(podman, text).code == 0
    first = output(podman).splitlines()
    assert first[:5] == [
        "/run/work",
        "0",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "/root",
        "/marker",
    ]
    assert (podman.engine.work_directory("attempt-1") / "four").read_text() == "four\n"
    assert sorted(each.name for each in (podman.folder("attempt-1") / "tmp").iterdir()) == ["three", "two"]


def test_what_a_program_changes_in_the_image_is_gone_with_it(podman: ImageHarness) -> None:
    assert run(podman, "echo changed > /root/mine; rm /bin/uname").code == 0
    podman.engine.launch(podman.shell("attempt-2", "ls /root/mine /bin/uname"))
    podman.until("attempt-2", SETTLED)
    assert written(podman.engine.logs("attempt-2").frames) == b"/bin/uname\n"


def test_what_a_program_writes_into_the_image_counts_as_its_disk(podman: ImageHarness) -> None:
    text = "i=0; while :; do dd if=/dev/zero of=/root/$((i++)) bs=1M count=4 status=none; sleep 0.02; done"
    exit_ = run(podman, text, limits=replace(LIMITS, storage_mb=40))
    assert exit_.ended_by is EndedBy.DISK


def test_the_images_own_start_is_not_run_and_its_variables_and_volumes_hold(
    podman: ImageHarness, registry: Registry
) -> None:
    def change(tree: Path) -> None:
        (tree / "start").write_text("#!/bin/bash\necho started by the image\n")
        (tree / "start").chmod(0o755)
        (tree / "volume").mkdir()

    image = built(
        registry, "with-start", change, entrypoint='["/start"]', env="OF_THE_IMAGE=yes", volume="/volume"
    )
    podman.engine.prepare(image, lambda _sentence: None, lambda: False)
    text = (
        'echo "$OF_THE_IMAGE"; echo x > /volume/file; '
        "while read -r line; do case $line in */volume*) echo mounted;; esac; done < /proc/self/mountinfo"
    )
    podman.image = image
    podman.engine.launch(podman.program("attempt-1", ["bash", "-c", text]))
    podman.until("attempt-1", SETTLED)
    assert (output(podman), output(podman, frames.STDERR)) == ("yes\n", "")


def test_a_program_in_an_image_has_no_privileges(podman: ImageHarness) -> None:
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
    launch = podman.python("attempt-1", text)
    podman.engine.launch(launch)
    exit_ = podman.until("attempt-1", SETTLED).exit
    assert exit_ is not None
    assert exit_.code == 0, output(podman, frames.STDERR)
    lines = output(podman).splitlines()
    assert lines[0] == f"{['0' * 16] * 4} 1"
    assert lines[1:6] == [
        "unshare -1 1",
        "mount -1 1",
        "setns -1 1",
        "syscall -1 1",
        "syscall -1 1",
    ]
    assert lines[6:] == ["alone"]


def test_a_device_file_of_an_image_is_of_no_use(podman: ImageHarness, registry: Registry) -> None:
    disk = Path("/").stat().st_dev

    def change(tree: Path) -> None:
        os.mknod(tree / "disk", stat.S_IFBLK | 0o666, disk)
        os.mknod(tree / "memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))

    podman.image = built(registry, "with-devices", change)
    podman.engine.prepare(podman.image, lambda _sentence: None, lambda: False)
    text = "[ -b /disk ] && echo disk; [ -c /memory ] && echo memory; : < /disk; : < /memory"
    podman.engine.launch(podman.program("attempt-1", ["bash", "-c", text]))
    podman.until("attempt-1", SETTLED)
    assert output(podman) == "disk\nmemory\n"
    assert output(podman, frames.STDERR).count("Permission denied") == 2


def test_C12_a_mount_in_an_image_is_also_where_it_is_asked_for(podman: ImageHarness, tmp_path: Path) -> None:
    source = tmp_path / 'odd, name: "a=b"'
    source.mkdir()
    (source / "x").write_text("bytes")
    launch = replace(
        podman.shell("attempt-1", 'cat "$DATA/x" /volume/data/x; echo y > /volume/data/y'),
        mounts=(Mount(source, "inputs/data", target="/volume/data"),),
        paths={"DATA": "inputs/data"},
    )
    podman.engine.launch(launch)
    podman.until("attempt-1", SETTLED)
    assert output(podman) == "bytesbytes"
    assert "Read-only file system" in output(podman, frames.STDERR)
    assert [each.name for each in source.iterdir()] == ["x"]


@pytest.mark.parametrize("isolated", [False, True])
def test_the_network_is_the_machines_unless_trials_are_isolated(
    tmp_path: Path, image_ground: ImageGround, *, isolated: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with image_engine(tmp_path, image_ground, isolated=isolated) as harness:
            exit_ = run(harness, f"id -u; echo $HOME; : < /dev/tcp/127.0.0.1/{port}; echo mine > file")
            user, home = ("0", "/root") if not isolated or os.geteuid() else (str(DEFAULT_USER), "/tmp")
            assert output(harness).splitlines() == [user, home]
            refused = "Connection refused" in output(harness, frames.STDERR)
            assert (exit_.code, refused) == (0, isolated)
            assert (harness.engine.work_directory("attempt-1") / "file").read_text() == "mine\n"


# Crashes, and that nothing is left


@pytest.mark.parametrize("window", ["runtime.txt", "monitor.pid", "keeper.pid", "started.json"])
def test_P3_a_shim_killed_while_its_container_is_made_starts_user_code_at_most_once(
    podman: ImageHarness, window: str
) -> None:
    launch = podman.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED)
    podman.engine.launch(launch)
    wait_until((podman.folder("attempt-1") / window).exists)
    podman.lose("attempt-1")
    wait_until(lambda: podman.processes("attempt-1") == set(), what="the end of what the shim left")
    started = (podman.folder("attempt-1") / "started.json").exists()
    assert podman.observe("attempt-1").phase is (Phase.LOST if started else Phase.PREPARING)
    podman.reopen()
    podman.engine.launch(launch)
    if not started:
        podman.running("attempt-1")
    assert podman.engine.release("attempt-1").confirmed
    assert podman.starts("attempt-1") <= 1
    assert left_containers(podman.root) == []


def test_a_stop_while_the_container_is_made_means_that_it_never_starts(podman: ImageHarness) -> None:
    podman.engine.launch(podman.launch("attempt-1", Behaviour.SUCCEEDS))
    wait_until((podman.folder("attempt-1") / "runtime.txt").exists)
    podman.engine.stop("attempt-1")
    observation = podman.until("attempt-1", SETTLED)
    assert observation.exit is not None
    assert observation.exit.ended_by in {EndedBy.STOP, EndedBy.EXIT}
    assert podman.starts("attempt-1") == (observation.started_at is not None)
    release = podman.engine.release("attempt-1")
    assert (release.confirmed, release.checks["container"]) == (True, "removed")


def test_P6_a_container_whose_folder_is_gone_is_found_by_its_label(podman: ImageHarness) -> None:
    podman.engine.launch(podman.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    podman.running("attempt-1")
    podman.lose("attempt-1")
    wait_until(lambda: podman.processes("attempt-1") == set())
    path = podman.folder("attempt-1")
    path.rename(podman.path / "elsewhere")
    podman.reopen()
    assert list(podman.engine.sweep({"other"})) == ["attempt-1"]
    assert left_containers(podman.root) == []
    assert list(podman.engine.sweep({"other"})) == []


def test_a_try_of_a_server_that_was_killed_is_removed(podman: ImageHarness) -> None:
    containers = podman.engine._containers
    command = containers.runtime.starting(
        replace(containers._template(".check-left"), image=(podman.image,)), podman.path
    ).commands[0]
    subprocess.run(command, env=dict(containers.runtime.environment), check=True, capture_output=True)
    assert left_containers(podman.root)
    assert list(podman.engine.sweep(())) == []
    assert left_containers(podman.root) == []


def test_a_container_that_the_runtime_does_not_remove_keeps_the_attempt_unreleased(
    podman: ImageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman.run("attempt-1", Behaviour.SUCCEEDS)
    with monkeypatch.context() as broken:
        broken.setattr(podman.engine._containers.runtime, "remove", lambda _name: "it hangs")
        release = podman.engine.release("attempt-1")
        assert not release.confirmed
        assert release.checks["container"] == "not removed: it hangs"
        assert podman.engine.work_directory("attempt-1").is_dir()
        with pytest.raises(EngineError, match="it hangs"):
            podman.engine.forget("attempt-1")
    assert podman.engine.release("attempt-1").confirmed


def test_every_program_of_a_container_ends_with_the_attempt(podman: ImageHarness) -> None:
    text = "(trap '' TERM; setsid sleep 1000 & ) ; echo going; exec sleep 1000"
    podman.engine.launch(podman.shell("attempt-1", text))
    podman.running("attempt-1")
    release = podman.engine.release("attempt-1")
    assert release.confirmed
    assert podman.processes("attempt-1") == set()
    assert not [line for line in processes_of(podman.root) if "conmon" in line]


def test_programs_that_lost_their_parent_are_collected(podman: ImageHarness) -> None:
    text = (
        "for i in 1 2 3 4 5; do (sleep 0 & ); done; sleep 0.3; cat /proc/[0-9]*/stat | grep -c ') Z ' ; true"
    )
    assert run(podman, text).code == 0
    assert output(podman) == "0\n"


# Whether images run at all


def test_why_no_image_runs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = LocalEngine(tmp_path / "off", images=ImageSettings(runtime="none"))
    assert off.image_facts() == {
        "images": "its administrator switched images off (images.runtime)",
        "image_runtime": None,
    }
    error = refusal(off, f"x.example/y@sha256:{'c' * 64}")
    assert (error.code, error.retryable) == ("IMAGE_UNSUITABLE", False)
    assert "switched images off" in error.message
    off.close()
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setattr("trainshed.engines.local.runtimes._path", lambda: str(programs))
    nothing = LocalEngine(tmp_path / "nothing")
    assert nothing.images() == "neither podman nor docker is installed on the server's machine"
    nothing.close()
    (programs / "podman").write_text("#!/bin/sh\necho 'Error: it is broken' >&2\nexit 125\n")
    (programs / "podman").chmod(0o755)
    broken = LocalEngine(tmp_path / "broken")
    reason = broken.images()
    broken.close()
    assert reason is not None
    assert "podman is installed but runs no container" in reason
    assert "it is broken" in reason


def test_real_gpus_without_a_specification_are_said_to_be_missing(
    podman: ImageHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.engines.local.containers.CDI_FOLDERS", (tmp_path / "cdi",))
    real = Gpu(index=3, model="H100", uuid="GPU-3", memory_mb=81_920)
    launch = replace(podman.launch("attempt-1", Behaviour.SUCCEEDS), gpus=(real,))
    with pytest.raises(EngineError, match="no CDI specification"):
        podman.engine.launch(launch)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "nvidia.yaml").touch()
    box = podman.engine._container(launch, [])
    assert box is not None
    assert "--device=nvidia.com/gpu=3" in box["commands"][0]
