"""Datasets as the published client reads them (contract E b9)."""

from __future__ import annotations

import base64

from support.contents import publish
from support.site import Site

TOML = b"""
[dataset]
type = "environment"
authors = ["Ada"]
description = "Tasks"
[configs.default.splits]
train = ["tasks/a*/**"]
test = ["tasks/b*/**"]
"""
FILES = {
    "dataset.toml": TOML,
    **{
        f"tasks/{letter}{n}/{name}": b"x"
        for letter in "ab"
        for n in range(3)
        for name in ("task.toml", "data")
    },
}


def encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def path(name: str, *parts: str) -> str:
    return "/".join(("/v1/datasets", encoded(name), *parts))


def test_b9_datasets_are_listed_with_type_splits_authors_and_the_time_of_reading(site: Site):
    publish(site, "team/envs", FILES, version="1", visibility="public")
    publish(site, "team/words", {"train.csv": b"1", "dev.csv": b"2"}, version="1")
    publish(site, "team/words", {"train.csv": b"1", "test.csv": b"2"}, version="2")
    page = site.get("/v1/datasets").json()
    assert page["observed_at"]
    words, envs = sorted(page["items"], key=lambda row: row["name"], reverse=True)
    assert words.keys() == {
        "name",
        "type",
        "visibility",
        "splits",
        "authors",
        "version_count",
        "catalog_updated_at",
    }
    assert (words["type"], words["visibility"], words["splits"]) == ("data", "private", ["train", "test"])
    assert (words["version_count"], words["authors"]) == (2, [])
    assert (envs["type"], envs["visibility"], envs["authors"]) == ("environment", "public", ["Ada"])

    def named(**query: str) -> list[str]:
        return [row["name"] for row in site.get("/v1/datasets", params=query).json()["items"]]

    assert named(type="environment") == ["team/envs"]
    assert named(type="trajectory") == []
    assert named(q="WOR") == ["team/words"]
    bad = site.get("/v1/datasets", params={"type": "x"})
    assert (bad.status_code, bad.json()["code"]) == (422, "INVALID_SPEC")
    first = site.get("/v1/datasets", params={"limit": "1"}).json()
    rest = site.get("/v1/datasets", params={"limit": "1", "cursor": first["next_cursor"]}).json()
    assert first["items"] + rest["items"] == page["items"]


def test_b9_a_dataset_its_versions_and_tasks_are_read_by_encoded_name(site: Site):
    publish(site, "team/envs", FILES, version="1")
    publish(site, "team/envs", {**FILES, "more": b""}, version="2")
    detail = site.get(path("team/envs")).json()
    assert (detail["version"], detail["description"]) == ("2", "Tasks")
    assert detail["configs"] == {"default": {"train": ["tasks/a*/**"], "test": ["tasks/b*/**"]}}
    versions = site.get(path("team/envs", "versions")).json()["items"]
    assert [(row["name"], row["version"]) for row in versions] == [("team/envs", "2"), ("team/envs", "1")]
    only = site.get(path("team/envs", "versions"), params={"version": "1"}).json()["items"]
    assert only == versions[1:]
    assert site.get(path("team/envs", "versions"), params={"version": "9"}).json()["items"] == []
    for ref in ("1", versions[1]["manifest_sha256"]):
        one = site.get(path("team/envs", "versions", ref)).json()
        assert (one["version"], one["splits"], one["files"]) == ("1", ["train", "test"], 13)
    tasks, cursor = [], None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = site.get(path("team/envs", "versions", "1", "tasks"), params=query).json()
        tasks += [row["task_id"] for row in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert tasks == [f"tasks/{letter}{n}" for letter in "ab" for n in range(3)]


def test_b9_data_has_no_tasks_and_unknown_names_are_not_found(site: Site):
    site.add_project("other")
    publish(site, "team/words", {"a/task.toml": b""}, version="1")
    assert site.get(path("team/words", "versions", "1", "tasks")).json()["items"] == []
    for answer in (
        site.get(path("team/none")),
        site.get("/v1/datasets/***"),
        site.get(f"/v1/datasets/{base64.urlsafe_b64encode(bytes([255])).decode()}"),
        site.get(path("a\0b")),
        site.get(path("team/none", "versions")),
        site.get(path("team/none", "versions", "1")),
        site.get(path("team/words", "versions"), key=site.add_key("other")),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "DATASET_NOT_FOUND"), answer.url
    for answer in (
        site.get(path("team/words", "versions", "2")),
        site.get(path("team/words", "versions", "2", "tasks")),
        site.get(path("team/words", "versions", "a%00b")),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "DATASET_REVISION_NOT_FOUND"), answer.url
