"""Quotas of content, what is held, collecting garbage and looking for damage, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from support.contents import manifest_of, publish
from support.site import Site
from trainshed.model.access import Permission
from trainshed.model.content import ContentKind

PROJECT = "/v1/admin/projects/default"


def limits(site: Site) -> dict[str, Any]:
    return site.get("/v1/workspaces/default/projects/default/limits").json()


# Quotas


def test_a_quota_is_set_by_the_owner_shown_and_kept(site: Site):
    answer = site.request("PATCH", PROJECT, {"max_content_bytes": 10})
    assert answer.json()["max_content_bytes"] == 10
    assert publish(site, files={"a": b"123456"}, version="1").status_code == 201
    assert (limits(site)["max_content_bytes"], limits(site)["content_bytes"]) == (10, 6)
    refused = publish(site, files={"b": b"12345"}, version="2")
    assert (refused.status_code, refused.json()["code"]) == (409, "CONTENT_QUOTA_EXCEEDED")
    assert {key: refused.json()[key] for key in ("max_content_bytes", "content_bytes", "wanted_bytes")} == {
        "max_content_bytes": 10,
        "content_bytes": 6,
        "wanted_bytes": 5,
    }
    assert site.get("/v1/content/datasets/team/words/versions/2").status_code == 404
    assert publish(site, files={"b": b"1234"}, version="2").status_code == 201
    assert site.request("PATCH", PROJECT, {"max_content_bytes": None}).json()["max_content_bytes"] is None
    assert publish(site, files={"c": b"1" * 100}, version="3").status_code == 201


def test_too_much_is_refused_before_anything_is_sent(sqlite_site: Site):
    site = sqlite_site
    site.request("PATCH", PROJECT, {"max_content_bytes": 10})
    digest = manifest_of(ContentKind.DATASETS, {"big": b"x" * 11}).sha256
    asked = {"manifest_sha256": digest, "version": "1", "bytes": 11}
    refused = site.post("/v1/content/datasets/team/words/versions", asked)
    assert refused.json()["code"] == "CONTENT_QUOTA_EXCEEDED"
    small = site.post("/v1/content/datasets/team/words/versions", {**asked, "bytes": 10})
    assert small.json()["code"] == "BLOB_NOT_FOUND"
    wrong = site.post("/v1/content/datasets/team/words/versions", {**asked, "bytes": -1})
    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (422, "bytes")


@pytest.mark.parametrize("value", [-1, 1.5, "10", True, 2**63])
def test_a_quota_is_a_whole_number_of_bytes(sqlite_site: Site, value: object):
    refused = sqlite_site.request("PATCH", PROJECT, {"max_content_bytes": value})
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "max_content_bytes")


def test_a_project_s_own_administrator_cannot_lift_its_quota(sqlite_site: Site):
    key = sqlite_site.add_key("default", Permission.ADMIN)
    refused = sqlite_site.request("PATCH", PROJECT, {"max_content_bytes": None}, key=key)
    assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")
    made = sqlite_site.post("/v1/admin/projects", {"project_id": "team", "max_content_bytes": 5})
    assert made.json()["max_content_bytes"] == 5
