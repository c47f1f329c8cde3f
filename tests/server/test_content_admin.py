"""Quotas of content, what is held, collecting garbage and looking for damage, over HTTP."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from support.contents import collector, damages, events, manifest_of, publish
from support.deployment import Inline
from support.site import Site, finish, start, trials
from trainshed.control import verification
from trainshed.control.background import Background
from trainshed.control.garbage import Housekeeping
from trainshed.control.verification import Pace, Place, Verification
from trainshed.model.access import Permission
from trainshed.model.content import ContentKind
from trainshed.store import holders, queue
from trainshed.store.holders import Scope
from trainshed.store.tables import manifest_blobs

PROJECT = "/v1/admin/projects/default"


def limits(site: Site) -> dict[str, Any]:
    return site.get("/v1/workspaces/default/projects/default/limits").json()


# Quotas


def test_a_quota_is_set_by_the_owner_shown_and_kept(site: Site):
    own = [len(manifest_of(ContentKind.DATASETS, {each: b"1234"}).encode()) for each in "ab"]
    most = 10 + sum(own)
    answer = site.request("PATCH", PROJECT, {"max_content_bytes": most})
    assert answer.json()["max_content_bytes"] == most
    assert publish(site, files={"a": b"123456"}, version="1").status_code == 201
    assert (limits(site)["max_content_bytes"], limits(site)["content_bytes"]) == (most, 6 + own[0])
    refused = publish(site, files={"b": b"12345"}, version="2")
    assert (refused.status_code, refused.json()["code"]) == (409, "CONTENT_QUOTA_EXCEEDED")
    assert {key: refused.json()[key] for key in ("max_content_bytes", "content_bytes", "wanted_bytes")} == {
        "max_content_bytes": most,
        "content_bytes": 6 + own[0],
        "wanted_bytes": 5 + own[1],
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


# What is held, and garbage


def withdraw(site: Site, files: dict[str, bytes], name: str = "team/words") -> None:
    digest = manifest_of(ContentKind.DATASETS, files).sha256
    assert site.request("DELETE", f"/v1/content/datasets/{name}/versions/{digest}").is_success


def test_usage_shows_all_projects_to_the_owner_and_its_own_to_an_administrator(site: Site):
    site.add_project("other")
    publisher = site.add_key("other")
    publish(site, files={"a": b"12345", "b": b"123"}, version="1")
    publish(site, "other/words", files={"a": b"12345"}, version="1", key=publisher)
    found = site.get("/v1/admin/content/usage").json()
    shown = {each["project_id"]: each for each in found["projects"]}
    assert shown.keys() == {"default", "other"}
    manifest = len(manifest_of(ContentKind.DATASETS, {"a": b"12345", "b": b"123"}).encode())
    [datasets, runners] = shown["default"]["kinds"]
    assert datasets == {
        "kind": "datasets",
        "items": 1,
        "logical_bytes": 8 + manifest,
        "stored_bytes": 8 + manifest,
    }
    assert (runners["kind"], runners["items"]) == ("runners", 1)
    other = len(manifest_of(ContentKind.DATASETS, {"a": b"12345"}).encode())
    assert shown["other"]["content_bytes"] == 5 + other
    blobs = list(site.services.blobs.names())
    assert (found["stored_blobs"], found["stored_bytes"]) == (len(blobs), sum(blob.size for blob in blobs))
    assert found["garbage"] == {
        "blobs": 0,
        "bytes": 0,
        "waiting_blobs": 0,
        "waiting_bytes": 0,
        "grace_hours": 24.0,
    }
    admin = site.add_key("other", Permission.ADMIN)
    own = site.get("/v1/admin/content/usage", key=admin).json()
    assert [each["project_id"] for each in own["projects"]] == ["other"]
    assert (own["garbage"], own["stored_blobs"]) == (None, None)


def test_what_could_be_freed_is_what_a_pass_frees(site: Site):
    files = {"a": b"12345", "b": b"123"}
    publish(site, files=files, version="1")
    publish(site, "team/other", files={"a": b"12345"}, version="1")
    publish(site, files={"c": b"kept"}, version="2")
    withdraw(site, files)
    manifest = len(manifest_of(ContentKind.DATASETS, files).encode())
    waiting = {"blobs": 0, "bytes": 0, "waiting_blobs": 2, "waiting_bytes": 3 + manifest, "grace_hours": 24.0}
    assert site.get("/v1/admin/content/garbage").json() == waiting
    site.clock.now += 86_401
    freeable = site.get("/v1/admin/content/garbage").json()
    assert freeable == {**waiting, "blobs": 2, "bytes": 3 + manifest, "waiting_blobs": 0, "waiting_bytes": 0}
    found = collector(site).run()
    assert (found.blobs, found.bytes) == (2, 3 + manifest)
    assert site.get("/v1/admin/content/garbage").json()["blobs"] == 0


def test_a_pass_is_asked_for_and_its_report_is_read(sqlite_site: Site):
    site = sqlite_site
    assert site.get("/v1/admin/content/gc").json() == {"newest": None, "asked": None}
    asked = site.post("/v1/admin/content/gc")
    assert asked.status_code == 202
    assert site.woken == [True]
    state = site.get("/v1/admin/content/gc").json()
    assert state == {"newest": None, "asked": asked.json()}
    assert state["asked"]["state"] == "asked"
    housekeeping = Housekeeping(
        site.services.database,
        site.services.blobs,
        site.clock,
        Background(Inline(), site.clock, lambda: None),
        grace_seconds=86_400.0,
    )
    housekeeping.look()
    state = site.get("/v1/admin/content/gc").json()
    assert state["newest"] == state["asked"]
    assert (state["newest"]["request_id"], state["newest"]["state"]) == (asked.json()["request_id"], "done")


# Looking for damage


def spoil(site: Site, content: bytes, instead: bytes | None = None) -> str:
    """Change a stored blob behind the store's back, or take it away; its digest."""
    digest = hashlib.sha256(content).hexdigest()
    path = site.services.blobs.path(digest)
    path.unlink()
    if instead is not None:
        path.write_bytes(instead)
    return digest


