"""What lies wrongly in the store: orphans of a wrong length, folders in place of blobs, things not ours."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from support.contents import collector, damages, events, manifest_of, publish
from support.deployment import Inline
from support.site import Site, finish, start, trials
from trainshed.content.blobs import Blob, FolderBlobStore, StoreUnavailable
from trainshed.control import garbage
from trainshed.control.background import Background
from trainshed.model.content import ContentKind
from trainshed.store import queue
from trainshed.store.tables import blobs

RIGHT = b"right bytes\n"
NAME = hashlib.sha256(RIGHT).hexdigest()
TAKE_OUT = f"/v1/admin/content/blobs/{NAME}/take-out"


def place(site: Site, name: str = NAME) -> Path:
    found: Path = site.services.blobs.root / "sha256" / name[:2] / name
    return found


def recorded(site: Site, name: str = NAME) -> int | None:
    with site.services.database.read() as connection:
        found: int | None = connection.execute(
            select(blobs.c.size).where(blobs.c.sha256 == name)
        ).scalar_one_or_none()
    return found


def send_and_publish(site: Site, **options: Any) -> Any:
    """As the client does: ask what is missing, send that, publish."""
    files = {"train.txt": RIGHT}
    digest = manifest_of(ContentKind.DATASETS, files).sha256
    asked = {"sha256": [NAME, digest]}
    missing = site.post("/v1/content/blobs/missing", asked).json()["missing"]
    answer = publish(site, files=files, version="1", store=NAME in missing, **options)
    return answer, NAME in missing


def test_an_orphan_of_the_wrong_length_is_healed_by_whoever_sends_the_right_bytes(site: Site):
    place(site).write_bytes(b"xx\n")
    assert collector(site).run(sweep=True).adopted == 1
    answer, sent = send_and_publish(site)
    assert (answer.status_code, sent) == (201, True), answer.text
    assert recorded(site) == len(RIGHT)
    assert damages(site) == []


def test_an_orphan_in_parts_corrects_the_record_too(site: Site):
    place(site).write_bytes(b"xx\n")
    collector(site).run(sweep=True)
    where = f"/v1/content/blobs/{NAME}/upload?offset=0&size={len(RIGHT)}"
    assert site.request("PUT", where, RIGHT).json()["stored"]
    assert recorded(site) == len(RIGHT)


def test_a_damaged_orphan_is_taken_out_at_once(site: Site):
    place(site).write_bytes(b"xx\n")
    collector(site).run(sweep=True)
    [damage] = damages(site, f"?target={NAME}")
    assert (damage["problem"], "--repair takes it out at once" in damage["advice"]) == ("changed", True)
    done = site.post(TAKE_OUT).json()
    assert "nothing is left to do" in done.pop("advice")
    assert done == {"sha256": NAME, "damaged": True, "corrected": False}
    assert (place(site).exists(), recorded(site)) == (False, None)


def test_right_bytes_correct_a_record_that_says_another_size(site: Site):
    assert send_and_publish(site)[0].status_code == 201
    wrong = update(blobs).where(blobs.c.sha256 == NAME).values(size=3)
    site.services.database.write(lambda c: c.execute(wrong))
    assert [damage["problem"] for damage in damages(site)] == ["changed"]
    corrected = "Its record was corrected: nothing is left to do."
    assert site.post(TAKE_OUT).json() == {
        "sha256": NAME,
        "damaged": False,
        "corrected": True,
        "advice": corrected,
    }
    assert damages(site) == []


@pytest.mark.parametrize("target", ["", "?target=team/words@1", "?target=manifest"])
def test_a_blob_that_was_taken_out_is_one_damage_until_it_is_published_again(site: Site, target: str):
    assert send_and_publish(site)[0].status_code == 201
    assert publish(site, "team/copy", files={"a": RIGHT, "b": b""}, version="2").status_code == 201
    name, version = ("team/words", "1") if "words" in target else ("team/copy", "2")
    target = target.replace("manifest", manifest_of(ContentKind.DATASETS, {"train.txt": RIGHT}).sha256)
    place(site).write_bytes(b"x" * len(RIGHT))
    publishing = f"trainshed dataset publish FOLDER --name {name} --version {version}"
    [damage] = damages(site, target)
    repairing = f"`trainshed content verify {name}@{version} --repair`, then publish it again: "
    assert repairing in damage["advice"]
    assert f"`{publishing}`" in damage["advice"]
    done = site.post(f"{TAKE_OUT}{target}").json()
    assert (done["damaged"], "--repair" in done["advice"], publishing in done["advice"]) == (
        True,
        False,
        True,
    )
    [left] = damages(site, target)
    assert (left["sha256"], left["problem"], left["message"]) == (NAME, "missing", "it is not recorded")
    assert left["advice"] == done["advice"]
    assert events(site, target)[-1][2]["damaged"] == 1
    answer, sent = send_and_publish(site)
    assert (answer.status_code, sent) == (200, True)
    assert damages(site, target) == []


def test_what_a_program_produced_stays_where_it_is_damaged_and_its_record_is_corrected(sqlite_site: Site):
    site = sqlite_site
    job_id = site.submit("r")["job_id"]
    [trial] = trials(site, job_id)
    finish(site, trial, start(site, trial), artifacts={"out/a": RIGHT})
    site.services.database.write(lambda c: queue.put_blobs(c, {NAME: 3}, at=1.0))
    assert site.post(TAKE_OUT).json()["corrected"]
    place(site).unlink()
    refused = site.post(TAKE_OUT)
    assert (refused.status_code, refused.json()["code"]) == (409, "RESOURCE_IN_USE")
    assert recorded(site) == len(RIGHT)
    assert queue_may_count_on(site)


def queue_may_count_on(site: Site) -> bool:
    with site.services.database.read() as connection:
        return NAME in queue.untouched_blobs(connection, [NAME], at=site.clock.now)[0]


def test_a_sweep_passes_over_what_is_not_ours_and_verify_tells_of_it(site: Site):
    folder = site.services.blobs.root / "sha256"
    (folder / ".DS_Store").write_bytes(b"")
    (folder / "ab" / "notes.txt").write_bytes(b"")
    place(site).write_bytes(RIGHT)
    assert collector(site).run(sweep=True).adopted == 1
    assert (folder / ".DS_Store").exists()
    found = events(site)
    strange = [(each[1], each[2]["place"]) for each in found if each[2].get("type") == "stranger"]
    assert [told for _, told in strange] == [".DS_Store", "ab/notes.txt"]
    assert found[-1][2]["damaged"] == 0
    rest = events(site, last=strange[0][0])
    assert [each[2].get("place") for each in rest] == ["ab/notes.txt", None]
    assert [each for each in events(site, f"?target={NAME}") if "place" in each[2]] == []


def test_a_folder_in_the_place_of_a_blob_is_damage_that_repair_or_publishing_mends(site: Site):
    assert send_and_publish(site)[0].status_code == 201
    for repair in (True, False):
        place(site).unlink()
        place(site).mkdir()
        (place(site) / "of somebody").write_bytes(b"kept")
        answer = site.get(f"/v1/content/datasets/team/words/versions/1/blobs/{NAME}")
        assert (answer.status_code, answer.json()["code"]) == (409, "CONTENT_DAMAGED"), answer.text
        [damage] = damages(site)
        assert (damage["sha256"], damage["problem"]) == (NAME, "changed")
        assert "what lies in its place is no file" in damage["message"]
        if repair:
            assert site.post(TAKE_OUT).json()["damaged"]
        answer, sent = send_and_publish(site)
        assert (answer.is_success, sent) == (True, True)
        assert place(site).read_bytes() == RIGHT
        assert [each for each in damages(site) if each["problem"] != "changed"] == []
        assert collector(site).run(sweep=True).adopted == 0


def said(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.mark.parametrize("damage", ["gone", "changed", "a folder"])
def test_a_damaged_manifest_is_told_by_every_door_that_reads_it(sqlite_site: Site, damage: str):
    site = sqlite_site
    assert send_and_publish(site)[0].status_code == 201
    digest = manifest_of(ContentKind.DATASETS, {"train.txt": RIGHT}).sha256
    place(site, digest).unlink()
    if damage == "a folder":
        place(site, digest).mkdir()
    elif damage == "changed":
        place(site, digest).write_bytes(b"x" * 300)
    version = "/v1/content/datasets/team/words/versions/1"
    for where in ("/files", "/files/train.txt"):
        answer = site.get(version + where)
        assert said(answer) == (409, "CONTENT_DAMAGED"), where
        assert "the manifest of envloop://datasets/team/words@1" in answer.json()["message"]
        assert "content verify team/words@1" in answer.json()["hint"]
    if damage != "changed":
        assert said(site.get(f"{version}/manifest")) == (409, "CONTENT_DAMAGED")
        again = site.post(
            "/v1/content/datasets/team/words/versions", {"manifest_sha256": digest, "version": "1"}
        )
        assert (again.json()["code"], again.json()["missing"]) == ("BLOB_NOT_FOUND", [digest])
        assert send_and_publish(site)[0].status_code == 200
        assert site.get(f"{version}/files/train.txt").content == RIGHT


def test_a_damaged_file_is_told_by_its_path_alone_and_among_others(sqlite_site: Site):
    site = sqlite_site
    files = {"sub/a.txt": RIGHT, "empty": b""}
    publish(site, files=files, version="1")
    place(site).unlink()
    place(site).write_bytes(RIGHT[:3])
    version = "/v1/content/datasets/team/words/versions/1"
    asked = [hashlib.sha256(data).hexdigest() for data in files.values()]
    for answer in (
        site.get(f"{version}/files/sub/a.txt"),
        site.get(f"{version}/blobs/{NAME}"),
        site.post(f"{version}/blobs", {"sha256": asked}),
    ):
        assert said(answer) == (409, "CONTENT_DAMAGED")
        assert answer.json()["message"].startswith("`sub/a.txt` of envloop://datasets/team/words@1: 3 of its")
    assert site.post(f"{version}/blobs", {"sha256": asked[1:]}).status_code == 200


def test_b13_a_runner_s_damaged_file_has_the_code_of_the_contract(sqlite_site: Site):
    site = sqlite_site
    [runner] = site.get("/v1/runners").json()["items"]
    where = f"/v1/runners/{runner['name']}/{runner['revision']}"
    [file, *_] = site.get(where).json()["files"]
    place(site, file["sha256"]).unlink()
    answer = site.get(f"{where}/files/{file['path']}")
    assert said(answer) == (409, "RUNNER_HASH_MISMATCH")
    assert answer.json()["message"].startswith(f"`{file['path']}` of {runner['name']}@")


class Failing(FolderBlobStore):
    """A store that cannot be looked through."""

    broken = True

    def names(self) -> Iterator[Blob]:
        if self.broken:
            raise StoreUnavailable("no answer")
        return super().names()


def test_a_sweep_that_failed_is_due_still(sqlite_site: Site, monkeypatch: pytest.MonkeyPatch):
    site = sqlite_site
    blobs, background = Failing(site.services.blobs.root), Background(Inline(), site.clock, lambda: None)
    place(site).write_bytes(RIGHT)
    monkeypatch.setattr(garbage, "PASS_SECONDS", 0.0)
    keeping = garbage.Housekeeping(
        site.services.database, blobs, site.clock, background, grace_seconds=86_400.0
    )
    keeping.look()
    assert recorded(site) is None
    blobs.broken = False
    site.clock.now += 7200
    keeping.look()
    assert recorded(site) == len(RIGHT)
