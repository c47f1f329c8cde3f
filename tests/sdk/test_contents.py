"""Contents through the client, against a real server and a network that drops, cuts and repeats."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.contents import RECIPE
from support.fake_server import Reply
from support.proxy import Fault, FaultProxy, in_turn
from trainshed import Client
from trainshed.model.content import ContentFile, ContentKind, make_manifest
from trainshed.sdk import (
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    IntegrityError,
    LocalFileError,
    NotFound,
    NotFreezable,
    RetryPolicy,
    UnsafeName,
    publication,
    stat_cache,
)
from trainshed.sdk.small_files import SMALL_BYTES

QUICK = RetryPolicy(attempts=6, first=0.01, longest=0.1)
ABOUT = {"type": "data", "configs": {"default": {"train": ["**"]}}}


@pytest.fixture(scope="module")
def client(module_server):
    with Client(module_server.url, module_server.key, retry=QUICK) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINSHED_HOME", str(tmp_path / "home"))


@pytest.fixture
def old_times(monkeypatch):
    """Files of this test count as older than a tick of the clock."""
    monkeypatch.setattr(stat_cache, "_FINE_GRAIN_NS", -(10**12))
    monkeypatch.setattr(stat_cache, "_COARSE_GRAIN_NS", -(10**12))


@pytest.fixture
def tree(tmp_path) -> Path:
    root = tmp_path / "tree"
    for path, text in {
        "train/a.txt": "one",
        "train/b.txt": "two",
        "test/ü x.txt": "one",
        "run.sh": "#!",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "run.sh").chmod(0o755)
    return root


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


def test_a_folder_is_published_read_and_downloaded_byte_for_byte(client, tree, tmp_path):
    done = client.datasets.publish(tree, name="sdk/whole", version="1.0")
    assert (done.hashed, done.version.files, done.published_before) == (4, 4, False)
    assert done.version.about["configs"]["default"].keys() == {"train", "test"}
    assert client.datasets.get("sdk/whole").newest.version == "1.0"
    assert [row.version for row in client.datasets.versions("sdk/whole")] == ["1.0"]
    assert "sdk/whole" in [row.name for row in client.datasets.iter_all(q="WHOLE")]
    assert {row["path"] for row in client.datasets.files("sdk/whole@1.0")} == contents(tree).keys()
    assert b"".join(client.datasets.read_file("sdk/whole", "test/ü x.txt")) == b"one"
    assert hashlib.sha256(client.datasets.manifest("sdk/whole")).hexdigest() == done.version.manifest_sha256
    moves: list[tuple[int, int]] = []
    client.datasets.download("sdk/whole@1.0", tmp_path / "out", progress=lambda *at: moves.append(at))
    assert contents(tmp_path / "out") == contents(tree)
    assert os.access(tmp_path / "out/run.sh", os.X_OK)
    assert not os.access(tmp_path / "out/train/a.txt", os.X_OK)
    assert moves[-1] == (11, 11)


def test_an_unchanged_folder_is_published_again_without_reading_a_file(client, tree, old_times, monkeypatch):
    first = client.datasets.publish(tree, name="sdk/again", version="1")
    monkeypatch.setattr(publication, "hash_files", None)
    again = client.datasets.publish(tree, name="sdk/again", version="1")
    assert (again.hashed, again.uploaded, again.published_before) == (0, 0, True)
    assert again.version == first.version
    other = client.datasets.publish(tree, name="sdk/again", version="2")
    assert (other.version.manifest_sha256, other.published_before) == (first.version.manifest_sha256, False)


def test_only_what_was_touched_is_read_and_only_what_is_new_is_sent(client, tree, old_times):
    client.datasets.publish(tree, name="sdk/touched", version="1")
    (tree / "train/b.txt").write_text("changed")
    (tree / "train/c.txt").write_text("one")
    done = client.datasets.publish(tree, name="sdk/touched", version="2")
    assert (done.hashed, done.uploaded) == (2, 1)
    with pytest.raises(Conflict) as caught:
        client.datasets.publish(tree, name="sdk/touched", version="1")
    assert caught.value.code == "CONTENT_VERSION_EXISTS"


def test_what_the_server_lost_meanwhile_is_sent_again(new_server, tree, old_times):
    """A known digest may be of another server, or of one whose content was collected."""
    first, second = new_server("one").start(), new_server("two").start()
    with Client(first.url, first.key, retry=QUICK) as client:
        client.datasets.publish(tree, name="sdk/lost", version="1")
    with Client(second.url, second.key, retry=QUICK) as client:
        done = client.datasets.publish(tree, name="sdk/lost", version="1")
    assert (done.hashed, done.uploaded) == (0, 3)


def test_a_long_manifest_goes_as_a_blob(client, tree, monkeypatch):
    monkeypatch.setattr(publication, "INLINE_MANIFEST_BYTES", 10)
    assert client.models.publish(tree, name="sdk/long").version.files == 4


@pytest.mark.parametrize(
    "fault", [Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.CUT_REPLY, Fault.REPEAT_REQUEST]
)
def test_a_publication_survives_the_network(module_server, tree, fault):
    plan = in_turn([fault] * 2, method="POST", path="/v1/content/datasets")
    with (
        FaultProxy(module_server.url, plan) as proxy,
        Client(proxy.url, module_server.key, retry=QUICK) as client,
    ):
        (tree / "own").write_text(fault.name)
        done = client.datasets.publish(tree, name=f"sdk/{fault.name.lower()}", version="1")
        assert done.version.files == 5
        assert len(client.datasets.versions(done.version.name)) == 1


def test_a_hostile_folder_is_refused_with_every_fault_before_anything_is_sent(client, tree):
    (tree / "link").symlink_to("/etc/passwd")
    (tree / "Run.sh").write_text("")
    (tree / "dataset.toml").write_text("[dataset]\ntype = 'x'\n")
    with pytest.raises(NotFreezable) as caught:
        client.datasets.publish(tree, name="sdk/hostile")
    assert [fault.path for fault in caught.value.faults] == ["link", "run.sh", "type"]
    (tree / "link").unlink()
    (tree / "Run.sh").unlink()
    with pytest.raises(NotFreezable) as caught:
        client.datasets.publish(tree, name="sdk/hostile")
    assert caught.value.faults[0].path == "type"
    with pytest.raises(NotFound):
        client.datasets.get("sdk/hostile")


def test_a_link_hides_no_fault_of_a_recipe_and_a_linked_definition_is_one_fault(client, tmp_path):
    root = tmp_path / "recipe"
    root.mkdir()
    (root / "link").symlink_to("train.py")
    (root / "train.py").write_text("def main(): ...\n")
    (root / "recipe.toml").write_text('abi = "x"\nentrypoint = "other:main"\n')
    with pytest.raises(NotFreezable) as caught:
        client.recipes.publish(root, name="sdk/faulty")
    assert {fault.path for fault in caught.value.faults} == {"link", "abi", "entrypoint"}
    (root / "link").rename(root / "recipe.toml")
    with pytest.raises(NotFreezable) as caught:
        client.recipes.publish(root, name="sdk/faulty")
    [fault] = caught.value.faults
    assert (fault.path, "symbolic link" in fault.message) == ("recipe.toml", True)


@pytest.mark.parametrize("label", ["no label", "latest", ""])
def test_a_name_and_a_label_that_cannot_be_are_told_beside_the_faults_of_the_folder(serve, tree, label):
    server, client = serve({})
    (tree / "version").symlink_to("run.sh")
    (tree / "dataset.toml").write_text("[dataset]\ntype = 'x'\n")
    with pytest.raises(NotFreezable) as caught:
        client.datasets.publish(tree, name="sdk/-words", version=label)
    assert [fault.path for fault in caught.value.faults] == ["version", "name", "version", "type"]
    with pytest.raises(NotFreezable) as caught:
        client.models.publish(tree / "run.sh", name="sdk/model", version=label)
    assert [fault.path for fault in caught.value.faults] == ["version"]
    (tree / "none").mkdir()
    with pytest.raises(NotFreezable) as caught:
        client.recipes.publish(tree / "none", name="sdk/recipe", version=label)
    assert [fault.path for fault in caught.value.faults] == ["", "version"]
    assert server.seen == []


def needing(folder: Path, uri: str, digest: str, line: str = "") -> Path:
    """A Recipe with one dependency."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("def main(): ...\n")
    needs = f'[dependencies.lib]\nuri = "{uri}"\nmanifest_sha256 = "{digest}"\n'
    (folder / "recipe.toml").write_text(f"{RECIPE.decode()}{line}\n{needs}")
    return folder


