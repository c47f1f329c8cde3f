"""Content on this machine: verified once, linked and not copied, shared, held, bounded, whole or absent."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.local_content import Clock, Remote, content_of, publish
from trainshed.content import linked_trees
from trainshed.content.blobs import FolderBlobStore
from trainshed.content.local import Cancelled, LocalContent, LocalContentError
from trainshed.model.content import ContentFile, ContentKind, make_manifest


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def local(store: FolderBlobStore, tmp_path: Path, clock: Clock) -> LocalContent:
    return LocalContent(tmp_path / "cache", store, clock=clock)


@pytest.fixture
def remote(store: FolderBlobStore) -> Remote:
    return Remote(store)


@pytest.fixture
def cached(remote: Remote, tmp_path: Path, clock: Clock) -> LocalContent:
    return LocalContent(tmp_path / "cache", remote, clock=clock)


FILES = {"a.txt": b"one", "deep/er/b.bin": b"two", "deep/名前 é.txt": b"three", "deep/same": b"one"}


# Trees


def test_C13_a_tree_holds_the_files_of_its_manifest_as_links_that_nobody_may_write(local, store):
    tree = local.tree(publish(store, FILES), "att_1")
    assert content_of(tree) == FILES
    for path, content in FILES.items():
        blob = store.path(hashlib.sha256(content).hexdigest())
        assert (tree / path).samefile(blob), "no byte was copied"
        assert (tree / path).stat().st_mode & 0o777 == 0o444
    assert {p.stat().st_mode & 0o777 for p in [tree, *tree.rglob("*")] if p.is_dir()} == {0o555}


def test_an_executable_is_a_copy_so_that_the_same_bytes_elsewhere_stay_what_they_are(local, store):
    tree = local.tree(publish(store, {"run.sh": b"#!", "data": b"#!"}, ["run.sh"]), "att_1")
    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (tree / "data").stat().st_mode & 0o777 == 0o444
    assert not (tree / "run.sh").samefile(tree / "data")


def test_a_tree_is_built_once_and_shared_by_attempts_also_after_a_restart(local, store, tmp_path, clock):
    name = publish(store, FILES)
    first = local.tree(name, "att_1")
    assert local.tree(name, "att_2") == first
    inode = first.stat().st_ino
    reopened = LocalContent(tmp_path / "cache", store, clock=clock)
    assert reopened.tree(name, "att_3").stat().st_ino == inode
    assert reopened.usage().trees == 1
    assert reopened.usage().holders == 3


def test_an_empty_content_is_an_empty_folder(local, store):
    assert content_of(local.tree(publish(store, {}), "att_1")) == {}


def test_many_threads_that_want_one_tree_get_the_same_one(local, store):
    name = publish(store, {f"{n:03}": bytes([n]) for n in range(200)})
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: local.tree(name, f"att_{n}"), range(16)))
    assert len(set(found)) == 1
    assert len(content_of(found[0])) == 200


def test_a_checkpoints_files_become_a_tree_without_a_manifest(local, store):
    blob = store.put(io.BytesIO(b"weights"))
    files = [ContentFile("adapter_model.safetensors", blob.size, blob.sha256)]
    tree = local.tree_of(files, "att_1")
    assert content_of(tree) == {"adapter_model.safetensors": b"weights"}
    assert local.tree_of(files, "att_2") == tree


def test_files_with_more_names_than_the_file_system_allows_are_copied(local, store, monkeypatch):
    real, names = os.link, Counter[str]()

    def link(source: str, place: str) -> None:
        names[source] += 1
        if names[source] > 2:
            raise OSError(31, "Too many links", source)
        real(source, place)

    monkeypatch.setattr(os, "link", link)
    tree = local.tree(publish(store, {f"{n}": b"same" for n in range(7)}), "att_1")
    assert content_of(tree) == {f"{n}": b"same" for n in range(7)}
    assert len({p.stat().st_ino for p in tree.iterdir()}) == 3


def test_on_another_file_system_files_are_copied_and_proved(store, mount_tmpfs, clock):
    local = LocalContent(mount_tmpfs("size=8m") / "cache", store, clock=clock)
    tree = local.tree(publish(store, FILES, ["a.txt"]), "att_1")
    assert content_of(tree) == FILES
    assert local.usage().bytes > sum(map(len, FILES.values()))


# Damage


def test_P7_a_blob_that_was_changed_is_found_before_it_is_shown(local, store):
    name = publish(store, FILES)
    place = store.path(hashlib.sha256(b"two").hexdigest())
    place.chmod(0o644)
    place.write_bytes(b"TWO")
    with pytest.raises(LocalContentError, match="damaged") as error:
        local.tree(name, "att_1")
    assert (error.value.code, error.value.retryable) == ("CONTENT_DAMAGED", False)
    assert local.usage().trees == 0


@pytest.mark.parametrize("harm", ["write", "remove", "add", "replace", "index"])
def test_P7_a_tree_that_was_changed_is_made_anew(local, store, clock, harm):
    name = publish(store, FILES, ["deep/same"])
    tree = local.tree(name, "att_1")
    if harm == "write":
        (tree / "deep/same").chmod(0o644)
        (tree / "deep/same").write_bytes(b"x")
    elif harm == "remove":
        (tree / "a.txt").unlink()
    elif harm == "add":
        (tree / "new").write_bytes(b"")
    elif harm == "replace":
        (tree / "a.txt").rename(tree / "x")
        (tree / "a.txt").write_bytes(b"one")
    else:
        (tree.parent / "index.jsonl").write_text("[")
    clock.now += 3600
    assert content_of(local.tree(name, "att_2")) == FILES
    assert (tree / "deep/same").read_bytes() == b"one"


def change(tree, text):
    (tree / "a.txt").chmod(0o644)
    (tree / "a.txt").write_bytes(text)


def test_P7_a_change_is_found_at_the_very_next_use(local, store):
    name = publish(store, FILES, ["a.txt"])
    change(local.tree(name, "att_1"), b"altered")
    assert content_of(local.tree(name, "att_2")) == FILES


def test_P7_what_a_change_did_to_a_stored_blob_is_refused_at_the_very_next_use(local, store):
    name = publish(store, FILES)
    change(local.tree(name, "att_1"), b"altered")
    with pytest.raises(LocalContentError, match="damaged"):
        local.tree(name, "att_2")


def test_P7_a_large_tree_is_looked_at_when_an_attempt_that_saw_it_ended_or_after_a_minute(
    local, store, clock, monkeypatch
):
    monkeypatch.setattr("trainshed.content.local._ALWAYS_LOOKED_AT", 2)
    name = publish(store, FILES, ["a.txt"])
    tree = local.tree(name, "att_1")
    looks = []
    real = linked_trees.fault
    monkeypatch.setattr(linked_trees, "fault", lambda place: looks.append(place) or real(place))
    local.tree(name, "att_2")
    assert looks == []
    change(tree, b"altered")
    local.release("att_1")
    assert content_of(local.tree(name, "att_3")) == FILES
    change(local.tree(name, "att_4"), b"altered")
    clock.now += 61
    assert content_of(local.tree(name, "att_5")) == FILES
    assert len(looks) == 2


def test_a_tree_that_is_made_anew_leaves_what_others_hold_until_they_let_go(local, store, clock, tmp_path):
    name = publish(store, FILES)
    old = os.open(local.tree(name, "att_1"), os.O_RDONLY)
    (tmp_path / "cache" / "trees" / name / "files" / "new").write_bytes(b"")
    clock.now += 3600
    local.tree(name, "att_2")
    assert os.stat("a.txt", dir_fd=old).st_size == 3, "a mounted tree keeps its files"
    local.release("att_1")
    local.release("att_2")
    assert [p.name for p in (tmp_path / "cache" / "trees").iterdir()] == [name]
    os.close(old)


def test_a_manifest_that_is_none_is_damage(local, store):
    name = store.put(io.BytesIO(b"[]")).sha256
    with pytest.raises(LocalContentError, match="manifest"):
        local.tree(name, "att_1")


def test_content_that_is_gone_from_the_store_is_told_from_a_store_that_is_away(cached, remote, store):
    name = publish(store, FILES)
    with pytest.raises(LocalContentError, match="any more") as gone:
        cached.tree("0" * 64, "att_1")
    remote.away = True
    with pytest.raises(LocalContentError, match="did not answer") as away:
        cached.tree(name, "att_1")
    assert (gone.value.code, gone.value.retryable) == ("CONTENT_DAMAGED", False)
    assert (away.value.code, away.value.retryable) == ("CONTENT_UNAVAILABLE", True)
    remote.away = False
    assert content_of(cached.tree(name, "att_1")) == FILES, "trying again works"


def test_a_disk_that_fills_is_told_and_leaves_nothing_half(remote, store, mount_tmpfs, clock):
    disk = mount_tmpfs("size=1m")
    cached = LocalContent(disk / "cache", remote, clock=clock)
    name = publish(store, {"big": bytes(2 << 20)})
    with pytest.raises(LocalContentError, match="no room") as error:
        cached.tree(name, "att_1")
    assert (error.value.code, error.value.retryable) == ("CONTENT_DISK_FULL", True)
    assert cached.usage().trees == 0
    assert not list((disk / "cache" / "building").iterdir())
    assert not list((disk / "cache" / "blobs" / "incoming").iterdir())
    small = publish(store, {"small": b"x"})
    assert content_of(cached.tree(small, "att_1")) == {"small": b"x"}


# A store that is not on this machine


def test_a_remote_file_is_fetched_once_verified_and_linked(cached, remote, store):
    name = publish(store, FILES)
    tree = cached.tree(name, "att_1")
    assert content_of(tree) == FILES
    assert cached.tree(name, "att_2") == tree
    assert set(remote.opened.values()) == {1}
    assert (tree / "a.txt").samefile(tree / "deep/same")
    assert cached.file(hashlib.sha256(b"two").hexdigest()).samefile(tree / "deep/er/b.bin")


def test_a_damaged_cached_file_is_fetched_again(cached, remote, store, tmp_path, clock):
    sha256 = store.put(io.BytesIO(b"payload")).sha256
    place = cached.file(sha256)
    place.chmod(0o644)
    place.write_bytes(b"garbage")
    assert cached.file(sha256).read_bytes() == b"payload"
    assert remote.opened[sha256] == 2
    reopened = LocalContent(tmp_path / "cache", remote, clock=clock)
    assert reopened.file(sha256).read_bytes() == b"payload"
    assert remote.opened[sha256] == 2, "a restart reads, it does not fetch"


def test_a_remote_store_that_sends_other_bytes_is_believed_never(cached, remote, store):
    sha256 = store.put(io.BytesIO(b"payload")).sha256
    store.path(sha256).chmod(0o644)
    store.path(sha256).write_bytes(b"garbage")
    with pytest.raises(LocalContentError, match="other bytes") as error:
        cached.file(sha256)
    assert error.value.code == "CONTENT_DAMAGED"
    assert remote.opened[sha256] == 2, "once more, as the wire may be at fault"


def test_requests_for_one_file_share_one_fetch_and_all_learn_of_its_failure(cached, remote, store):
    sha256 = store.put(io.BytesIO(b"payload")).sha256
    remote.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(cached.file, sha256) for _ in range(4)]
        assert remote.waiting.acquire(timeout=20)
        remote.gate.set()
        assert {each.result(20).read_bytes() for each in asked} == {b"payload"}
    assert remote.opened[sha256] == 1


def test_a_fetch_is_cancelled_promptly_and_goes_on_for_those_who_still_want_it(cached, remote, store):
    sha256 = store.put(io.BytesIO(b"payload")).sha256
    remote.gate.clear()
    unwanted = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached.file, sha256, cancelled=unwanted.is_set)
        assert remote.waiting.acquire(timeout=20)
        second = pool.submit(cached.file, sha256)
        unwanted.set()
        remote.gate.set()
        with pytest.raises(Cancelled):
            first.result(20)
        assert second.result(20).read_bytes() == b"payload"


def test_who_waits_for_the_work_of_another_can_give_up_alone(cached, remote, store):
    sha256 = store.put(io.BytesIO(b"payload")).sha256
    remote.gate.clear()
    unwanted = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached.file, sha256)
        assert remote.waiting.acquire(timeout=20)
        second = pool.submit(cached.file, sha256, cancelled=unwanted.is_set)
        unwanted.set()
        with pytest.raises(Cancelled):
            second.result(20)
        remote.gate.set()
        assert first.result(20).read_bytes() == b"payload"


def test_a_cancelled_tree_leaves_nothing(local, store, tmp_path):
    name = publish(store, FILES)
    looks = iter(range(1000))
    with pytest.raises(Cancelled):
        local.tree(name, "att_1", cancelled=lambda: next(looks) > 4)
    assert not list((tmp_path / "cache" / "building").iterdir())
    assert local.usage().trees == 0
    assert content_of(local.tree(name, "att_1")) == FILES


def test_progress_counts_every_byte_to_its_end(cached, store):
    name = publish(store, {"a": bytes(3 << 20), "b": b"x" * (2 << 20)})
    told: list[tuple[int, int]] = []
    cached.tree(name, "att_1", on_progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (5 << 20, 5 << 20)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


# Holding, and letting go


def test_what_is_held_stays_and_what_is_not_goes_by_age(cached, store, tmp_path, clock):
    cached._limit = 3 << 20
    names = [publish(store, {"f": bytes([n]) * (1 << 20)}) for n in range(5)]
    for number, name in enumerate(names):
        clock.now += 100
        cached.tree(name, f"att_{number}")
    assert cached.usage().trees == 5, "what Attempts hold is never taken from them"
    for number in (0, 1, 3):
        cached.release(f"att_{number}")
    cached.trim()
    left = {p.name for p in (tmp_path / "cache" / "trees").iterdir()}
    assert {names[2], names[4]} <= left, "they are held"
    assert not {names[0], names[1]} & left, "they are the oldest"
    assert cached.usage().bytes <= 3 << 20
    assert content_of(cached.tree(names[0], "att_9")) == {"f": bytes(1 << 20)}


def test_a_hold_outlives_a_restart_and_ends_with_its_attempt(cached, remote, store, tmp_path, clock):
    name = publish(store, {"f": bytes(1 << 20)})
    cached.tree(name, "att_1")
    reopened = LocalContent(tmp_path / "cache", remote, 0, clock=clock)
    reopened.trim()
    assert reopened.usage().trees == 1
    assert reopened.release_others({"att_1"}) == []
    assert reopened.release_others(set()) == ["att_1"]
    reopened.trim()
    assert reopened.usage() == type(reopened.usage())(0, 0, 0)
    assert not list((tmp_path / "cache" / "held").iterdir())


def test_held_files_of_a_remote_store_stay(cached, store, clock):
    cached._limit = 0
    one, two = (store.put(io.BytesIO(text)).sha256 for text in (b"one", b"two"))
    held = cached.hold_files({one: 3}, "att_1")
    loose = cached.file(two)
    cached.trim()
    assert held[one].read_bytes() == b"one"
    assert not loose.exists()
    cached.release("att_1")
    cached.trim()
    assert not held[one].exists()


def test_a_tree_goes_when_its_content_was_deleted_from_a_local_store(local, store, tmp_path):
    name = publish(store, FILES)
    tree = local.tree(name, "att_1")
    for blob in [name, *(hashlib.sha256(content).hexdigest() for content in FILES.values())]:
        store.delete(blob)
    local.trim()
    assert content_of(tree) == FILES, "a running program keeps its inputs"
    local.release("att_1")
    local.trim()
    assert not tree.exists()


def test_a_file_of_ones_own_is_gone_with_the_hold(local, tmp_path):
    place = local.own_file("profile.json", b"{}", "att_1")
    assert local.own_file("profile.json", b"{}", "att_1") == place
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"{}", 0o444)
    local.release("att_1")
    local.release("att_1")
    assert not place.exists()
    assert not list((tmp_path / "cache" / "held").iterdir())


@pytest.mark.parametrize("holder", ["", ".", "..", "../x", "a/b", "x" * 200])
def test_a_holder_is_a_plain_name(local, holder):
    with pytest.raises(ValueError, match="cannot hold"):
        local.own_file("profile.json", b"", holder)


def test_what_a_killed_process_was_building_is_removed_by_the_next(local, store, tmp_path, clock):
    stray = tmp_path / "cache" / "building" / "stray"
    (stray / "files").mkdir(parents=True)
    (stray / "files" / "f").write_bytes(b"x")
    torn = tmp_path / "cache" / "trees" / ("0" * 64)
    torn.mkdir()
    LocalContent(tmp_path / "cache", store, clock=clock)
    assert not stray.exists()
    assert not torn.exists()


def test_a_hundred_thousand_names_are_a_tree(local, store, tmp_path):
    blob = store.put(io.BytesIO(b"x"))
    files = [ContentFile(f"d{n % 100:02}/f{n:06}", 1, blob.sha256) for n in range(100_000)]
    manifest = make_manifest(ContentKind.DATASETS, files)
    name = store.put(io.BytesIO(manifest.encode())).sha256
    tree = local.tree(name, "att_1")
    assert sum(len(names) for _, _, names in os.walk(tree)) == 100_000
    assert linked_trees.fault(tree.parent) is None
    local.release("att_1")