FILES = {"train/0.txt": b"zero", "train/1.txt": b"one"}


def test_nothing_is_wrong_with_what_is_as_it_was(site: Site):
    publish(site, files=FILES, version="1")
    found = events(site)
    kind, _, ended = found[-1]
    blobs = list(site.services.blobs.names())
    size = sum(blob.size for blob in blobs)
    assert kind == "end"
    # Two manifests: the Dataset's and that of the shipped Runner.
    assert ended == {
        "checked": len(blobs) + 2,
        "bytes": size,
        "damaged": 0,
        "total_blobs": len(blobs),
        "total_bytes": size,
    }


@pytest.mark.parametrize(
    ("instead", "problem", "said"),
    [
        (None, "missing", "its bytes are gone"),
        (b"zer0", "changed", "its 4 bytes have the SHA-256"),
        (b"zeroes", "changed", "its 6 bytes have"),
        (b"", "changed", "its 0 bytes have"),
    ],
)
def test_a_damaged_blob_is_told_with_what_it_affects_and_what_to_do(
    sqlite_site: Site, instead, problem, said
):
    site = sqlite_site
    publish(site, files=FILES, version="1")
    publish(site, "team/copy", files={"other/name": b"zero"}, version="7")
    digest = spoil(site, b"zero", instead)
    [damage] = damages(site)
    assert (damage["sha256"], damage["problem"]) == (digest, problem)
    assert said in damage["message"]
    assert damage["affected"]["versions"] == {
        "shown": ["datasets team/copy@7", "datasets team/words@1"],
        "count": 2,
    }
    assert "verify team/copy@7 --repair`, then publish it again: " in damage["advice"]
    manifest = manifest_of(ContentKind.DATASETS, FILES).sha256
    targets = ("team/words@1", f"envloop://datasets/team/words@{manifest}", digest, manifest)
    for target in targets:
        [again] = damages(site, f"?target={target}")
        assert (again["sha256"], again["message"]) == (digest, damage["message"])
        # Who asks for a content by its name is told to publish that one, not another that shares its bytes.
        named = "team/words@1" if "words" in target else "team/copy@7"
        assert f"verify {named} --repair`, then publish it again: " in again["advice"]
    assert damages(site, f"?target={hashlib.sha256(b'one').hexdigest()}") == []