def test_E102_what_a_recipe_needs_is_told_beside_its_other_faults(client, module_server, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/train.py").write_text("def main(): ...\n")
    (tmp_path / "lib/recipe.toml").write_bytes(RECIPE)
    lib = client.recipes.publish(tmp_path / "lib", name="sdk/lib", version="1").version
    for uri, digest, told in (
        (lib.uri, lib.manifest_sha256, []),
        ("envloop://recipes/sdk/lib@2", lib.manifest_sha256, []),
        (lib.uri, "0" * 64, ["dependencies.lib.manifest_sha256"]),
        ("envloop://recipes/sdk/none@1", "0" * 64, ["dependencies.lib.uri"]),
    ):
        for line, version in (("speed = 1", "1"), ("", "no label")):
            root = needing(tmp_path / "recipe", uri, digest, line)
            with pytest.raises(NotFreezable) as caught:
                client.recipes.publish(root, name="sdk/needing", version=version)
            local = "speed" if line else "version"
            assert [fault.path for fault in caught.value.faults] == [local, *told]
    # So is what is wrong with a label that looks like a digest, which only the whole manifest shows.
    root = needing(tmp_path / "recipe", "envloop://recipes/sdk/none@1", "0" * 64)
    for _ in range(2):  # the second time the folder is a known one
        with pytest.raises(NotFreezable) as caught:
            client.recipes.publish(root, name="sdk/needing", version="b" * 64)
        assert [fault.path for fault in caught.value.faults] == ["version", "dependencies.lib.uri"]
    again = client.recipes.publish(tmp_path / "lib", name="sdk/lib", version=lib.manifest_sha256)
    assert again.version.version == lib.manifest_sha256
    # What is wrong here is told also where nobody says what else is.
    with (
        FaultProxy(module_server.url, in_turn([Fault.DROP_REQUEST] * 9, method="GET", path="/v1")) as proxy,
        Client(proxy.url, module_server.key, retry=QUICK) as lonely,
        pytest.raises(NotFreezable) as caught,
    ):
        lonely.recipes.publish(needing(root, lib.uri, "0" * 64, "speed = 1"), name="sdk/needing")
    assert [fault.path for fault in caught.value.faults] == ["speed"]


@pytest.mark.parametrize("name", ["sdk/words@", "envloop://datasets/sdk/words@"])
def test_a_name_with_nothing_behind_its_at_is_refused_before_anything_is_sent(serve, name):
    server, client = serve({})
    for read in (client.datasets.get, client.datasets.withdraw, client.runners.get):
        with pytest.raises(ConfigurationError, match=r"nothing behind its `@`|is not namespace/name"):
            read(name)
    assert server.seen == []


@pytest.mark.parametrize("name", ["qa", "Lab QA", "a/b/c", ""])
def test_what_is_no_name_to_publish_under_is_told_with_the_form_of_one(serve, tmp_path, name):
    server, client = serve({})
    with pytest.raises(ConfigurationError, match=r"is not namespace/name$") as caught:
        client.datasets.publish(tmp_path, name=name)
    assert "`team/words`" in caught.value.hint
    with pytest.raises(ConfigurationError, match="has no `@…`") as caught:
        client.datasets.publish(tmp_path, name="team/words@1.0")
    assert "`--version 1.0`" in caught.value.hint
    assert server.seen == []


def test_where_no_file_can_be_published_no_splits_are_missed(serve, tmp_path):
    server, client = serve({})
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(NotFreezable) as caught:
        client.datasets.publish(tmp_path, name="sdk/words")
    assert [fault.path for fault in caught.value.faults] == ["link"]
    assert server.seen == []


def test_two_publishers_of_one_version_get_one_answer_each(client, tmp_path):
    def attempt(text: str) -> str:
        folder = tmp_path / text
        folder.mkdir()
        (folder / "a").write_text(text)
        try:
            return client.models.publish(folder, name="sdk/race", version="1").version.manifest_sha256
        except Conflict as error:
            return error.code

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(attempt, ["one", "two", "three", "four"]))
    assert answers.count("CONTENT_VERSION_EXISTS") == 3
    assert client.models.version("sdk/race@1").manifest_sha256 in answers


