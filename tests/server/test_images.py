"""Images at submission: which one runs, by which digest, what is refused before there is a Job (E41-E45)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_server import FakeServer, Handler, Reply, Request, in_turn
from support.registry import FOREIGN, Registry, running_registry
from support.runners import definition, repository
from support.scripted_registry import MANIFESTS, host_of, image, name_at, serving, sha256
from support.site import Site, open_site, submission
from trainshed.content.registry import RegistryClient
from trainshed.model.images import RegistryRules, machine_architecture
from trainshed.sdk.runner_tree import freeze
from trainshed.store import settings
from trainshed.store.database import Database

PATH = "spec.image"


@pytest.fixture
def site(database: Database, tmp_path: Path) -> Iterator[Site]:
    """A site whose engine runs images, on each kind of database in turn."""
    client = RegistryClient(RegistryRules(), attempts=2)
    with open_site(database, tmp_path / "data", registries=client) as opened:
        yield opened
    client.close()


@pytest.fixture
def image_site(make_site: Callable[..., Site]) -> Iterator[Site]:
    """The same on SQLite."""
    client = RegistryClient(RegistryRules(), attempts=2)
    yield make_site(registries=client)
    client.close()


@pytest.fixture
def scripted() -> Iterator[FakeServer]:
    with FakeServer(serving(*image(machine_architecture()))) as server:
        yield server


def trials_of(site: Site, job: dict[str, Any]) -> list[dict[str, Any]]:
    return site.get(f"/v1/jobs/{job['job_id']}").json()["training"]["trials"]


def several(request_id: str, *images: str | None) -> dict[str, Any]:
    """A submission with one Trial for each image."""
    one = submission(request_id)["spec"]
    named = [{**one, **({"image": name} if name else {})} for name in images]
    trials = [{"name": f"t{number}", "spec": spec} for number, spec in enumerate(named)]
    return {"type": "train", "request_id": request_id, "trials": trials}


def refused(site: Site, document: dict[str, Any]) -> tuple[int, str, list[tuple[str, str, str]]]:
    """Status, code and faults of a refusal; nothing was stored."""
    response = site.post("/v1/jobs", document)
    assert site.get("/v1/jobs").json()["items"] == []
    body = response.json()
    faults = [(fault["path"], fault["code"], fault["message"]) for fault in body["errors"]]
    return response.status_code, body["code"], faults


def publish_with_image(site: Site, folder: Path, named: str) -> str:
    repository(folder, {"runner.toml": definition(image=named), "main.sh": "true\n"})
    runner = freeze(folder)
    for file in runner.files:
        site.request("PUT", f"/v1/content/blobs/{file.sha256}", file.read())
    body = {**runner.publication().as_document(), "source_ref": "main"}
    published = site.post("/v1/runners/team/imaged/revisions", body)
    assert published.status_code == 201, published.text
    return f"team/imaged@{runner.commit}"


def test_E41_the_image_of_the_request_runs_and_without_one_the_runners_own(
    site: Site, registry: Registry, tmp_path: Path
):
    own = registry.push(registry.image("empty", marker="own"), "e41/own", "1")
    asked = registry.push(registry.image("empty", marker="asked"), "e41/asked", "1")
    runner = publish_with_image(site, tmp_path / "runner", registry.name("e41/own", "1"))
    request = several("r", None, registry.name("e41/asked", "1"))
    for trial in request["trials"]:
        trial["spec"]["runner"] = runner
    job = site.post("/v1/jobs", request).json()
    first, second = trials_of(site, job)
    assert first["image"] == {
        "requested": registry.name("e41/own", "1"),
        "resolved": registry.name("e41/own", digest=own),
        "digest": own,
    }
    assert (second["image"]["digest"], second["image"]["requested"]) == (
        asked,
        registry.name("e41/asked", "1"),
    )
    bare = site.submit("bare")
    assert trials_of(site, bare)[0]["image"] is None


def test_E42_E62_the_digest_is_stored_with_the_trial_before_anything_is_allocated(
    site: Site, registry: Registry
):
    images = [registry.image(), registry.image(architecture=FOREIGN)]
    digest = registry.push_index(images, "e42/index", "1")
    (trial,) = trials_of(site, site.submit(image=registry.name("e42/index", "1")))
    assert trial["image"]["digest"] == digest
    assert trial["attempts"] == []
    for path in ("", "/detail", "/snapshot"):
        found = site.get(f"/v1/trials/{trial['trial_id']}{path}").json()
        assert found["image"] == trial["image"]


def test_E31_E43_a_tag_that_moves_after_acceptance_changes_nothing(site: Site, registry: Registry):
    old = registry.push(registry.image("empty", marker="before"), "e43/tag", "v1")
    name = registry.name("e43/tag", "v1")
    job = site.submit("first", image=name)
    new = registry.push(registry.image("empty", marker="after"), "e43/tag", "v1")
    asked = len(registry.requests())
    again = site.submit("first", image=name)  # E25: a retry keeps what was frozen
    assert again["job_id"] == job["job_id"]
    assert registry.requests()[asked:] == []
    registry.delete("e43/tag", new)
    assert site.submit("first", image=name)["job_id"] == job["job_id"]
    assert trials_of(site, job)[0]["image"]["digest"] == old != new


def test_E28_another_image_under_the_same_request_id_is_a_conflict_that_asks_nobody(
    site: Site, scripted: FakeServer
):
    site.submit("r", image=name_at(scripted))
    asked = len(scripted.seen)
    response = site.post("/v1/jobs", submission("r", image=name_at(scripted, "2")))
    assert (response.status_code, response.json()["code"]) == (409, "JOB_REQUEST_CONFLICT")
    assert [fault["path"] for fault in response.json()["errors"]] == ["trials[0].spec.image"]
    assert len(scripted.seen) == asked


def test_E44_an_image_that_needs_credentials_is_refused_and_leaves_no_job(site: Site, registry: Registry):
    with running_registry(private=True) as private:
        private.push(private.image("empty"), "team/secret", "1")
        name = private.name("team/secret", "1")
        status, code, [(path, _, message)] = refused(site, submission(image=name))
    assert (status, code, path) == (422, "INVALID_EXECUTION_CONFIG", PATH)
    assert f"the image `{name}` needs credentials" in message


def test_A10_an_image_that_cannot_be_resolved_is_refused_and_leaves_no_job(site: Site, registry: Registry):
    registry.push(registry.image(architecture=FOREIGN), "a10/foreign", "1")
    names = [registry.name("a10/none", "1"), registry.name("a10/foreign", "1")]
    status, code, faults = refused(site, several("r", None, *names))
    assert (status, code) == (422, "INVALID_EXECUTION_CONFIG")
    assert [path for path, _, _ in faults] == ["trials[1].spec.image", "trials[2].spec.image"]
    assert "does not have the" in faults[0][2]
    assert f"it is for linux/{FOREIGN}" in faults[1][2]


def test_a_fault_of_the_runners_own_image_stands_at_the_runner(
    image_site: Site, scripted: FakeServer, tmp_path: Path
):
    runner = publish_with_image(image_site, tmp_path / "runner", name_at(scripted, "gone"))
    status, code, [(path, _, message)] = refused(image_site, submission(runner=runner))
    assert (status, code, path) == (422, "INVALID_EXECUTION_CONFIG", "spec.runner")
    assert "does not have the tag `gone`" in message


def test_one_name_is_asked_for_once_whether_it_is_good_or_not(image_site: Site, scripted: FakeServer):
    job = image_site.post("/v1/jobs", several("r", *[name_at(scripted)] * 16)).json()
    assert len(scripted.asked(f"HEAD {MANIFESTS}/1")) == 1
    digests = {trial["image"]["digest"] for trial in trials_of(image_site, job)}
    assert digests == {sha256(image(machine_architecture())[0])}
    response = image_site.post("/v1/jobs", several("s", *[name_at(scripted, "no")] * 16))
    assert len(scripted.asked(f"HEAD {MANIFESTS}/no")) == 1
    assert [fault["path"] for fault in response.json()["errors"]] == [
        f"trials[{n}].spec.image" for n in range(16)
    ]


def test_different_images_are_asked_for_at_the_same_time(image_site: Site, scripted: FakeServer):
    together = threading.Barrier(4)

    def wait(then: Reply | Handler) -> Handler:
        def handler(request: Request) -> Reply:
            together.wait(30)  # breaks, unless all four ask before any is answered
            return then if isinstance(then, Reply) else then(request)

        return handler

    for number in range(4):
        scripted.routes[f"HEAD {MANIFESTS}/t{number}"] = wait(scripted.routes[f"HEAD {MANIFESTS}/1"])
    job = image_site.post("/v1/jobs", several("r", *(name_at(scripted, f"t{n}") for n in range(4))))
    assert job.status_code == 201, job.text


def test_a_registry_that_fails_makes_the_submission_wait_for_better_times_and_a_retry_works(
    site: Site, scripted: FakeServer
):
    good = scripted.routes[f"HEAD {MANIFESTS}/1"]
    scripted.routes[f"HEAD {MANIFESTS}/1"] = in_turn(Reply(503), Reply(503), good)
    request = submission(image=name_at(scripted))
    status, code, [(path, _, message)] = refused(site, request)
    assert (status, code, path) == (503, "EXECUTOR_UNAVAILABLE", PATH)
    assert f"could not be asked for: {host_of(scripted)}: it answers 503" in message
    assert site.post("/v1/jobs", request).status_code == 201


def test_a_registry_that_limits_requests_is_passed_on_with_its_time(image_site: Site, scripted: FakeServer):
    scripted.routes[f"HEAD {MANIFESTS}/1"] = Reply(429, None, {"Retry-After": "90"})
    response = image_site.post("/v1/jobs", submission(image=name_at(scripted)))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "90")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"images": "podman is not installed"}, "podman is not installed"),
        ({}, "no engine of this deployment has said that it runs images"),
    ],
)
def test_where_no_engine_runs_images_the_reason_is_the_engines_and_no_registry_is_asked(
    image_site: Site, scripted: FakeServer, facts: dict[str, Any], reason: str
):
    def tell(connection: Any) -> None:
        settings.put(connection, settings.MACHINE, json.dumps(facts))

    image_site.services.database.write(tell)
    status, code, [(path, _, message)] = refused(image_site, submission(image=name_at(scripted)))
    assert (status, code, path) == (503, "EXECUTOR_UNAVAILABLE", PATH)
    assert message == f"no image can run here: {reason}"
    assert scripted.seen == []
    assert image_site.submit("without")["job_id"]


def test_an_image_for_the_controllers_machine_is_wanted_not_for_this_one(
    image_site: Site, registry: Registry
):
    digest = registry.push(registry.image(architecture=FOREIGN), "machine/foreign", "1")

    def tell(connection: Any) -> None:
        settings.put(connection, settings.MACHINE, json.dumps({"images": None, "architecture": FOREIGN}))

    image_site.services.database.write(tell)
    job = image_site.submit(image=registry.name("machine/foreign", "1"))
    assert trials_of(image_site, job)[0]["image"]["digest"] == digest


def test_what_else_is_wrong_is_told_before_any_registry_is_asked(image_site: Site, scripted: FakeServer):
    _, code, _ = refused(image_site, submission(image=name_at(scripted), timeout_seconds=0))
    assert code == "INVALID_EXECUTION_CONFIG"
    _, code, _ = refused(
        image_site, submission(image=name_at(scripted), resources={"gpu_type": "NO", "gpus": 1})
    )
    assert code == "UNSUPPORTED_HARDWARE"
    assert scripted.seen == []