def test_rows_that_are_not_what_the_manifest_says_are_damage(site: Site):
    publish(site, files=FILES, version="1")
    digest, lost = manifest_of(ContentKind.DATASETS, FILES).sha256, hashlib.sha256(b"one").hexdigest()
    site.services.database.write(
        lambda c: c.execute(
            manifest_blobs.delete().where(
                manifest_blobs.c.manifest_sha256 == digest, manifest_blobs.c.sha256 == lost
            )
        )
    )
    [damage] = damages(site)
    assert (damage["sha256"], damage["problem"]) == (digest, "manifest")
    assert damage["message"] == f"1 of its files are not kept, {lost} for one"


def test_a_job_is_verified_with_all_it_consumed_and_made(sqlite_site: Site):
    site = sqlite_site
    job_id = site.submit("r")["job_id"]
    [trial] = trials(site, job_id)
    finish(site, trial, start(site, trial), artifacts={"out/a": b"result"})
    site.services.database.write(
        lambda c: queue.put_blobs(c, {hashlib.sha256(b"result").hexdigest(): 6}, at=1.0)
    )
    assert damages(site, f"?target={job_id}") == []
    spoil(site, b"result", b"RESULT")
    [damage] = damages(site, f"?target={job_id}")
    assert damage["affected"]["artifacts"] == {"shown": [f"{trial.id} out/a"], "count": 1}
    assert damage["affected"]["jobs"] == {"shown": [job_id], "count": 1}
    assert f"job rerun {job_id}" in damage["advice"]
    refused = site.post(f"/v1/admin/content/blobs/{damage['sha256']}/take-out")
    assert (refused.status_code, refused.json()["code"]) == (409, "RESOURCE_IN_USE")
    main = trial.runner
    assert damages(site, f"?target={main}@{trial.revision}") == []


def test_it_goes_on_behind_any_event(sqlite_site: Site, monkeypatch):
    site = sqlite_site
    monkeypatch.setattr(verification, "_TELL_SECONDS", 0.0)
    publish(site, files={f"{number}": b"%d" % number for number in range(20)}, version="1")
    spoil(site, b"7", b"x")
    whole = events(site)
    assert len(whole) > 20
    end = whole[-1]
    for place in (0, 5, len(whole) // 2, len(whole) - 2):
        rest = events(site, last=whole[place][1])
        assert rest[-1] == end
        # A blob that was being read begins anew; no damage is told twice.
        assert [each for each in rest if each[2].get("type") == "damage"] == [
            each for each in whole[place + 1 :] if each[2].get("type") == "damage"
        ]


def test_a_foreign_cursor_is_refused(sqlite_site: Site):
    site = sqlite_site
    publish(site, files=FILES, version="1")
    cursor = events(site)[0][1]
    for query, last in (("?target=team/words@1", cursor), ("", "nonsense")):
        answer = site.get(f"/v1/admin/content/verify{query}", headers={"Last-Event-ID": last})
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_CURSOR")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("?target=nonsense", "INVALID_SPEC"),
        ("?target=envloop://datasets/x", "INVALID_SPEC"),
        ("?target=team/none@1", "CONTENT_NOT_FOUND"),
        ("?target=job_none", "JOB_NOT_FOUND"),
        (f"?target={'0' * 64}", "BLOB_NOT_FOUND"),
        ("?mb_per_second=0", "INVALID_SPEC"),
        ("?mb_per_second=fast", "INVALID_SPEC"),
        ("?mb_per_second=inf", "INVALID_SPEC"),
    ],
)
def test_what_cannot_be_verified_is_refused(module_site: Site, query: str, code: str):
    assert module_site.get(f"/v1/admin/content/verify{query}").json()["code"] == code


