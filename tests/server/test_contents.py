"""Contents over HTTP: publishing, reading, sharing, withdrawing, and what is refused (E92-E104)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.contents import RECIPE, manifest_of, publish, sha256, upload
from support.site import Site, open_site
from trainshed.model.access import Permission
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.store import contents as store
from trainshed.store.database import Database

DATASETS, MODELS, RECIPES, PLUGINS = ContentKind
FILES = {"data/train.txt": b"one\n", "data/test.txt": b"two\n", "README.md": b"", "данные/a b.txt": b"one\n"}
BASE = "/v1/content/datasets/team/words"


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def told(answer) -> str:
    return "\n".join(f"{fault['path']}: {fault['message']}" for fault in answer.json()["errors"])


def test_E92_a_published_version_is_found_by_label_and_by_digest(site: Site):
    answer = publish(site, files=FILES, version="1.0")
    assert answer.status_code == 201, answer.text
    item = answer.json()
    digest = manifest_of(DATASETS, FILES).sha256
    assert item["uri"] == "envloop://datasets/team/words@1.0"
    assert (item["manifest_sha256"], item["files"], item["bytes"]) == (digest, 4, 12)
    assert (item["visibility"], item["approval"]) == ("project", None)
    assert item["about"]["configs"]["default"].keys() == {"train", "test"}
    for ref in ("1.0", digest):
        assert site.get(f"{BASE}/versions/{ref}").json() == item
    shown = site.get(BASE).json()
    assert (shown["versions"], shown["newest"]["version"]) == (1, "1.0")
    assert (shown["project_id"], shown["projects"], shown["about"]) == ("default", [], item["about"])
    assert [row["name"] for row in site.get("/v1/content/datasets").json()["items"]] == ["team/words"]
    assert [row["version"] for row in site.get(f"{BASE}/versions").json()["items"]] == ["1.0"]
    assert code(site.get(f"{BASE}/versions/2.0")) == (404, "CONTENT_NOT_FOUND")
    assert code(site.get("/v1/content/models/team/words")) == (404, "CONTENT_NOT_FOUND")


def test_the_files_and_the_manifest_of_a_version_are_read_whole_and_in_ranges(sqlite_site: Site):
    digest = publish(sqlite_site, files=FILES).json()["manifest_sha256"]
    base = f"{BASE}/versions/{digest}"
    listed = sqlite_site.get(f"{base}/files").json()
    assert [file["path"] for file in listed["items"]] == sorted(FILES, key=str.encode)
    assert listed["next_cursor"] is None
    walked, cursor = [], None
    while True:
        page = sqlite_site.get(
            f"{base}/files", params={"limit": 3} | ({"cursor": cursor} if cursor else {})
        ).json()
        walked += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert walked == listed["items"]
    for path, data in FILES.items():
        answer = sqlite_site.get(f"{base}/files/{path}")
        assert (answer.content, answer.headers["etag"]) == (data, f'"{sha256(data)}"')
        assert sqlite_site.get(f"{base}/blobs/{sha256(data)}").content == data
    part = sqlite_site.get(f"{base}/files/data/train.txt", headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content) == (206, b"ne")
    assert sqlite_site.get(f"{base}/manifest").content == manifest_of(DATASETS, FILES).encode()
    assert code(sqlite_site.get(f"{base}/files/none.txt")) == (404, "NOT_FOUND")
    assert code(sqlite_site.get(f"{base}/blobs/{'0' * 64}")) == (404, "NOT_FOUND")


def test_small_files_of_a_version_are_read_together(sqlite_site: Site):
    files = {"a": b"one", "b": b"", "c": b"three"}
    version = publish(sqlite_site, "team/together", files).json()
    where = f"/v1/content/datasets/team/together/versions/{version['manifest_sha256']}/blobs"
    wanted = [sha256(files["c"]), sha256(files["b"])]
    packed = sqlite_site.post(where, {"sha256": wanted}).content
    assert packed == f"{wanted[0]} 5\nthree{wanted[1]} 0\n".encode()
    upload(sqlite_site, b"of no version")
    other = sha256(b"of no version")
    assert code(sqlite_site.post(where, {"sha256": [*wanted, other]})) == (404, "NOT_FOUND")
    for body in (
        {"sha256": []},
        {"sha256": wanted, "x": 1},
        {"sha256": [f"{n:064x}" for n in range(201)]},
    ):
        assert code(sqlite_site.post(where, body)) == (422, "INVALID_SPEC")
    large = {f"{letter}": letter * (5 << 20) for letter in "xy"}
    bulky = publish(sqlite_site, "team/bulky", {k: v.encode() for k, v in large.items()}).json()
    where = f"/v1/content/datasets/team/bulky/versions/{bulky['manifest_sha256']}/blobs"
    both = [sha256(text.encode()) for text in large.values()]
    assert code(sqlite_site.post(where, {"sha256": both})) == (422, "INVALID_SPEC")


def test_a_version_is_published_again_by_its_digest_alone(site: Site):
    first = publish(site, version="1.0")
    digest = first.json()["manifest_sha256"]
    again = site.post(f"{BASE}/versions", {"version": "1.0", "manifest_sha256": digest})
    assert (again.status_code, again.json()) == (200, first.json())
    other = site.post(f"{BASE}/versions", {"version": "1.1", "manifest_sha256": digest})
    assert other.status_code == 201
    unnamed = site.post("/v1/content/datasets/team/copy/versions", {"manifest_sha256": digest})
    assert (unnamed.status_code, unnamed.json()["version"]) == (201, digest)


def test_a_long_manifest_is_uploaded_as_a_blob_and_then_named(site: Site):
    manifest = manifest_of(DATASETS, FILES)
    body = {"version": "1", "manifest_sha256": manifest.sha256}
    answer = site.post(f"{BASE}/versions", body)
    assert code(answer) == (404, "BLOB_NOT_FOUND")
    assert answer.json()["missing"] == [manifest.sha256]
    upload(site, *FILES.values(), manifest.encode())
    assert site.post(f"{BASE}/versions", body).status_code == 201
    assert code(site.post(f"{BASE}/versions", {"version": "2", "manifest_sha256": sha256(b"one\n")})) == (
        422,
        "INVALID_CONTENT",
    )


def test_E99_a_version_never_gets_other_content(site: Site):
    publish(site, version="1.0")
    answer = publish(site, files={"train.txt": b"other"}, version="1.0")
    assert code(answer) == (409, "CONTENT_VERSION_EXISTS")
    assert site.get(f"{BASE}/versions/1.0/files/train.txt").content == b"one\n"


def test_of_two_publishers_at_once_one_wins_and_nothing_is_half_visible(site: Site):
    bodies = [{"train.txt": b"a"}, {"train.txt": b"b"}]
    for files in bodies:
        upload(site, *files.values())
    for number in range(3):
        with ThreadPoolExecutor(2) as pool:
            answers = list(
                pool.map(
                    lambda files, n=number: publish(site, files=files, version=f"v{n}", store=False), bodies
                )
            )
        assert sorted(answer.status_code for answer in answers) == [201, 409]
        won = next(answer.json() for answer in answers if answer.status_code == 201)
        lost = next(answer for answer in answers if answer.status_code == 409)
        assert code(lost) == (409, "CONTENT_VERSION_EXISTS")
        assert site.get(f"{BASE}/versions/v{number}").json()["manifest_sha256"] == won["manifest_sha256"]


def test_missing_blobs_are_named_and_the_retry_works(site: Site):
    answer = publish(site, files=FILES, store=False)
    assert code(answer) == (404, "BLOB_NOT_FOUND")
    assert answer.json()["missing_count"] == 3
    assert sorted(answer.json()["missing"]) == sorted({sha256(data) for data in FILES.values()})
    assert code(site.get(BASE)) == (404, "CONTENT_NOT_FOUND")
    assert publish(site, files=FILES).status_code == 201


@pytest.mark.parametrize("lost", ["manifest", "blob", "both"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_bytes_that_the_store_lost_are_asked_for_and_sent_again(sqlite_site: Site, lost: str, version: str):
    site = sqlite_site
    manifest, data = manifest_of(DATASETS, FILES), FILES["data/test.txt"]
    assert publish(site, files=FILES, version="1.0").status_code == 201
    gone = {"manifest": [manifest.sha256], "blob": [sha256(data)], "both": [manifest.sha256, sha256(data)]}
    for digest in gone[lost]:
        assert site.services.blobs.delete(digest)
    by_digest = site.post(f"{BASE}/versions", {"version": version, "manifest_sha256": manifest.sha256})
    assert code(by_digest) == (404, "BLOB_NOT_FOUND")
    assert by_digest.json()["missing"] == gone[lost][:1]
    assert site.post("/v1/content/blobs/missing", {"sha256": gone[lost]}).json()["missing"] == gone[lost]
    if lost != "manifest":
        again = publish(site, files=FILES, version=version, store=False)
        assert (code(again), again.json()["missing"]) == ((404, "BLOB_NOT_FOUND"), [sha256(data)])
        upload(site, data)
    assert publish(site, files=FILES, version=version, store=False).is_success
    assert site.get(f"{BASE}/versions/1.0/files/data/test.txt").content == data
    assert site.get(f"{BASE}/versions/1.0/manifest").content == manifest.encode()


def test_a_manifest_that_lies_is_refused(sqlite_site: Site):
    data = b"one\n"
    upload(sqlite_site, data)

    def attempt(listed, about=None, **body):
        manifest = make_manifest(DATASETS, listed, about or {"type": "data", "configs": {"c": {"s": ["**"]}}})
        document = {"manifest_sha256": manifest.sha256, "manifest": json.loads(manifest.encode())}
        return sqlite_site.post(f"{BASE}/versions", {**document, **body})

    longer = attempt([ContentFile("a", 5, sha256(data))])
    assert code(longer) == (422, "INVALID_CONTENT")
    assert "has 4 bytes, and the manifest says 5" in told(longer)
    two = attempt([ContentFile("a", 4, sha256(data)), ContentFile("b", 5, sha256(data))])
    assert "another file of its digest 4" in told(two)
    blobs = [f"{number:02}".encode() for number in range(60)]
    upload(sqlite_site, *blobs)
    many = attempt([ContentFile(blob.decode(), 9, sha256(blob)) for blob in blobs]).json()
    assert len(many["errors"]) + many["errors_not_shown"] == 60
    other = attempt([ContentFile("a", 4, sha256(data))], manifest_sha256="0" * 64)
    assert code(other) == (409, "CONTENT_HASH_MISMATCH")
    hostile = attempt(
        [ContentFile(path, 4, sha256(data)) for path in ("../a", "B", "b", "x/.git/y", "d", "d/e")]
    )
    assert code(hostile) == (422, "INVALID_CONTENT")
    for said in (
        "leaves the published",
        "`B` and `b` differ only in case",
        ".git",
        "both a file and a directory",
    ):
        assert said in told(hostile)
    empty = attempt([])
    assert "one file at least" in told(empty)
    split = attempt([ContentFile("a", 4, sha256(data))], {"type": "data", "configs": {"c": {"s": ["b/**"]}}})
    assert "no file is in split `s` of config `c`" in told(split)
    assert code(sqlite_site.get(BASE)) == (404, "CONTENT_NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "`manifest_sha256`: is missing"),
        ({"manifest_sha256": "x"}, "64 lower-case"),
        ({"manifest_sha256": "0" * 64, "version": "a b"}, "`version`"),
        ({"manifest_sha256": "0" * 64, "version": "latest"}, "would have to move"),
        ({"manifest_sha256": "0" * 64, "version": "1" * 64}, "another one"),
        ({"manifest_sha256": "0" * 64, "visibility": "all"}, "`visibility`"),
        ({"manifest_sha256": "0" * 64, "manifest": []}, "JSON object"),
        ({"manifest_sha256": "0" * 64, "manifest": {}}, "no manifest"),
        ({"manifest_sha256": "0" * 64, "versoin": "1"}, "did you mean `version`?"),
    ],
)
def test_a_malformed_request_is_refused_with_the_key_at_fault(module_site: Site, body, said):
    answer = module_site.post(f"{BASE}/versions", body)
    assert code(answer) == (422, "INVALID_CONTENT")
    assert said in told(answer)


def test_a_name_that_cannot_be_is_refused(sqlite_site: Site):
    assert code(publish(sqlite_site, name="team/-x")) == (422, "INVALID_CONTENT")
    assert code(publish(sqlite_site, name="team/%2e%2e")) == (422, "INVALID_CONTENT")
    assert code(sqlite_site.post("/v1/content/images/team/x/versions", {})) == (404, "CONTENT_NOT_FOUND")
    assert code(sqlite_site.get("/v1/content/images")) == (404, "CONTENT_NOT_FOUND")


def test_all_faults_of_a_publication_are_answered_at_once(sqlite_site: Site):
    listed = [
        {"path": path, "sha256": "a" * 64, "size": 1}
        for path in ("../x", "/abs", "", "a//b", "C:x", "fine", "new\nline", "two", "two")
    ]
    listed[5] |= {"size": -1}
    manifest = {
        "schema": "trainshed.manifest/1",
        "kind": "datasets",
        "files": listed,
        "about": {"type": "data", "configs": {}, "licence": "x"},
    }
    body = {
        "version": "latest",
        "manifest_sha256": "zz",
        "visibility": "x",
        "bytes": -1,
        "manifest": manifest,
        "more": 1,
    }
    answer = sqlite_site.post("/v1/content/datasets/team/-words/versions", body)
    assert code(answer) == (422, "INVALID_CONTENT")
    found = {fault["path"]: fault["message"] for fault in answer.json()["errors"]}
    entries = [path for path in found if path.startswith("files[")]
    assert set(found) - set(entries) == {
        *("name", "more", "version", "manifest_sha256", "visibility", "bytes", "licence", "configs"),
        *("../x", "/abs", "a//b", "C:x", r"new\nline"),
    }
    assert "files[5]" in found
    assert "canonically" in found["files[5]"]
    assert "is empty" in found["files[2]"]
    assert "twice" in found["files[8]"]
    # With a request that is well formed the manifest's are the same, and its digest is looked at.
    body = {"version": "1", "manifest_sha256": "b" * 64, "manifest": manifest}
    answer = sqlite_site.post("/v1/content/datasets/team/words/versions", body)
    again = {fault["path"] for fault in answer.json()["errors"]}
    assert again == {
        *entries,
        *("licence", "configs", "../x", "/abs", "a//b", "C:x"),
        r"new\nline",
        "manifest_sha256",
    }


@pytest.mark.parametrize(("kind", "path"), [(DATASETS, "data/train.csv"), (RECIPES, "train.py")])
def test_a_file_whose_entry_is_at_fault_is_not_told_to_be_missing(sqlite_site: Site, kind, path):
    manifest = json.loads(manifest_of(kind, {path: b"x", "recipe.toml": RECIPE}).encode())
    next(entry for entry in manifest["files"] if entry["path"] == path)["size"] = "x"
    body = {"manifest_sha256": sha256(json.dumps(manifest, separators=(",", ":")).encode())}
    answer = sqlite_site.post(f"/v1/content/{kind}/team/words/versions", {**body, "manifest": manifest})
    assert {fault["path"] for fault in answer.json()["errors"]} <= {"files[0]", "files[1]"}


def test_a_manifest_of_another_kind_is_refused(sqlite_site: Site):
    files = {"train.txt": b"one\n"}
    upload(sqlite_site, *files.values())
    manifest = manifest_of(MODELS, files)
    document = {"manifest_sha256": manifest.sha256, "manifest": json.loads(manifest.encode())}
    answer = sqlite_site.post(f"{BASE}/versions", document)
    assert code(answer) == (422, "INVALID_CONTENT")
    assert "one of models" in told(answer)


def test_E104_contents_are_read_by_whom_their_visibility_names(site: Site):
    site.add_project("other")
    mine, theirs = site.add_key(), site.add_key("other")
    publish(site, version="1.0", key=mine)
    digest = site.get(f"{BASE}/versions/1.0").json()["manifest_sha256"]
    places = ("", "/versions", "/versions/1.0", f"/versions/{digest}", "/versions/1.0/files")
    hidden = {code(site.get(BASE + place, key=theirs)) for place in places}
    assert hidden == {(404, "CONTENT_NOT_FOUND")}
    assert site.get("/v1/content/datasets", key=theirs).json()["items"] == []
    assert code(site.request("PUT", f"{BASE}/visibility", {"visibility": "public"}, key=theirs)) == (
        404,
        "CONTENT_NOT_FOUND",
    )
    shared = {"visibility": "projects", "projects": ["other"]}
    answer = site.request("PUT", f"{BASE}/visibility", shared, key=mine)
    assert answer.json() == {"kind": "datasets", "name": "team/words", **shared}
    assert {site.get(BASE + place, key=theirs).status_code for place in places} == {200}
    assert code(
        site.request(
            "PUT", f"{BASE}/visibility", {"visibility": "projects", "projects": ["nobody"]}, key=mine
        )
    ) == (404, "PROJECT_NOT_FOUND")
    site.request("PUT", f"{BASE}/visibility", {"visibility": "project"}, key=mine)
    assert code(site.get(BASE, key=theirs)) == (404, "CONTENT_NOT_FOUND")
    assert site.get(BASE).status_code == 200, "the owner key reads everything"


def test_publishing_for_projects_names_them_and_a_new_version_keeps_who_may_read(sqlite_site: Site):
    for project in ("a", "b"):
        sqlite_site.add_project(project)
    none = publish(sqlite_site, "team/shared", visibility="projects")
    assert code(none) == (422, "INVALID_CONTENT")
    assert code(publish(sqlite_site, "team/shared", projects=["a"])) == (422, "INVALID_CONTENT")
    gone = publish(sqlite_site, "team/shared", visibility="projects", projects=["nobody"])
    assert code(gone) == (404, "PROJECT_NOT_FOUND")

    where = "/v1/content/datasets/team/shared"
    assert sqlite_site.get(where).status_code == 404
    assert publish(sqlite_site, "team/shared", visibility="projects", projects=["a", "b"]).status_code == 201
    assert sqlite_site.get(where).json()["projects"] == ["a", "b"]
    assert publish(sqlite_site, "team/shared", {"t": b"2"}).status_code == 201
    assert sqlite_site.get(where).json()["projects"] == ["a", "b"]
    publish(sqlite_site, "team/shared", {"t": b"3"}, visibility="project")
    found = sqlite_site.get(where).json()
    assert (found["visibility"], found["projects"]) == ("project", [])


def test_what_content_a_project_uses_stands_beside_its_quota(sqlite_site: Site):
    before = sqlite_site.get("/v1/admin/projects/default").json()["content_bytes"]
    publish(sqlite_site, "team/counted", files := {"t": b"twelve bytes"})
    own = len(manifest_of(ContentKind.DATASETS, files).encode())
    assert sqlite_site.get("/v1/admin/projects/default").json()["content_bytes"] - before == 12 + own


def test_permissions_are_asked_for_by_name(sqlite_site: Site):
    reader = sqlite_site.add_key("default", Permission.CONTENT_READ)
    stranger = sqlite_site.add_key("default", Permission.TRAINING_RUN)
    publish(sqlite_site)
    assert sqlite_site.get(BASE, key=reader).status_code == 200
    answer = sqlite_site.post(f"{BASE}/versions", {"manifest_sha256": "0" * 64}, key=reader)
    assert code(answer) == (403, "PERMISSION_DENIED")
    assert "content.publish" in answer.json()["message"]
    assert code(sqlite_site.get(BASE, key=stranger)) == (403, "PERMISSION_DENIED")


def test_a_namespace_belongs_to_the_project_that_used_it_first(site: Site):
    site.add_project("other")
    publish(site, key=site.add_key())
    answer = publish(site, name="team/more", key=site.add_key("other"))
    assert code(answer) == (409, "NAMESPACE_TAKEN")


def test_a_withdrawn_version_is_gone_until_the_same_is_published_again(site: Site):
    publish(site, version="1.0")
    digest = publish(site, version="1.1").json()["manifest_sha256"]
    one = sha256(b"one\n")
    answer = site.request("DELETE", f"{BASE}/versions/{digest}")
    assert answer.json() == {"kind": "datasets", "name": "team/words", "withdrawn": ["1.0", "1.1"]}
    assert site.woken
    for place in (
        "",
        "/versions/1.0",
        f"/versions/{digest}",
        f"/versions/{digest}/blobs/{one}",
    ):
        assert code(site.get(BASE + place)) == (404, "CONTENT_NOT_FOUND")
    assert code(site.request("DELETE", f"{BASE}/versions/1.0")) == (404, "CONTENT_NOT_FOUND")
    assert code(publish(site, files={"train.txt": b"x"}, version="1.0")) == (409, "CONTENT_VERSION_EXISTS")
    assert publish(site, version="1.0").status_code == 201
    assert site.get(f"{BASE}/versions/1.0").status_code == 200


@pytest.mark.parametrize("version", [" ", "1" * 150, "1" * 5000])
def test_a_label_of_any_wrong_length_is_told_the_same_limit(sqlite_site: Site, version: str):
    said = told(publish(sqlite_site, version=version))
    assert "128 characters" in said


def test_E102_a_recipe_is_published_with_dependencies_that_its_project_can_read(site: Site):
    site.add_project("other")
    theirs = site.add_key("other")
    common = publish(
        site, "common/lib", {"recipe.toml": RECIPE, "train.py": b"x"}, kind=RECIPES, version="1.0", key=theirs
    ).json()
    good = common["manifest_sha256"]

    def recipe(digest: str, ref: str = "1.0") -> dict[str, bytes]:
        needs = (
            f'[dependencies.lib]\nuri = "envloop://recipes/common/lib@{ref}"\nmanifest_sha256 = "{digest}"\n'
        )
        return {"recipe.toml": RECIPE + needs.encode(), "train.py": b"x"}

    mine = site.add_key()
    hidden = publish(site, "team/r", recipe(good), kind=RECIPES, key=mine)
    assert code(hidden) == (404, "CONTENT_NOT_FOUND")
    assert hidden.json()["errors"][0]["path"] == "dependencies.lib.uri"
    site.request("PUT", "/v1/content/recipes/common/lib/visibility", {"visibility": "public"}, key=theirs)
    assert code(publish(site, "team/r", recipe("0" * 64), kind=RECIPES, key=mine)) == (
        409,
        "CONTENT_HASH_MISMATCH",
    )
    made = publish(site, "team/r", recipe(good), kind=RECIPES, key=mine, version="1")
    assert made.status_code == 201, made.text
    assert made.json()["about"]["dependencies"]["lib"]["manifest_sha256"] == good
    site.request("PUT", "/v1/content/recipes/common/lib/visibility", {"visibility": "project"}, key=theirs)
    again = {"version": "2", "manifest_sha256": made.json()["manifest_sha256"]}
    assert code(site.post("/v1/content/recipes/team/r/versions", again, key=mine)) == (
        404,
        "CONTENT_NOT_FOUND",
    )


def test_E102_what_a_recipe_needs_is_told_beside_its_other_faults(sqlite_site: Site):
    needed = {"uri": "envloop://recipes/none/lib@1.0", "manifest_sha256": "0" * 64}
    files = {"recipe.toml": RECIPE, "train.py": b"x"}
    about = manifest_of(RECIPES, files).about | {"dependencies": {"lib": needed}}
    for also, more in (({"entrypoint": "train"}, {}), ({}, {"version": "no label"})):
        refused = publish(sqlite_site, "team/r", files, kind=RECIPES, about=about | also, store=False, **more)
        assert code(refused) == (404, "CONTENT_NOT_FOUND")
        assert "`trainshed recipe list`" in refused.json()["hint"]
        found = {fault["path"] for fault in refused.json()["errors"]}
        assert found == {"dependencies.lib.uri", *also, *more}


def test_E101_a_recipes_manifest_says_what_its_file_says(sqlite_site: Site):
    files = {"recipe.toml": RECIPE, "train.py": b"x"}
    other = manifest_of(RECIPES, files).about | {"entrypoint": "train:other"}
    assert "not what recipe.toml says" in told(
        publish(sqlite_site, "team/r", files, kind=RECIPES, about=other)
    )
    assert "needs a `recipe.toml`" in told(
        publish(
            sqlite_site, "team/r", {"train.py": b"x"}, kind=RECIPES, about=manifest_of(RECIPES, files).about
        )
    )
    misspelt = files | {"recipe.toml": RECIPE + b'[parameters]\ntype = "object"\nmaxPropertes = 3\n'}
    said = manifest_of(RECIPES, files).about | {"parameters": {"type": "object", "maxPropertes": 3}}
    refused = publish(sqlite_site, "team/r", misspelt, kind=RECIPES, about=said)
    assert code(refused) == (422, "INVALID_CONTENT")
    assert refused.json()["errors"][0]["path"] == "parameters.maxPropertes"
    assert "did you mean `maxProperties`?" in told(refused)
    assert publish(sqlite_site, "team/r", files, kind=RECIPES).status_code == 201


@pytest.fixture
def team(database: Database, tmp_path: Path) -> Iterator[Site]:
    """A server of a team, whose operator is on any machine, with each kind of database in turn."""
    with open_site(database, tmp_path / "data", personal=False) as opened:
        yield opened


def test_E94_plugins_are_approved_and_revoked_by_the_owner_alone(team: Site):
    site = team
    base = "/v1/content/plugins/team/filter/versions/1.0"
    item = publish(site, "team/filter", {"f.py": b"x"}, kind=PLUGINS, version="1.0").json()
    digest = item["manifest_sha256"]
    assert code(site.request("PUT", f"{base}/approval", key=site.add_key())) == (403, "PERMISSION_DENIED")
    admin = site.add_key("default", *Permission)
    assert code(site.request("PUT", f"{base}/approval", key=admin)) == (403, "PERMISSION_DENIED")
    approved = site.request("PUT", f"{base}/approval").json()
    assert (approved["approved"], approved["manifest_sha256"]) == (True, digest)
    assert site.get(base).json()["approval"] == approved
    assert site.request("PUT", f"{base}/approval").json() == approved
    assert site.get("/v1/content/plugins/approvals").json()["items"] == [approved]
    assert code(site.request("PUT", "/v1/content/plugins/team/filter/versions/9/approval")) == (
        404,
        "CONTENT_NOT_FOUND",
    )
    assert code(site.request("DELETE", "/v1/content/plugins/team/filter/versions/9/approval")) == (
        404,
        "CONTENT_NOT_FOUND",
    )
    site.request("DELETE", base)
    revoked = site.request("DELETE", f"{base}/approval").json()
    assert (revoked["approved"], revoked["manifest_sha256"]) == (False, digest)
    with site.services.database.read() as connection:
        assert store.approval(connection, "team/filter", digest).revoked_at is not None


def test_P13_E94_an_agent_approves_no_plugin_also_with_the_owner_key_and_may_revoke_one(team: Site):
    base = "/v1/content/plugins/team/filter/versions/1.0"
    publish(team, "team/filter", {"f.py": b"x"}, kind=PLUGINS, version="1.0")
    keys = [team.owner_key, team.add_key("default", *Permission, kind="agent", owner=True)]
    says = {"Trainshed-Source": "agent"}
    for key, headers in zip(keys, (says, {}), strict=True):
        refused = team.request("PUT", f"{base}/approval", key=key, headers=headers)
        assert code(refused) == (403, "FORBIDDEN")
        assert "trainshed plugin approve" in refused.json()["hint"]
        assert team.get(base).json()["approval"] is None
    assert team.request("PUT", f"{base}/approval").json()["approved"] is True
    revoked = team.request("DELETE", f"{base}/approval", headers=says)
    assert revoked.json()["approved"] is False


def test_a_file_is_found_among_very_many_by_halving(sqlite_site: Site):
    data = b"x"
    upload(sqlite_site, data)
    listed = [ContentFile(f"d{n % 7}/ünï-{n:06}.txt", 1, sha256(data), n % 3 == 0) for n in range(20_000)]
    manifest = make_manifest(DATASETS, listed, {"type": "data", "configs": {"default": {"train": ["**"]}}})
    upload(sqlite_site, manifest.encode())
    answer = sqlite_site.post(f"{BASE}/versions", {"version": "1", "manifest_sha256": manifest.sha256})
    assert (answer.status_code, answer.json()["files"]) == (201, 20_000)
    for file in (manifest.files[0], manifest.files[-1], *manifest.files[137::3000]):
        assert sqlite_site.get(f"{BASE}/versions/1/files/{file.path}").content == data
    for path in ("a", "d3/ünï-000000.txt", "z", "d0/ünï-000007.txt.x"):
        assert code(sqlite_site.get(f"{BASE}/versions/1/files/{path}")) == (404, "NOT_FOUND")
    first = sqlite_site.get(f"{BASE}/versions/1/files", params={"limit": 100}).json()
    second = sqlite_site.get(
        f"{BASE}/versions/1/files", params={"limit": 100, "cursor": first["next_cursor"]}
    ).json()
    assert [file["path"] for file in first["items"] + second["items"]] == [
        f.path for f in manifest.files[:200]
    ]
