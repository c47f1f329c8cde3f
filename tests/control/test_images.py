"""Freezing images: those that wait for registries hold threads that answer requests, so they are few."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.fake_server import FakeServer, Reply, Request
from support.scripted_registry import MANIFESTS, image, name_at, serving
from support.waiting import wait_until
from trainshed.content.registry import RegistryClient
from trainshed.control.frozen import FrozenImage
from trainshed.control.images import MAX_WAITING_SUBMISSIONS, ImageFreezer
from trainshed.model.errors import Refusal
from trainshed.model.images import RegistryRules, machine_architecture
from trainshed.store import settings
from trainshed.store.database import Database


@pytest.fixture
def freezer(database: Database) -> Iterator[ImageFreezer]:
    database.write(lambda c: settings.put(c, settings.MACHINE, json.dumps({"images": None})))
    client = RegistryClient(RegistryRules(), attempts=1)
    yield ImageFreezer(database, client)
    client.close()


def test_only_so_many_submissions_wait_for_registries_and_then_there_is_room_again(freezer: ImageFreezer):
    go_on = threading.Event()
    routes = serving(*image(machine_architecture()))
    good = routes[f"HEAD {MANIFESTS}/1"]
    assert isinstance(good, Reply)

    def wait(_: Request) -> Reply:
        go_on.wait(60)
        return good

    with FakeServer({**routes, f"HEAD {MANIFESTS}/1": wait}) as server:
        name = name_at(server)
        with ThreadPoolExecutor(MAX_WAITING_SUBMISSIONS) as threads:
            waiting = [threads.submit(freezer.freeze, [name]) for _ in range(MAX_WAITING_SUBMISSIONS)]
            wait_until(lambda: len(server.seen) == MAX_WAITING_SUBMISSIONS, what="all to ask")
            with pytest.raises(Refusal) as refused:
                freezer.freeze([name])
            assert (refused.value.code, refused.value.retry_after) == ("RATE_LIMITED", 1)
            go_on.set()
            answers = [each.result() for each in waiting]
        assert all(isinstance(answer[name], FrozenImage) for answer in answers)
        assert isinstance(freezer.freeze([name])[name], FrozenImage)


def test_names_share_one_deadline_and_each_has_its_own_answer(freezer: ImageFreezer):
    with FakeServer(serving(*image(machine_architecture()))) as server:
        good, gone, nobody = name_at(server), name_at(server, "gone"), "127.0.0.1:1/no/registry"
        found = freezer.freeze([good, gone, nobody, good])
    assert list(found) == [good, gone, nobody]
    assert isinstance(found[good], FrozenImage)
    codes = [answer.code for answer in (found[gone], found[nobody]) if isinstance(answer, Refusal)]
    assert codes == ["INVALID_EXECUTION_CONFIG", "EXECUTOR_UNAVAILABLE"]
