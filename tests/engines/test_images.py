"""Images: pulled once by digest, proved suitable, kept within a limit (E42-E45)."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

import pytest

from engines.conformance import Behaviour
from engines.containers import (
    PULLED,
    ImageGround,
    ImageHarness,
    built,
    image_engine,
    pulls_below,
    pushed,
    refusal,
)
from support.docker import downloads_of
from support.registry import FOREIGN, Registry, running_registry
from support.waiting import wait_until
from trainshed.engines import EngineError, Phase
from trainshed.engines.local import ImageSettings, LocalEngine, drivers
from trainshed.engines.local.images import _Preparation
from trainshed.model.images import machine_architecture

Progress = list[str]
_PREPARING = (
    sys.executable,
    "-c",
    """
import sys
from pathlib import Path
from trainshed.engines.local import ImageSettings, LocalEngine
engine = LocalEngine(Path(sys.argv[1]), images=ImageSettings(runtime=sys.argv[3]))
engine.prepare(sys.argv[2], print, lambda: False)
""",
)
"""A server's process that pulls the image ``argv[2]``."""
podman_only = pytest.mark.parametrize("runtime", ["podman"], indirect=True)
"""Where docker would run nothing but what podman has run."""


# Pulling


def _telling(said: Progress, say: Callable[[_Preparation, str], None]) -> Callable[[_Preparation, str], None]:
    """``say`` that also keeps what is said."""

    def telling(preparation: _Preparation, sentence: str) -> None:
        said.append(sentence)
        say(preparation, sentence)

    return telling


def test_E42_an_image_is_pulled_once_for_all_who_wait_for_it(
    fresh: Callable[..., LocalEngine],
    registry: Registry,
    runtime: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = fresh()
    image = built(registry, f"once-by-{runtime}", lambda _tree: None)
    said: Progress = []
    monkeypatch.setattr(_Preparation, "say", _telling(said, _Preparation.say))
    before = len(registry.requests())
    heard: list[Progress] = [[] for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda said: engine.prepare(image, said.append, lambda: False), heard))
    blobs = [line for line in registry.requests()[before:] if line.startswith("GET") and "/blobs/" in line]
    assert len(blobs) == len(set(blobs))
    assert all(each and image in each[0] and set(each) <= set(said) for each in heard)
    assert any("MiB" in sentence for sentence in said), "who looks late does not hear every sentence"
    before = len(registry.requests())
    engine.prepare(image, heard[0].append, lambda: False)
    fresh().prepare(image, heard[0].append, lambda: False)
    assert registry.requests()[before:] == []


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


@podman_only
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
    layer = registry.blob(registry.manifest(repository, digest)["layers"][-1]["digest"])
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


@podman_only
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


@pytest.fixture
def halting() -> Iterator[str]:
    """An image of a registry that sends half of its only layer and then no more."""
    whole, layer = 1 << 20, f"sha256:{'c' * 64}"
    config = json.dumps(
        {
            "os": "linux",
            "architecture": machine_architecture(),
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": f"sha256:{hashlib.sha256(config).hexdigest()}",
                "size": len(config),
            },
            "layers": [
                {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": whole}
            ],
        }
    ).encode()
    over = threading.Event()

    class Halting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            halts = self.path.endswith(layer)
            body = manifest if "/manifests/" in self.path else config if "/blobs/" in self.path else b""
            if "/manifests/" in self.path:
                self.send_header("Content-Type", "application/vnd.oci.image.manifest.v1+json")
            self.send_header("Content-Length", str(whole if halts else len(body)))
            self.end_headers()
            self.wfile.write(os.urandom(whole // 2) if halts else body)
            if halts:
                over.wait()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Halting) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            digest = hashlib.sha256(manifest).hexdigest()
            yield f"127.0.0.1:{server.server_port}/team/half@sha256:{digest}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def came(request: pytest.FixtureRequest, runtime: str, tmp_path: Path) -> Callable[[], int]:
    """How many bytes of files pulls have brought and not yet unpacked."""
    place = tmp_path / "engine/images/downloads"
    if runtime == "docker":
        place = downloads_of(request.getfixturevalue("docker_host"))

    def came() -> int:
        found = 0
        for file in place.rglob("*"):
            with suppress(FileNotFoundError):
                found += file.lstat().st_size if file.is_file() else 0
        return found

    return came


def test_a_pull_that_is_stopped_leaves_nothing_of_its_download(
    fresh: Callable[..., LocalEngine], halting: str, came: Callable[[], int], tmp_path: Path
) -> None:
    engine = fresh()
    downloads = tmp_path / "engine/images/downloads"
    brought = engine._containers.runtime.downloaded
    for _ in range(2):
        given_up = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(engine.prepare, halting, lambda _sentence: None, given_up.is_set)
            wait_until(lambda: came() > 0, what="the first half of the layer")
            wait_until(lambda: any(map(brought, downloads.iterdir())), what="word of it")
            given_up.set()
            with pytest.raises(EngineError, match="nobody waits"):
                waiting.result(timeout=30)
        wait_until(lambda: not list(downloads.iterdir()), what="the removal of the download")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.prepare, halting, lambda _sentence: None, lambda: False)
        wait_until(lambda: came() > 0, what="the first half of the layer")
        engine.close()
        with pytest.raises(EngineError, match="nobody waits"):
            waiting.result(timeout=30)
    assert list(downloads.iterdir()) == []


