"""Publishing Runners over HTTP: proof, names, visibility, withdrawal (E2, E5, E7-E9, promise P7)."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.runners import definition, repository
from support.site import Site, submission
from trainshed.cli.runner import checkpoint_rules
from trainshed.model.access import Permission
from trainshed.sdk.runner_tree import FrozenRunner, freeze
from trainshed.store import queue

MAIN = "echo hello\n"


@pytest.fixture
def frozen(tmp_path: Path) -> FrozenRunner:
    files = {"runner.toml": definition(params=("run_command",)), "main.sh": MAIN, "lib/a b.txt": "x"}
    repository(tmp_path / "repo", files)
    return freeze(tmp_path / "repo")


def upload(site: Site, runner: FrozenRunner, key: str | None = None) -> None:
    digests = [file.sha256 for file in runner.files]
    missing = site.post("/v1/content/blobs/missing", {"sha256": digests}, key=key).json()["missing"]
    for file in runner.files:
        if file.sha256 in missing:
            answer = site.request("PUT", f"/v1/content/blobs/{file.sha256}", file.read(), key=key)
            assert answer.json() == {"sha256": file.sha256, "size": file.size}


def publish(site: Site, runner: FrozenRunner, name: str = "team/train", key: str | None = None, **more: Any):
    upload(site, runner, key)
    body = {**runner.publication().as_document(), "source_ref": "main", **more}
    return site.post(f"/v1/runners/{name}/revisions", body, key=key)


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_E8_a_published_revision_is_named_by_its_commit_and_readable_with_its_files(site: Site, frozen):
    answer = publish(site, frozen)
    assert answer.status_code == 201, answer.text
    item = answer.json()
    assert item["selector"] == f"team/train@{frozen.commit}"
    assert (item["source_ref"], item["visibility"], item["entrypoint"]) == ("main", "project", "main.sh")
    assert item["params"] == ["run_command"]
    for named in (frozen.commit, "main", frozen.commit[:12]):
        detail = site.get(f"/v1/runners/team/train/{named}").json()
        assert detail["revision"] == frozen.commit
        assert {file["path"] for file in detail["files"]} == {"runner.toml", "main.sh", "lib/a b.txt"}
    content = site.get(f"/v1/runners/team/train/{frozen.commit}/files/lib/a%20b.txt")
    assert (content.status_code, content.content) == (200, b"x")
    assert site.get("/v1/runners/team/train/main/files/main.sh").text == MAIN
    assert code(site.get("/v1/runners/team/train/main/files/nix")) == (404, "NOT_FOUND")
    newest = site.get("/v1/runners/team/train").json()
    assert newest["refs"] == {"main": frozen.commit}
    assert [item["revision"] for item in site.get("/v1/runners/team/train/revisions").json()["items"]] == [
        frozen.commit
    ]


def test_a_runner_says_what_it_keeps_of_its_checkpoints(sqlite_site: Site, tmp_path: Path, frozen):
    rules = '[checkpoints]\nresume = true\nbest = {metric = "eval_loss", mode = "min"}\n'
    repository(tmp_path / "rules", {"runner.toml": f"{definition()}\n{rules}", "main.sh": MAIN})
    runner = freeze(tmp_path / "rules")
    item = publish(sqlite_site, runner).json()
    best = {"metric": "eval_loss", "mode": "min", "keep": 1}
    assert item["checkpoints"] == {"resume": True, "keep_last": None, "best": best}
    shown = sqlite_site.get(f"/v1/runners/team/train/{runner.commit}").json()
    assert shown["checkpoints"] == item["checkpoints"]
    lines = str(checkpoint_rules(item)).splitlines()
    assert lines == [
        "a Job may resume from one (`--resume-from`)",
        "keeps the 1 with the lowest eval_loss of each Trial",
    ]
    other = publish(sqlite_site, frozen, "team/other").json()
    assert other["checkpoints"] is None
    assert checkpoint_rules(other) is None


def test_publishing_the_same_commit_again_answers_200_and_changes_nothing(site: Site, frozen):
    first, again = publish(site, frozen), publish(site, frozen)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()


def test_E25_a_moved_ref_names_the_new_revision_and_jobs_keep_what_they_froze(
    site: Site, tmp_path: Path, frozen
):
    publish(site, frozen)
    job = site.submit("r", runner="team/train@main")
    repository(tmp_path / "repo", {"main.sh": "echo two\n"})
    second = freeze(tmp_path / "repo")
    assert publish(site, second).status_code == 201
    assert site.get("/v1/runners/team/train/main").json()["revision"] == second.commit
    again = site.post("/v1/jobs", submission("r", runner="team/train@main"))
    assert again.status_code == 200
    assert again.json()["training"]["trials"][0]["runner"]["revision"] == frozen.commit
    assert again.json()["job_id"] == job["job_id"]


def test_P7_files_that_are_not_those_of_the_commit_are_refused(site: Site, frozen):
    upload(site, frozen)
    other = b"echo something else\n"
    digest = hashlib.sha256(other).hexdigest()
    site.request("PUT", f"/v1/content/blobs/{digest}", other)
    body = frozen.publication().as_document()
    for file in body["files"]:
        if file["path"] == "main.sh":
            file |= {"sha256": digest, "size": len(other)}
    assert code(site.post("/v1/runners/team/train/revisions", body)) == (409, "RUNNER_HASH_MISMATCH")
    body = {**frozen.publication().as_document(), "commit": "0" * 40}
    assert code(site.post("/v1/runners/team/train/revisions", body)) == (409, "RUNNER_HASH_MISMATCH")
    assert site.get("/v1/runners").json()["items"][0]["name"] == "envloop/bash"


def test_blobs_must_be_uploaded_first_and_be_what_their_name_says(site: Site, frozen):
    answer = site.post("/v1/runners/team/train/revisions", frozen.publication().as_document())
    assert code(answer) == (404, "BLOB_NOT_FOUND")
    assert len(answer.json()["missing"]) == 3
    wrong = site.request("PUT", f"/v1/content/blobs/{'0' * 64}", b"x")
    assert code(wrong) == (409, "CONTENT_HASH_MISMATCH")
    assert not site.services.blobs.exists("0" * 64)
    assert code(site.request("PUT", "/v1/content/blobs/..%2Fx", b"x")) == (422, "INVALID_SPEC")


@pytest.mark.parametrize(
    "change",
    [
        {"commit": "main"},
        {"commit_object": "***"},
        {"tree_objects": []},
        {"files": [{"path": "x"}]},
        {"source_ref": "HEAD"},
        {"source_ref": "a b"},
        {"source_ref": "0" * 40},
        {"visibility": "everyone"},
        {"dirty": "no"},
        {"colour": "red"},
    ],
)
def test_a_malformed_publication_is_refused(sqlite_site: Site, frozen, change: dict[str, Any]):
    assert code(publish(sqlite_site, frozen, **change)) == (422, "INVALID_RUNNER")


@pytest.mark.parametrize("name", ["-a/b", "a/b%20c", "%C3%A4/b", "a/%2E%2E", "a/b%00", "a/%FF"])
def test_a_malformed_name_is_refused(sqlite_site: Site, frozen, name: str):
    assert code(publish(sqlite_site, frozen, name)) == (422, "INVALID_RUNNER")


@pytest.mark.parametrize("name", [f"{'n' * 129}/b", f"a/{'x' * 129}", f"a/{'x' * 6000}"])
def test_a_name_longer_than_128_characters_is_refused_with_the_rule(site: Site, frozen, name: str):
    answer = publish(site, frozen, name)
    assert code(answer) == (422, "INVALID_RUNNER")
    assert "at most 128 characters" in answer.json()["message"]
    assert publish(site, frozen, f"{'n' * 128}/{'x' * 128}").status_code == 201


def test_a_namespace_belongs_to_the_project_that_first_publishes_in_it(site: Site, frozen):
    site.add_project("other")
    other = site.add_key("other")
    assert publish(site, frozen, "team/train", other).status_code == 201
    mine = site.add_key("default")
    assert code(publish(site, frozen, "team/other", mine)) == (409, "NAMESPACE_TAKEN")
    assert code(publish(site, frozen, "envloop/mine", other)) == (409, "NAMESPACE_TAKEN")
    assert publish(site, frozen, "team/owners").status_code == 201
    assert code(site.get("/v1/runners/team/train", key=mine)) == (404, "RUNNER_NOT_FOUND")


def test_E7_only_readable_revisions_are_listed(site: Site, frozen):
    site.add_project("other")
    other = site.add_key("other")
    publish(site, frozen)
    path = "/v1/runners/team/train"

    def listed() -> list[str]:
        return [item["name"] for item in site.get("/v1/runners", key=other).json()["items"]]

    assert listed() == ["envloop/bash"]
    shared = {"visibility": "projects", "projects": ["other"]}
    assert site.request("PUT", f"{path}/visibility", shared).json()["projects"] == ["other"]
    assert listed() == ["team/train", "envloop/bash"]
    assert site.get(path, key=other).json()["visibility"] == "projects"
    site.request("PUT", f"{path}/visibility", {"visibility": "project"})
    assert listed() == ["envloop/bash"]
    site.request("PUT", f"{path}/visibility", {"visibility": "public"})
    assert listed() == ["team/train", "envloop/bash"]
    refused = site.request("PUT", f"{path}/visibility", {"visibility": "project"}, key=other)
    assert code(refused) == (404, "RUNNER_NOT_FOUND")
    for body in ({}, {"visibility": "x"}, {"visibility": "public", "projects": ["other"]}):
        assert code(site.request("PUT", f"{path}/visibility", body)) == (422, "INVALID_SPEC")
    nobody = {"visibility": "projects", "projects": ["nobody"]}
    assert code(site.request("PUT", f"{path}/visibility", nobody)) == (404, "PROJECT_NOT_FOUND")


def test_a_withdrawn_revision_is_not_found_until_it_is_published_again(site: Site, frozen):
    publish(site, frozen)
    path = f"/v1/runners/team/train/{frozen.commit}"
    assert site.request("DELETE", path).json()["withdrawn"] is True
    assert code(site.get(path)) == (404, "RUNNER_NOT_FOUND")
    assert code(site.request("DELETE", path)) == (404, "RUNNER_NOT_FOUND")
    refused = site.post("/v1/jobs", submission(runner=f"team/train@{frozen.commit}"))
    assert code(refused) == (404, "RUNNER_NOT_FOUND")
    assert publish(site, frozen).status_code == 200
    assert site.get(path).status_code == 200


def test_E5_reading_runners_reserves_nothing(site: Site):
    key = site.add_key("default", Permission.RUNNER_READ)
    for path in ("/v1/runners", "/v1/runners/envloop/bash", "/v1/runners/envloop/bash/main"):
        assert site.get(path, key=key).status_code == 200
    with site.services.database.read() as connection:
        assert queue.unreleased(connection) == []


def test_E9_a_reader_sees_runners_revisions_and_each_ones_definition_and_files_and_changes_nothing(
    site: Site, tmp_path: Path, frozen
):
    reader = site.add_key("default", Permission.RUNNER_READ)
    publish(site, frozen)
    repository(tmp_path / "repo", {"runner.toml": definition(outputs=("out/**",)), "main.sh": "echo two\n"})
    second = freeze(tmp_path / "repo")
    publish(site, second)

    def read(path: str) -> Any:
        answer = site.get(f"/v1/runners{path}", key=reader)
        assert answer.status_code == 200, answer.text
        return answer

    assert {item["name"] for item in read("").json()["items"]} == {"team/train", "envloop/bash"}
    revisions = [item["revision"] for item in read("/team/train/revisions").json()["items"]]
    assert revisions == [second.commit, frozen.commit]
    seen = {}
    for revision in (*revisions, *revisions):  # there and back again: each stays what it is
        detail = read(f"/team/train/{revision}").json()
        files = {
            file["path"]: read(f"/team/train/{revision}/files/{quote(file['path'])}").content
            for file in detail["files"]
        }
        assert [hashlib.sha256(data).hexdigest() for data in files.values()] == [
            file["sha256"] for file in detail["files"]
        ]
        assert seen.setdefault(revision, (detail, files)) == (detail, files)
    (_, before), (_, after) = seen[frozen.commit], seen[second.commit]
    assert (before["main.sh"], after["main.sh"]) == (MAIN.encode(), b"echo two\n")
    assert "lib/a b.txt" in before
    definitions = [seen[revision][0]["definition"] for revision in (frozen.commit, second.commit)]
    assert [list(each.get("params", {})) for each in definitions] == [["run_command"], []]
    assert definitions[1]["execution"]["outputs"] == ["out/**"]

    body = {**frozen.publication().as_document(), "source_ref": "main"}
    writes = [
        site.post("/v1/runners/team/train/revisions", body, key=reader),
        site.request("PUT", "/v1/runners/team/train/visibility", {"visibility": "public"}, key=reader),
        site.request("DELETE", f"/v1/runners/team/train/{frozen.commit}", key=reader),
        site.request("PUT", f"/v1/content/blobs/{hashlib.sha256(b'x').hexdigest()}", b"x", key=reader),
    ]
    assert {code(answer) for answer in writes} == {(403, "PERMISSION_DENIED")}
    for path in ("", "/team/train", "/team/train/revisions", f"/team/train/{frozen.commit}/files/main.sh"):
        for method in ("PUT", "PATCH", "DELETE"):
            assert site.request(method, f"/v1/runners{path}", {}, key=reader).status_code in {403, 404, 405}
    assert read(f"/team/train/{frozen.commit}").json() == seen[frozen.commit][0]
    assert read("/team/train").json()["visibility"] == "project"


def test_pages_of_runners_give_each_revision_once(site: Site, tmp_path: Path):
    commits = []
    for number in range(3):
        repository(tmp_path / "repo", {"runner.toml": definition(), "main.sh": f"echo {number}\n"})
        frozen = freeze(tmp_path / "repo")
        commits.append(frozen.commit)
        publish(site, frozen)
    first = site.get("/v1/runners?limit=3").json()
    second = site.get(f"/v1/runners?limit=3&cursor={first['next_cursor']}").json()
    found = [item["revision"] for item in first["items"] + second["items"]]
    assert found[:3] == commits[::-1]
    assert second["items"][0]["name"] == "envloop/bash"
    assert second["next_cursor"] is None


def test_the_objects_sent_must_be_base64_of_git_objects(site: Site, frozen):
    wrong = base64.b64encode(b"not a commit").decode()
    assert code(publish(site, frozen, commit_object=wrong)) == (409, "RUNNER_HASH_MISMATCH")
