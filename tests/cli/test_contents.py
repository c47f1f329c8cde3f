"""``dataset``, ``model``, ``recipe``, ``plugin``: what people see, what programs read, how commands end."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from support.contents import RECIPE
from support.fake_server import Reply, refusal
from support.projects import project, write
from trainshed.cli.content_progress import Lines
from trainshed.cli.exits import Exit
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.sdk import PublishProgress

DIGEST = "d" * 64
VERSION = {
    "kind": "datasets",
    "name": "team/words",
    "version": "1.0",
    "uri": "envloop://datasets/team/words@1.0",
    "manifest_sha256": DIGEST,
    "files": 2,
    "bytes": 2048,
    "published_at": "2026-11-29T12:00:00.000000+00:00",
    "published_by": "human:ada",
}
DETAIL = {
    **VERSION,
    "about": {
        "type": "data",
        "description": "Words",
        "configs": {"default": {"train": ["**"], "test": ["t"]}},
    },
    "visibility": "project",
    "approval": None,
}
CONTENT = {
    "kind": "datasets",
    "name": "team/words",
    "visibility": "public",
    "description": "Words",
    "versions": 3,
    "newest": VERSION,
    "created_at": VERSION["published_at"],
    "updated_at": VERSION["published_at"],
}
BASE = "/v1/content/datasets/team/words"
NOT_FOUND = refusal(404, "CONTENT_NOT_FOUND")


def page(*items, cursor=None):
    return Reply(body={"items": list(items), "next_cursor": cursor})


def test_lists_are_tables_for_people_documents_for_programs_and_names_for_scripts(run, fake):
    fake.routes = {"GET /v1/content/datasets": page(CONTENT, cursor="next")}
    shown = run("dataset", "list", "--q", "wor")
    assert shown.status == Exit.OK
    assert [word in shown.out for word in ("DATASET", "team/words", "1.0", "2.0 KiB", "public")] == [True] * 5
    assert "--cursor next" in shown.out
    assert run("dataset", "list", "--json").json["items"] == [CONTENT]
    assert run("dataset", "list", "--quiet").out == "team/words\n"


def test_an_empty_list_says_how_to_publish(run, fake):
    fake.routes = {"GET /v1/content/models": page()}
    assert "`model publish PATH --name NS/NAME`" in run("model", "list").out


def test_show_tells_a_content_or_one_version(run, fake):
    detail = {**CONTENT, "project_id": "p", "projects": [], "about": DETAIL["about"]}
    fake.routes = {f"GET {BASE}": Reply(body=detail), f"GET {BASE}/versions/1.0": Reply(body=DETAIL)}
    whole = run("dataset", "show", "team/words")
    newest = run("dataset", "show", "team/words", "--json").json
    keys = ("uri", "version", "manifest_sha256")
    assert [newest[key] for key in keys] == [newest["newest"][key] for key in keys]
    assert newest["manifest_sha256"] == DIGEST
    assert "envloop://datasets/team/words@1.0" in whole.out
    assert "default: train, test" in whole.out
    one = run("dataset", "show", "team/words@1.0")
    assert DIGEST in one.out
    assert run("dataset", "show", "team/words@1.0", "--json").json == DETAIL


def test_versions_and_files_are_listed_and_a_file_is_printed_as_it_is(run, fake):
    files = [{"path": "a b.txt", "size": 3, "sha256": DIGEST, "executable": False}]
    fake.routes = {
        f"GET {BASE}/versions": page(VERSION),
        f"GET {BASE}/versions/1.0": Reply(body=DETAIL),
        f"GET {BASE}/versions/{DIGEST}/files": page(*files),
    }
    assert DIGEST in run("dataset", "versions", "team/words").out
    assert run("dataset", "versions", "team/words", "--quiet").out == VERSION["uri"] + "\n"
    assert "a b.txt" in run("dataset", "files", "team/words@1.0").out
    assert run("dataset", "files", "team/words@1.0", "--json").json["items"] == files
    served(fake, "a b.txt", b"\x00\xff\n", b"\x00\xff\n")
    assert run("dataset", "files", "team/words@1.0", "a b.txt").raw == b"\x00\xff\n"
    assert run("dataset", "files", "team/words@1.0", "a b.txt", "--json").status == Exit.USAGE


def served(fake, path, published, stored):
    """The version 1.0 with one file, and what the server has of it now."""
    digest = hashlib.sha256(published).hexdigest()
    manifest = make_manifest(
        ContentKind.DATASETS, [ContentFile(path, len(published), digest)], {"type": "data"}
    )
    pinned = f"{BASE}/versions/{manifest.sha256}"
    fake.routes |= {
        f"GET {BASE}/versions/1.0": Reply(body={**DETAIL, "manifest_sha256": manifest.sha256}),
        f"GET {pinned}/manifest": Reply(body=manifest.encode()),
        f"GET {pinned}/blobs/{digest}": Reply(body=stored),
        f"POST {pinned}/blobs": Reply(body=f"{digest} {len(stored)}\\n".encode() + stored),
    }


@pytest.mark.parametrize("stored", [b"worse", b"wor", b"word and more", b""])
def test_a_damaged_file_is_never_printed_with_success(run, fake, stored):
    served(fake, "w.txt", b"words", stored)
    ran = run("dataset", "files", "team/words@1.0", "w.txt")
    assert ran.status == Exit.FAILED
    assert "w.txt: what arrived is damaged" in ran.err
    assert "content verify" in ran.err


def test_a_file_that_is_not_there_is_refused_with_the_command_that_lists_them(run, fake):
    served(fake, "w.txt", b"words", b"words")
    ran = run("dataset", "files", "team/words@1.0", "nope")
    assert ran.status == Exit.NOT_FOUND
    assert "`trainshed dataset files team/words@1.0`" in ran.err
    assert "openapi" not in ran.err


def test_what_is_not_found_is_answered_with_the_nearest_name(run, fake):
    fake.routes = {
        "GET /v1/content/datasets": page(CONTENT),
        "GET /v1/content/datasets/team/wrods": NOT_FOUND,
    }
    ran = run("dataset", "show", "team/wrods")
    assert ran.status == Exit.NOT_FOUND
    assert ran.out == ""
    assert "did you mean team/words?" in ran.err


def test_what_is_not_found_is_answered_with_the_nearest_version(run, fake):
    fake.routes = {
        "GET /v1/content/datasets": page(CONTENT),
        f"GET {BASE}/versions": page(VERSION),
        f"GET {BASE}/versions/1.1": NOT_FOUND,
    }
    assert "did you mean team/words@1.0?" in run("dataset", "show", "team/words@1.1").err


def test_visibility_and_withdrawal(run, fake):
    shared = {"kind": "datasets", "name": "team/words", "visibility": "projects", "projects": ["p"]}
    gone = {"kind": "datasets", "name": "team/words", "withdrawn": ["1.0"]}
    fake.routes = {
        f"PUT {BASE}/visibility": Reply(body=shared),
        f"DELETE {BASE}/versions/1.0": Reply(body=gone),
    }
    assert run("dataset", "visibility", "team/words", "projects", "--to", "p", "--json").json == shared
    assert json.loads(fake.seen[-1].body) == {"visibility": "projects", "projects": ["p"]}
    assert run("dataset", "visibility", "team/words", "projects").status == Exit.USAGE
    assert run("dataset", "visibility", "team/words", "public", "--to", "p").status == Exit.USAGE
    assert "1.0" in run("dataset", "withdraw", "team/words@1.0").out
    assert run("dataset", "withdraw", "team/words").status == Exit.USAGE


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (refusal(409, "CONTENT_VERSION_EXISTS"), Exit.CONFLICT),
        (refusal(409, "NAMESPACE_TAKEN"), Exit.CONFLICT),
        (refusal(403, "PERMISSION_DENIED"), Exit.ACCESS),
        (refusal(422, "INVALID_CONTENT"), Exit.REFUSED),
        (refusal(507, "STORAGE_FULL"), Exit.UNAVAILABLE),
    ],
)
def test_a_refused_publication_exits_with_its_cause(run, fake, tmp_path, reply, status):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_text("x")
    fake.routes = {f"POST {BASE}/versions": reply}
    ran = run("dataset", "publish", str(tmp_path / "tree"), "--name", "team/words")
    assert (ran.status, ran.out) == (status, "")
    assert reply.body["code"] in ran.err


def test_a_folder_that_cannot_be_published_is_refused_with_every_fault(run, fake, tmp_path):
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "a").write_text("")
    (tmp_path / "A").write_text("")
    fake.routes = {}
    ran = run("model", "publish", str(tmp_path), "--name", "team/m", "--json")
    assert ran.status == Exit.REFUSED
    error = json.loads(ran.err.splitlines()[-1])
    assert error["code"] == "INVALID_CONTENT"
    assert {fault["path"] for fault in error["errors"]} == {"link", "a"}
    assert fake.seen == []
    assert run("model", "publish", str(tmp_path / "none"), "--name", "team/m").status == Exit.USAGE
    assert run("model", "publish", str(tmp_path), "--name", "team").status == Exit.USAGE
    assert run("model", "publish", str(tmp_path)).status == Exit.USAGE


@pytest.mark.parametrize("noun", ["dataset", "model"])
def test_a_label_that_cannot_be_is_told_beside_what_the_folder_says_of_itself(run, fake, tmp_path, noun):
    (tmp_path / "a").write_text("")
    (tmp_path / f"{noun}.toml").write_text(f"[{noun}]\nlicence = 'x'\n")
    fake.routes = {}
    ran = run(noun, "publish", str(tmp_path), "--name", "team/m", "--version", "no label")
    assert ran.status == Exit.REFUSED
    assert "2 faults" in ran.err
    assert "`version`: must start with a letter or digit" in ran.err
    assert "not 'no label'" in ran.err
    assert "did you mean `license`?" in ran.err
    assert fake.seen == []


def test_every_kind_is_published_shown_and_fetched_against_a_server(
    run, module_server, tmp_path, monkeypatch
):
    for name, value in module_server.environment.items():
        if name != "TRAINSHED_HOME":
            monkeypatch.setenv(name, value)
    tree = tmp_path / "tree"
    (tree / "train").mkdir(parents=True)
    (tree / "train/x.txt").write_text("x")
    (tree / "recipe.toml").write_bytes(RECIPE)
    (tree / "train.py").write_text("def main(): ...\n")
    for kind in ("dataset", "model", "recipe", "plugin"):
        name = f"cli/{kind}"
        done = run(kind, "publish", str(tree), "--name", name, "--version", "1.0", "--json").json
        assert (done["uri"], done["published_before"]) == (f"envloop://{kind}s/{name}@1.0", False)
        again = run(kind, "publish", str(tree), "--name", name, "--version", "1.0")
        assert again.status == Exit.OK
        assert "nothing had to be sent" in again.err
        assert (
            run(kind, "publish", str(tree), "--name", name, "--version", "1.0", "-q").out
            == done["uri"] + "\n"
        )
        assert done["uri"] in run(kind, "show", name).out
        out = tmp_path / f"out-{kind}"
        fetched = run(kind, "download", f"{name}@1.0", str(out))
        assert fetched.status == Exit.OK
        assert "each verified" in fetched.err
        assert (out / "train/x.txt").read_text() == "x"
    (out / "train/x.txt").write_text("other")
    assert run("plugin", "download", "cli/plugin@1.0", str(out)).status == Exit.FAILED
    assert run("plugin", "approve", "cli/plugin@1.0", "--yes").status == Exit.OK
    assert "approved      yes" in run("plugin", "show", "cli/plugin@1.0").out
    assert run("dataset", "withdraw", "cli/dataset@1.0").status == Exit.OK
    assert run("dataset", "download", "cli/dataset@1.0", str(tmp_path / "none")).status == Exit.NOT_FOUND
    assert not Path(tmp_path / "none").exists()


def test_publishing_for_projects_names_them_or_is_refused(run, fake, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    fake.routes = {f"POST {BASE}/versions": Reply(body=DETAIL)}
    common = ("dataset", "publish", str(tmp_path), "--name", "team/words")
    for wrong in (("--visibility", "projects"), ("--to", "p"), ("--visibility", "public", "--to", "p")):
        ran = run(*common, *wrong)
        assert ran.status == Exit.USAGE
        assert "--to PROJECT" in ran.err
    ran = run(*common, "--visibility", "projects", "--to", "p", "--to", "q")
    assert ran.status == Exit.OK
    assert "is now `projects` (p, q)" in ran.err
    assert "is now" not in run(*common).err


def test_what_is_left_out_is_told_by_reason_and_in_the_document(run, fake, tmp_path):
    place = project(tmp_path / "r", {"recipe.toml": RECIPE, "train.py": "", ".gitignore": "runs/\n.venv\n"})
    write(
        place, dict.fromkeys(["runs/1", ".venv/x", "a.log", "b.log", "c.log", "d.log", ".env", "k.pem"], "x")
    )
    name = "POST /v1/content/recipes/team/words/versions"
    fake.routes = {name: Reply(body={**DETAIL, "kind": "recipes"})}
    common = ("recipe", "publish", str(place), "--name", "team/words", "--exclude", "*.log")
    told = run(*common).err
    for line in (
        "Left out: a.log, b.log, c.log and 1 more (excluded).",
        "Left out: .venv, runs (git ignores it).",
        "Left out: .env, k.pem (looks like credentials).",
        "Left out: .git (never published).",
    ):
        assert line in told
    document = run(*common, "--exclude", "!a.log", "--json").json
    assert document["reasons"] == {
        ".env": "looks like credentials (.env)",
        ".git": "never published",
        **dict.fromkeys(("b.log", "c.log", "d.log"), "excluded"),
        "k.pem": "looks like credentials (*.pem)",
        **dict.fromkeys((".venv", "runs"), "git ignores it"),
    }
    assert sorted(document["skipped"]) == sorted(document["reasons"])
    assert run(*common, "--exclude", "").status == Exit.USAGE


def test_a_uri_stands_for_the_name_where_its_kind_is_the_one_meant(run, fake):
    fake.routes = {f"GET {BASE}/versions/1.0": Reply(body=DETAIL)}
    assert DIGEST in run("dataset", "show", "envloop://datasets/team/words@1.0").out
    ran = run("model", "show", "envloop://datasets/team/words@1.0")
    assert ran.status == Exit.USAGE
    assert "names one of the datasets, and one of the models is meant" in ran.err


def test_a_download_goes_into_the_folder_named_once_or_into_one_of_its_own_name(
    run, fake, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    served(fake, "w.txt", b"words", b"words")
    for given, place in (((), "words"), (("one",), "one"), (("--to", "two"), "two")):
        ran = run("dataset", "download", "team/words@1.0", *given)
        assert ran.status == Exit.OK, ran.err
        assert (tmp_path / place / "w.txt").read_bytes() == b"words"
    assert run("dataset", "download", "team/words@1.0", "one", "--to", "two").status == Exit.USAGE


def test_a_recipe_is_shown_with_what_it_takes(run, fake):
    about = {
        "entrypoint": "train:main",
        "parameters": {"rate": {"type": "number", "default": 0.1, "minimum": 0}},
        "inputs": {"data": {"kind": "datasets"}},
        "dependencies": {"base": {"uri": "envloop://recipes/team/base@1"}},
    }
    where = "GET /v1/content/recipes/team/words/versions/1.0"
    fake.routes = {where: Reply(body={**DETAIL, "kind": "recipes", "about": about})}
    shown = run("recipe", "show", "team/words@1.0").out
    assert "rate: number, default 0.1, minimum 0" in shown
    assert "data: kind=datasets" in shown
    assert "base: envloop://recipes/team/base@1" in shown


def test_a_log_is_told_how_far_it_is_now_and_then():
    at, told = [0.0], []
    lines = Lines(told.append, lambda: at[0])
    lines(PublishProgress("uploading", 1, 2048))
    assert told == []
    at[0] = 5.0
    lines(PublishProgress("uploading files", 3, 10))
    lines(PublishProgress("uploading files", 4, 10))
    assert told == ["uploading: 3 of 10 files, 1 B of 2.0 KiB"]