def test_a_pull_that_stalls_leaves_nothing_of_its_download(
    fresh: Callable[..., LocalEngine], halting: str, came: Callable[[], int], tmp_path: Path
) -> None:
    error = refusal(fresh(replace(PULLED, stall_seconds=1)), halting)
    assert "nothing came for 1 seconds" in error.message
    assert list((tmp_path / "engine/images/downloads").iterdir()) == []


def test_what_a_killed_server_was_pulling_goes_when_the_next_one_starts(
    fresh: Callable[..., LocalEngine], runtime: str, halting: str, came: Callable[[], int], tmp_path: Path
) -> None:
    server = subprocess.Popen([*_PREPARING, str(tmp_path / "engine"), halting, runtime])
    try:
        wait_until(lambda: came() > 0, what="the first half of the layer")
    finally:
        server.kill()
        server.wait()
    wait_until(lambda: not pulls_below(tmp_path), what="the end of the pull")
    if runtime == "podman":  # docker's daemon sees to it by itself
        assert came() > 0
    fresh().sweep(())
    wait_until(lambda: came() == 0, what="the removal of the download")
    assert list((tmp_path / "engine/images/downloads").iterdir()) == []


def test_a_pull_ends_with_the_server_that_was_killed_and_the_next_one_pulls_anew(
    fresh: Callable[..., LocalEngine], runtime: str, registry: Registry, silent: str, tmp_path: Path
) -> None:
    server = subprocess.Popen([*_PREPARING, str(tmp_path / "engine"), silent, runtime])
    try:
        wait_until(lambda: pulls_below(tmp_path) != [], what="the pull")
    finally:
        server.kill()
        server.wait()
    wait_until(lambda: not pulls_below(tmp_path), what="the end of the pull")
    assert "no Bash" in refusal(fresh(), pushed(registry, f"after-a-crash-{runtime}")).message


# E45: what an image must have


def test_E45_an_image_without_bash_is_refused(fresh: Callable[..., LocalEngine], registry: Registry) -> None:
    error = refusal(fresh(), pushed(registry, "no-bash"))
    assert (error.code, error.retryable) == ("IMAGE_UNSUITABLE", False)
    assert "has no Bash" in error.message


@podman_only
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


def linked(registry: Registry, place: str, target: str) -> str:
    """An image that has a symbolic link at this place."""

    def change(tree: Path) -> None:
        link = tree / place
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_dir():
            link.rmdir()
        link.symlink_to(target)

    return built(registry, f"link-{place}-to-{target}".replace("/", "-").replace(".", ""), change)


@pytest.mark.parametrize(
    ("runtime", "place", "target"),
    [
        ("podman", "run/work", "/etc"),
        ("podman", "tmp", "/../../../../tmp/nowhere"),
        ("podman", "tmp", "tmp"),
        ("podman", "var/tmp", "tmp"),
        ("podman", "run/content", "content"),
        ("docker", "run/work", "/etc"),  # its words; where links lead is found by the same code
        ("docker", "tmp", "tmp"),
    ],
    indirect=["runtime"],
)
def test_E45_an_image_with_a_link_where_trials_have_folders_of_their_own_is_refused_for_good(
    fresh: Callable[..., LocalEngine], registry: Registry, place: str, target: str
) -> None:
    error = refusal(fresh(), linked(registry, place, target))
    assert (error.code, error.retryable) == ("IMAGE_UNSUITABLE", False), error.message
    assert f"/{place} is a symbolic link" in error.message


@podman_only
@pytest.mark.parametrize(("place", "target"), [("var/tmp", "../tmp"), ("var/run", "/run")])
def test_an_image_with_links_that_do_no_harm_is_taken(
    fresh: Callable[..., LocalEngine], registry: Registry, place: str, target: str
) -> None:
    engine, image = fresh(), linked(registry, place, target)
    engine.prepare(image, lambda _sentence: None, lambda: False)
    assert held(engine, image)


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


@podman_only
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
    settings = replace(PULLED, cache_bytes=0)
    with image_engine(tmp_path, image_ground, images=settings) as harness:
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


# Whether images run at all


def test_why_no_image_runs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = LocalEngine(tmp_path / "off", images=ImageSettings(runtime="none"))
    assert off.image_facts() == {
        "images": "its administrator switched images off (images.runtime)",
        "image_runtime": None,
        "image_runtime_note": None,
    }
    error = refusal(off, f"x.example/y@sha256:{'c' * 64}")
    assert (error.code, error.retryable) == ("IMAGE_UNSUITABLE", False)
    assert "switched images off" in error.message
    off.close()
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setattr("trainshed.engines.local.runtimes.search_path", lambda: str(programs))
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