def test_a_download_that_broke_off_goes_on_and_keeps_what_is_whole(module_server, client, tmp_path):
    folder = tmp_path / "big"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.bin").write_bytes(os.urandom(1 << 20))
    digest = client.models.publish(folder, name="sdk/big", version="1").version.manifest_sha256
    blobs = f"/v1/content/models/sdk/big/versions/{digest}/blobs"
    plan = in_turn([Fault.CUT_REPLY] * 20, method="GET", path=blobs)
    impatient = RetryPolicy(attempts=1)
    with (
        FaultProxy(module_server.url, plan) as proxy,
        Client(proxy.url, module_server.key, retry=impatient) as broken,
        pytest.raises(ConnectionFailed),
    ):
        broken.models.download("sdk/big", tmp_path / "out", parallel=1)
    assert not list((tmp_path / "out").glob("*.bin"))
    client.models.download("sdk/big@1", tmp_path / "out")
    for path in folder.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    kept = (tmp_path / "out/0.bin").stat().st_ino
    client.models.download("sdk/big@1", tmp_path / "out")
    assert (tmp_path / "out/0.bin").stat().st_ino == kept
    (tmp_path / "out/0.bin").write_text("mine")
    with pytest.raises(LocalFileError, match="other content"):
        client.models.download("sdk/big@1", tmp_path / "out")
    client.models.download("sdk/big@1", tmp_path / "out", overwrite=True)


