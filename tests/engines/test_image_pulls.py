"""How pulls get on: what is told, what counts as a stall, and what another try brings again (C38)."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from engines.containers import PULLED, built, pulls_below, refusal
from support.faulty_registry import Fault, FaultyRegistry, faulty_registry
from support.processes import command_of
from support.registry import Image, Registry, bash_tree
from support.waiting import wait_until
from trainshed.content.registry import RegistryClient
from trainshed.engines import EngineError
from trainshed.engines.local import LocalEngine
from trainshed.jobkit import procs
from trainshed.model.images import RegistryRules, machine_architecture

LAYER = 1 << 20
podman_only = pytest.mark.parametrize("runtime", ["podman"], indirect=True)


@pytest.fixture
def faulty(registry: Registry) -> Iterator[FaultyRegistry]:
    with faulty_registry(registry) as running:
        yield running


def layered(registry: Registry, name: str, layers: int) -> str:
    """Push an image of Bash and of layers of `LAYER` random bytes each above; its digest.

    It has no Python, so nothing more is done with it once it came.
    """
    base: Image | None = None
    for number in range(layers + 1):
        tree = registry.folder / f"layer-{name}-{number}"
        tree.mkdir()
        tree.chmod(0o755)
        if number == 0:
            bash_tree(tree)
        else:
            (tree / f"layer-{number}").write_bytes(os.urandom(LAYER))
        base = registry.build(f"{name}-{number}", tree, base)
    assert base is not None
    return registry.push(base, f"team/{name}", "1")


@podman_only
def test_a_pull_that_unpacks_in_silence_goes_on_and_one_that_is_stuck_in_it_is_ended(
    fresh: Callable[..., LocalEngine], registry: Registry, tmp_path: Path
) -> None:
    def change(tree: Path) -> None:
        with (tree / "zeros").open("wb") as file:
            file.truncate(1 << 29)  # half a megabyte to bring, seconds to unpack

    image = built(registry, "silent", change)
    engine = fresh(replace(PULLED, stall_seconds=1))

    def unpackers() -> list[int]:
        every = {child for pid in pulls_below(tmp_path) for child in procs.descendants(pid)}
        return [pid for pid in every if command_of(pid).startswith("storage-")]

    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(refusal, engine, image)
        wait_until(unpackers, what="the process that unpacks")
        for pid in [*unpackers(), *pulls_below(tmp_path)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        error = stuck.result(timeout=60)
    assert (error.code, error.retryable) == ("IMAGE_PULL_FAILED", True)
    assert "nothing came for 1 seconds" in error.message
    wait_until(lambda: not unpackers() and not pulls_below(tmp_path), what="the end of the pull")
    engine.prepare(image, lambda _sentence: None, lambda: False)
    assert engine._containers.runtime.remove_image(image)


@podman_only
@pytest.mark.parametrize("fault", [Fault(halts_after=1000), Fault(status=503)], ids=["halts", "fails"])
def test_C38_another_try_brings_no_layer_again_that_came_in_its_order(
    fresh: Callable[..., LocalEngine], faulty: FaultyRegistry, fault: Fault
) -> None:
    repository = f"team/layers-{fault.status}".lower()
    digest = layered(faulty.registry, repository.partition("/")[2], 4)
    image, layers = faulty.name(repository, digest), faulty.layers(repository, digest)
    engine = fresh(replace(PULLED, stall_seconds=2))
    faulty.faults = {layers[1]: [fault] * 20}
    assert refusal(engine, image).retryable
    assert faulty.served[layers[0]] == 1
    faulty.faults = {layers[3]: [fault] * 20}
    assert refusal(engine, image).retryable
    came = dict(faulty.served)
    faulty.faults = {}
    with pytest.raises(EngineError, match="has no Python"):
        engine.prepare(image, lambda _sentence: None, lambda: False)
    again = [layers.index(each) for each in layers if faulty.served[each] != came.get(each, 0)]
    assert again == [3, 4], "those below were there, one after the other"


def test_what_is_told_of_a_pull_is_a_share_of_what_it_brings(
    fresh: Callable[..., LocalEngine], faulty: FaultyRegistry, runtime: str
) -> None:
    repository = f"team/shares-{runtime}"
    digest = layered(faulty.registry, f"shares-{runtime}", 3)
    image, layers = faulty.name(repository, digest), faulty.layers(repository, digest)
    half = [Fault(halts_after=LAYER // 2)]
    with closing(RegistryClient(RegistryRules())) as client:

        def sizes(name: str) -> Mapping[str, int]:
            return client.layers(name, machine_architecture())

        whole, last = sum(sizes(image).values()), sizes(image)[layers[-1]]
        engine = fresh(replace(PULLED, stall_seconds=2, layers=sizes))
        faulty.faults = {layers[-1]: half * 9}
        totals, shares = told(refused(engine, image))
        assert totals == {size(whole)}
        if runtime == "podman":  # docker's daemon is behind, and keeps no layer of a pull that failed
            assert shares[-1] == pytest.approx(100 * (whole - last + LAYER / 2) / whole, abs=1.5)
            totals, shares = told(refused(engine, image))
            assert totals == {size(last)}
            assert shares[-1] == pytest.approx(100 * LAYER / 2 / last, abs=1.5)
        assert shares == sorted(shares)
        assert 0 < shares[-1] < 100


def refused(engine: LocalEngine, image: str) -> list[str]:
    """What is said of a pull that stalls."""
    said: list[str] = []
    assert refusal(engine, image, said).retryable
    return said


def told(said: list[str]) -> tuple[set[str], list[int]]:
    """Of how much the shares are, and the shares."""
    found = [match for line in said if (match := re.fullmatch(r"Pulling \S+: (\d+) % of (.+)\.", line))]
    assert found, said
    return {match[2] for match in found}, [int(match[1]) for match in found]


def size(count: int) -> str:
    return f"{count / 1e6:.3g} MB"