def test_a_damaged_copy_is_taken_out_and_publishing_again_heals(site: Site):
    publish(site, files=FILES, version="1")
    digest = spoil(site, b"zero", b"zer0")
    path = f"/v1/admin/content/blobs/{digest}/take-out"
    done = site.post(path).json()
    assert (done["sha256"], done["damaged"], done["corrected"]) == (digest, True, False)
    assert "--repair" not in done["advice"]
    [damage] = damages(site)
    assert (damage["sha256"], damage["problem"]) == (digest, "missing")
    assert (damage["message"], damage["advice"]) == ("it is not recorded", done["advice"])
    assert [each["message"] for each in damages(site, f"?target={digest}")] == ["it is not recorded"]
    assert site.post(path).json()["damaged"] is True
    missing = site.post("/v1/content/blobs/missing", {"sha256": [digest]}).json()["missing"]
    assert missing == [digest]
    refused = publish(site, files=FILES, version="1", store=False)
    assert (refused.json()["code"], refused.json()["missing"]) == ("BLOB_NOT_FOUND", [digest])
    assert publish(site, files=FILES, version="1").is_success
    assert damages(site) == []
    intact = "It is intact: nothing is left to do."
    assert site.post(path).json() == {
        "sha256": digest,
        "damaged": False,
        "corrected": False,
        "advice": intact,
    }
    assert site.services.blobs.verify(digest)
    assert site.post(f"/v1/admin/content/blobs/{'0' * 64}/take-out").json()["code"] == "BLOB_NOT_FOUND"
    assert site.post("/v1/admin/content/blobs/zero/take-out").json()["code"] == "BLOB_NOT_FOUND"


def test_what_is_collected_meanwhile_is_no_damage(site: Site):
    publish(site, files=FILES, version="1")
    withdraw(site, FILES)
    site.clock.now += 2 * 86_400
    look = Verification(site.services.database, site.services.blobs, Scope(), Pace(1e9))
    steps = look.run(Place())
    with site.services.database.read() as connection:
        listed = [sha256 for sha256, _ in holders.blobs_after(connection, Scope(), "", 100)]
    assert collector(site).run().blobs == 3
    assert len(listed) == 5
    gone = [sha256 for sha256 in listed if not site.services.blobs.exists(sha256)]
    assert [look._damage(sha256, "missing", "") for sha256 in gone] == [None, None, None]
    assert [step.damage for step in steps if step.damage] == []


def test_reading_keeps_to_its_pace():
    now, waited = [0.0], []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    pace = Pace(1000.0, wait, lambda: now[0])
    for _ in range(10):
        pace.count(500)
    assert sum(waited) == pytest.approx(5.0)


def test_who_may_do_what(site: Site):
    site.add_project("other")
    publish(site, files=FILES, version="1", visibility="public")
    publish(site, "team/hidden", files={"a": b"hidden"}, version="1", visibility="project")
    admin = site.add_key("other", Permission.ADMIN)
    developer = site.add_key("other")
    job_id = site.submit("r")["job_id"]
    for method, path in (
        ("GET", "/v1/admin/content/usage"),
        ("GET", "/v1/admin/content/garbage"),
        ("GET", "/v1/admin/content/gc"),
        ("POST", "/v1/admin/content/gc"),
        ("GET", "/v1/admin/content/verify"),
        ("POST", f"/v1/admin/content/blobs/{'0' * 64}/take-out"),
    ):
        assert site.request(method, path, key=developer).json()["code"] == "PERMISSION_DENIED"
        if not path.endswith("usage"):
            assert site.request(method, path, key=admin).json()["code"] == "PERMISSION_DENIED"
    digest = hashlib.sha256(b"hidden").hexdigest()
    assert events(site, "?target=team/words@1", key=admin)[-1][0] == "end"
    for target, code in (
        ("team/hidden@1", "CONTENT_NOT_FOUND"),
        (job_id, "JOB_NOT_FOUND"),
        (digest, "PERMISSION_DENIED"),
    ):
        answer = site.get(f"/v1/admin/content/verify?target={target}", key=admin)
        assert answer.json()["code"] == code
