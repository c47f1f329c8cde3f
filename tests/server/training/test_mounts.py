"""Datasets and Models that a task mounts, at the door: which version, which part, who may (C11, C13)."""

from __future__ import annotations

from typing import Any

import pytest

from support.contents import publish
from support.profiles import published
from support.site import Site
from support.tasks import task_document
from trainshed.model.content import ContentKind
from trainshed.model.provenance import check_manifest

FILES = {"README.md": b"read", "en/train/a.txt": b"one", "en/test/b.txt": b"two", "weights/model.bin": b"w"}
FORMS = ["team/{n}@1", "team/{n}@{d}", "team/{n}@sha256:{d}"]


@pytest.fixture
def words(module_site: Site) -> str:
    """The digest of a Dataset `team/words@1`; a Model with the same files is `team/base@1`."""
    published(module_site, ContentKind.MODELS, "team/base", FILES, version="1")
    return published(module_site, ContentKind.DATASETS, "team/words", FILES, version="1").manifest_sha256


def mount(
    ref: str, sub_path: str | None = None, kind: str = "dataset", at: str = "/mnt/data"
) -> dict[str, Any]:
    part = {} if sub_path is None else {"sub_path": sub_path}
    return {"type": kind, "ref": ref, "mount_path": at, **part}


def faults(site: Site, *mounts: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """What both doors say is wrong with a task; they agree, and nothing was created."""
    before = site.get("/v1/tasks").json()["items"]
    document = task_document(mounts=list(mounts), **fields)
    said, validated = site.post("/v1/jobs", document), site.post("/v1/jobs/validate", document)
    assert (said.status_code, validated.status_code) == (422, 422), said.text
    assert said.json()["code"] == "INVALID_SPEC" or len(said.json()["errors"]) == 1
    assert validated.json()["errors"] == said.json()["errors"]
    assert site.get("/v1/tasks").json()["items"] == before
    return list(said.json()["errors"])


@pytest.mark.usefixtures("words")
def test_C11_a_sub_path_that_the_content_has_not_is_refused_with_everything_else(module_site: Site):
    found = faults(
        module_site,
        mount("team/words@1", "en/trian"),
        mount("team/base@1", "weights", "model", "/mnt/fine"),
        mount("team/base@1", "Weights/model.bin", "model", "/mnt/model"),
        mount("team/gone@1", at="/mnt/gone"),
        resource_type="gold",
    )
    by_path = {each["path"]: each for each in found}
    assert {path: each["code"] for path, each in by_path.items()} == {
        "spec.resource_type": "RESOURCE_TYPE_UNKNOWN",
        "spec.mounts[0].sub_path": "MOUNT_SUB_PATH_UNKNOWN",
        "spec.mounts[2].sub_path": "MOUNT_SUB_PATH_UNKNOWN",
        "spec.mounts[3].ref": "MOUNT_DENIED",
    }
    first, second = by_path["spec.mounts[0].sub_path"], by_path["spec.mounts[2].sub_path"]
    assert first["message"] == (
        "Dataset team/words@1 has no file or folder `en/trian`; in `en` it has test/, train/ "
        "(did you mean `en/train`?)"
    )
    assert "Model team/base@1" in second["message"]
    assert "(did you mean `weights/model.bin`?)" in second["message"]


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(
    "sub_path",
    ["nope", "en/train/a.txt/deeper", "en/train/a", "e", "README.md/x", "en/train/c.txt", "wörter"],
)
def test_C11_what_is_no_file_and_no_folder_of_the_content_is_refused(module_site: Site, sub_path: str):
    [fault] = faults(module_site, mount("team/words@1", sub_path))
    assert (fault["path"], fault["code"]) == ("spec.mounts[0].sub_path", "MOUNT_SUB_PATH_UNKNOWN")
    assert f"`{sub_path}`" in fault["message"]
    refused = module_site.post("/v1/jobs", task_document(mounts=[mount("team/words@1", sub_path)]))
    assert refused.json()["hint"] == "`trainshed dataset files team/words@1` lists its files."


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("sub_path", [None, "en", "en/train", "en/train/a.txt", "README.md", "weights"])
def test_C11_a_folder_or_a_file_of_the_content_is_accepted(module_site: Site, sub_path: str | None):
    document = task_document(mounts=[mount("team/words@1", sub_path)])
    assert module_site.post("/v1/jobs/validate", document).status_code == 200
    answer = module_site.post("/v1/jobs", document)
    assert answer.status_code == 201, answer.text
    [made] = module_site.get(f"/v1/tasks/{answer.json()['name']}").json()["spec"]["mounts"]
    assert (made.get("sub_path"), made["read_only"]) == (sub_path, True)


@pytest.mark.parametrize("scheme", ["", "envloop://datasets/"])
@pytest.mark.parametrize("form", FORMS)
def test_C11_a_reference_is_a_label_or_a_digest_in_each_of_its_spellings(
    module_site: Site, words: str, scheme: str, form: str
):
    ref = scheme + form.format(n="words", d=words)
    answer = module_site.post("/v1/jobs", task_document(mounts=[mount(ref, "en")]))
    assert answer.status_code == 201, answer.text
    document = module_site.get(f"/v1/jobs/{answer.json()['job_id']}/manifest").json()
    [trial] = check_manifest(document)["trials"]
    assert [each["manifest_sha256"] for each in trial["contents"]] == [words]


def test_C11_an_alias_of_the_catalogue_may_be_pinned_as_the_contract_writes_it(site: Site):
    made = published(site, ContentKind.MODELS, "team/base", FILES, version="1")
    digest = made.manifest_sha256
    document = site.get("/v1/catalog").json()["document"]
    document["aliases"] = [{"id": "llama-8b", "type": "model", "ref": f"team/base@sha256:{digest}"}]
    assert site.request("PUT", "/v1/catalog", {"document": document}).status_code == 200
    [fault] = faults(site, mount("llama-8b", "nope", "model"))
    assert "Model team/base@1 has no file or folder `nope`" in fault["message"]
    assert site.post("/v1/jobs", task_document(mounts=[mount("llama-8b", kind="model")])).status_code == 201


def test_C11_of_a_content_that_the_project_may_not_read_no_file_is_told(site: Site):
    site.add_project("other")
    publish(site, "theirs/words", {"secret-name.txt": b"s"}, version="1", key=site.add_key("other"))
    [fault] = faults(site, mount("theirs/words@1", "secret"))
    assert (fault["path"], fault["code"]) == ("spec.mounts[0].ref", "MOUNT_DENIED")
    assert "secret-name" not in str(fault)


def test_C55_the_same_request_again_answers_its_task_and_asks_no_store(site: Site):
    made = published(site, ContentKind.DATASETS, "team/words", FILES, version="1")
    document = task_document(mounts=[mount("team/words@1", "en")])
    first = site.post("/v1/jobs", document)
    assert first.status_code == 201, first.text
    site.services.blobs.delete(made.manifest_sha256)
    again = site.post("/v1/jobs", document)
    assert (again.status_code, again.json()["job_id"]) == (200, first.json()["job_id"])


def test_C11_a_manifest_that_cannot_be_read_is_no_fault_of_the_task(site: Site):
    made = published(site, ContentKind.DATASETS, "team/words", FILES, version="1")
    site.services.blobs.delete(made.manifest_sha256)
    document = task_document(mounts=[mount("team/words@1", "en")])
    answer = site.post("/v1/jobs", document)
    assert (answer.status_code, answer.json()["code"]) == (503, "STORAGE_UNAVAILABLE")
    wrong = task_document(mounts=[mount("team/words@1", "en")], resource_type="gold")
    answer = site.post("/v1/jobs", wrong)
    assert [each["code"] for each in answer.json()["errors"]] == ["RESOURCE_TYPE_UNKNOWN"]