def test_a_version_that_is_withdrawn_while_it_is_downloaded_says_so_and_can_be_gone_on_with(client, tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"{number}" * (SMALL_BYTES + 1))
    client.datasets.publish(folder, name="sdk/gone", version="1")
    withdrawn = []

    def moved(done: int, total: int) -> None:
        if done and not withdrawn:
            withdrawn.append(client.datasets.withdraw("sdk/gone@1"))

    with pytest.raises(NotFound) as caught:
        client.datasets.download("sdk/gone@1", tmp_path / "out", parallel=1, progress=moved)
    assert "withdrawn meanwhile" in caught.value.hint
    assert contents(tmp_path / "out").items() < contents(folder).items()
    client.datasets.publish(folder, name="sdk/gone", version="1")
    client.datasets.download("sdk/gone@1", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(folder)


def test_sharing_and_withdrawing_through_the_client(client, tree):
    client.plugins.publish(tree, name="sdk/plug", version="1")
    assert client.plugins.set_visibility("sdk/plug", "public")["visibility"] == "public"
    assert client.plugins.approve("sdk/plug@1")["approved"] is True
    assert [row["name"] for row in client.plugins.approvals()] == ["sdk/plug"]
    assert client.plugins.revoke("sdk/plug@1")["approved"] is False
    assert client.plugins.withdraw("sdk/plug@1")["withdrawn"] == ["1"]
    with pytest.raises(NotFound):
        client.plugins.get("sdk/plug")


def lying(serve, data: bytes, files: dict[str, bytes], *, announced: str | None = None):
    """A server whose manifest is ``data`` and that serves these blobs."""
    digest = announced or hashlib.sha256(data).hexdigest()
    base = "/v1/content/datasets/a/b/versions"
    version = {"kind": "datasets", "name": "a/b", "version": "1", "uri": "u", "manifest_sha256": digest}
    routes = {
        f"GET {base}/1": Reply(body=version),
        f"GET {base}/{digest}": Reply(body=version),
        f"GET {base}/{digest}/manifest": Reply(body=data),
    }
    for name, content in files.items():
        routes[f"GET {base}/{digest}/blobs/{name}"] = Reply(body=content)
    return serve(routes)[1]


def manifest(*files: ContentFile) -> bytes:
    return make_manifest(ContentKind.DATASETS, files, ABOUT).encode()


def test_a_server_that_lies_about_a_manifest_or_a_file_leaves_nothing(serve, tmp_path):
    name = hashlib.sha256(b"right").hexdigest()
    good = manifest(ContentFile("a", 5, name))
    with pytest.raises(IntegrityError, match="manifest"):
        lying(serve, good, {}, announced="0" * 64).datasets.download("a/b@1", tmp_path / "x")
    with pytest.raises(IntegrityError, match="announced"):
        lying(serve, good, {name: b"wrong"}).datasets.download("a/b@1", tmp_path / "y")
    assert list((tmp_path / "y").iterdir()) == []
    for path in ("../out", "/etc/x", "a/../../out"):
        hostile = manifest(ContentFile(path, 5, name))
        with pytest.raises((IntegrityError, UnsafeName)):
            lying(serve, hostile, {name: b"right"}).datasets.download("a/b@1", tmp_path / "z")
        assert not (tmp_path / "z").exists()
