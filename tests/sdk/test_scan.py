"""Looking at a folder before it is published: what is refused, what is left out, what its files hold."""

from __future__ import annotations

import hashlib
import os
import socket
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.sdk import ContentChanged, LocalFileError, NotFreezable
from trainshed.sdk import scan as scanning
from trainshed.sdk.leaving_out import rule_for
from trainshed.sdk.scan import hash_files, look, open_stream


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def found(root: Path) -> list[str]:
    return [file.path for file in look(root).files]


def told(root: Path) -> str:
    tree = look(root)
    with pytest.raises(NotFreezable) as caught:
        tree.check()
    assert caught.value.code == "INVALID_CONTENT"
    return "\n".join(fault.message for fault in caught.value.faults)


def test_every_regular_file_is_found_in_the_order_of_its_bytes(tmp_path):
    write(tmp_path, {"b": "", "a/z": "1", "a.txt": "", "é/ü": "", "a/b/c": "", "Z": ""})
    (tmp_path / "empty").mkdir()
    tree = look(tmp_path)
    assert found(tmp_path) == sorted(["b", "a/z", "a.txt", "é/ü", "a/b/c", "Z"], key=str.encode)
    tree.check()
    assert tree.total_bytes == 1


def test_one_file_may_be_published_by_itself(tmp_path):
    write(tmp_path, {"data.csv": "1"})
    assert found(tmp_path / "data.csv") == ["data.csv"]


def test_names_with_control_characters_are_shown_escaped(tmp_path):
    write(tmp_path, {"a\nb": "", "c\x7fd": "", "e\x85f": ""})
    (tmp_path / "g\th").symlink_to("x")
    message = told(tmp_path)
    for shown in (r"`a\nb`", r"`c\x7fd`", r"`e\x85f`", r"`g\th`"):
        assert shown in message


def test_bookkeeping_and_what_desktops_leave_is_left_out_and_told(tmp_path):
    write(
        tmp_path, {".git/config": "", "a/__pycache__/x.pyc": "", "a/.DS_Store": "", "a/.hidden": "", "b": ""}
    )
    tree = look(tmp_path)
    assert found(tmp_path) == ["a/.hidden", "b"]
    assert sorted(tree.skipped) == [".git", "a/.DS_Store", "a/__pycache__"]


def test_everything_that_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch):
    write(tmp_path, {"ok": "", "folder/ok": ""})
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "folder/in").symlink_to("ok")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "dir-link").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        message = told(tmp_path)
    for name in ("out", "folder/in", "dangling", "dir-link"):
        assert f"`{name}` is a symbolic link" in message
    assert "`pipe` is a FIFO; move it away or exclude it" in message
    assert "`sock` is a socket; move it away or exclude it" in message


def test_a_link_that_is_named_itself_is_followed_and_names_its_file(tmp_path):
    write(tmp_path, {"blobs/ab12": "weights", "secrets/id_rsa": "key"})
    (tmp_path / "model.bin").symlink_to("blobs/ab12")
    (tmp_path / "all").symlink_to("blobs")
    (tmp_path / "plain.txt").symlink_to("secrets/id_rsa")
    [file] = look(tmp_path / "model.bin").files
    assert (file.path, file.place) == ("model.bin", str(tmp_path / "blobs/ab12"))
    assert hash_files([file]) == [hashlib.sha256(b"weights").hexdigest()]
    assert found(tmp_path / "all") == ["ab12"]
    assert look(tmp_path / "plain.txt", rule_for([], code=True)).files == []


def test_names_that_are_not_utf8_or_collide_are_refused_at_once(tmp_path):
    write(tmp_path, {"Data.txt": "", "data.txt": "", "e\u0301.txt": "", "\u00e9.txt": "", "back\\slash": ""})
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("")
    message = told(tmp_path)
    assert "not UTF-8" in message
    assert "`Data.txt` and `data.txt` differ only in case" in message
    assert "NFC" in message
    assert "backslash" in message


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path, {"a": "", "closed/b": "", "open/c": ""})
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(scanning.os, "scandir", scandir)
    tree = look(tmp_path)
    assert [fault.message for fault in tree.faults] == ["`closed` cannot be read: Permission denied"]
    assert len(tree.files) == 2


def test_nothing_to_publish_is_refused(tmp_path):
    (tmp_path / "empty/deep").mkdir(parents=True)
    assert "holds no files" in told(tmp_path / "empty")
    with pytest.raises(LocalFileError):
        look(tmp_path / "none")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(LocalFileError):
        look(tmp_path / "loop")


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_files_are_hashed_each_as_it_is(tmp_path_factory, contents):
    root = tmp_path_factory.mktemp("tree")
    for number, content in enumerate(contents):
        (root / f"{number:03}").write_bytes(content)
    moves: list[tuple[int, int]] = []
    digests = hash_files(look(root).files, lambda done, total: moves.append((done, total)))
    assert digests == [hashlib.sha256(content).hexdigest() for content in contents]
    total = sum(map(len, contents))
    assert not total or (total, total) in moves


def test_a_large_sparse_file_is_hashed_in_little_memory(tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(200 << 20)
    files = look(tmp_path).files
    tracemalloc.start()
    hash_files(files)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("change", ["write", "grow", "replace", "remove", "pipe"])
def test_files_that_change_after_they_were_found_are_all_named(tmp_path, change):
    write(tmp_path, {"a": "one", "b": "two", "c": "three"})
    files = look(tmp_path).files
    for name in ("a", "c"):
        place = tmp_path / name
        match change:
            case "write":
                place.write_text("x" * place.stat().st_size)
                os.utime(place, ns=(1, 1))
            case "grow":
                place.write_text("longer than before")
            case "replace":
                (tmp_path / "other").write_text(place.read_text())
                (tmp_path / "other").replace(place)
            case "remove":
                place.unlink()
            case "pipe":
                place.unlink()
                os.mkfifo(place)
    with pytest.raises(NotFreezable) as caught:
        hash_files(files)
    assert [fault.path for fault in caught.value.faults] == ["a", "c"]
    with pytest.raises(LocalFileError):
        open_stream(files[0])
    with open_stream(files[1]) as stream:
        assert stream.read() == b"two"


def test_a_file_that_is_written_while_it_is_read_is_not_published(tmp_path, monkeypatch):
    write(tmp_path, {"a": "x" * 10})
    (file,) = look(tmp_path).files
    real = os.readv

    def readv(descriptor, buffers):
        with (tmp_path / "a").open("r+b") as other:
            other.write(b"y")
        os.utime(tmp_path / "a", ns=(1, 1))
        return real(descriptor, buffers)

    monkeypatch.setattr(scanning.os, "readv", readv)
    with pytest.raises(NotFreezable, match="changed while it was being published"):
        hash_files([file])


def test_the_signature_tells_every_change_of_a_tree(tmp_path):
    write(tmp_path, {"a": "one", "b/c": "two"})
    before = look(tmp_path).signature()
    assert look(tmp_path).signature() == before
    (tmp_path / "a").chmod(0o755)
    executable = look(tmp_path).signature()
    (tmp_path / "b/c").rename(tmp_path / "b/d")
    renamed = look(tmp_path).signature()
    (tmp_path / "new").write_text("")
    assert len({before, executable, renamed, look(tmp_path).signature()}) == 4


def test_the_error_of_a_changed_file_says_what_to_do(tmp_path):
    write(tmp_path, {"a": "one"})
    (file,) = look(tmp_path).files
    (tmp_path / "a").write_text("other")
    with pytest.raises(ContentChanged) as caught:
        open_stream(file)
    assert "nothing writes there" in caught.value.hint
