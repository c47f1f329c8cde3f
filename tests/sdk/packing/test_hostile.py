"""Projects that were made to do harm, or to take long."""

from __future__ import annotations

import json
import os
import time
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.projects import commit, packed, project, refusal, shipped, warned, write
from trainshed.sdk.packing import InvalidSpec, pack
from trainshed.sdk.packing.look import look

ODD = (
    "quo'te\".py",
    "right\u202eto-left.py",
    " space .py",
    "$(touch x).py",
    "-rf.py",
    "ü-é.py",
    "a*b[c].py",
    "#.py",
)
UNNAMED = (b"new\nline.py", b"not-utf-8-\xff.py", b"esc\x1b[31m.py", b"back\\slash.py")


def printable(document):
    text = json.dumps(document, ensure_ascii=False)
    return all(letter.isprintable() for letter in text)


@pytest.mark.parametrize("in_git", [True, False])
def test_odd_names_ship_and_names_that_cannot_be_kept_are_told(make, tmp_path, in_git):
    place = make({}) if in_git else tmp_path / "work" / "plain"
    write(place, {"train.py": "1", **{f"d/{name}": "x" for name in ODD}})
    for name in UNNAMED:
        (place / os.fsdecode(name)).write_text("y")
    if in_git:
        commit(place)
    for _ in range(2):
        found = packed(place)
        assert sorted(shipped(found)) == sorted(["train.py", *(f"d/{name}" for name in ODD)])
        assert warned(found, "4 files do not ship, because of their names")
        assert printable(found.summary)


def test_names_that_differ_only_in_case_or_composition_all_ship(make):
    names = ("Makefile", "makefile", unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"))
    assert set(names) <= shipped(packed(make(dict.fromkeys(names, "x")))).keys()


def test_ignored_files_and_links_with_odd_names_are_told_on_one_line(make):
    place = make({".gitignore": "*\n!train.py\n!.gitignore\n"})
    write(place, {"a\nb\x1b/x": "1", "c\u202ed/y": "2"})
    found = packed(place, args=["a\nb\x1b/x"])
    assert len(found.summary["left_out"]) == 2
    assert printable(found.summary)


def test_dangling_looping_and_chained_links(make):
    place = make({"real.txt": "content"})
    for name, target in (
        ("dangling", "nowhere"),
        ("loop", "loop"),
        ("one", "two"),
        ("two", "one"),
        ("chain", "chain2"),
        ("chain2", "real.txt"),
        ("up", ".."),
        ("self", "."),
        ("dev", "/dev/zero"),
    ):
        (place / name).symlink_to(target)
    commit(place)
    found = packed(place)
    assert {path: body for path, body in shipped(found).items() if path != "train.py"} == {
        "real.txt": b"content",
        "chain": b"content",
        "chain2": b"content",
    }
    assert "dangling" in warned(found, "a link that leads nowhere")


def test_devices_and_sockets_are_not_opened(tmp_path):
    place = tmp_path / "work" / "plain"
    write(place, {"train.py": "1"})
    os.mkfifo(place / "pipe")
    found = packed(place)
    assert sorted(shipped(found)) == ["train.py"]
    assert "pipe" in warned(found, "no regular file")


def test_a_file_that_cannot_be_read_is_named(make):
    if os.geteuid() == 0:
        place = make({"x": "1"})
        assert shipped(packed(place))["x"] == b"1"
        return
    place = make({"x": "1"})
    (place / "x").chmod(0)
    error = refusal(place, script="train.py")
    assert error.code == "invalid_spec"
    assert "`x`" in error.message


def test_a_gpu_yaml_cannot_reach_the_home_folder(make, home):
    write(home, {"private.txt": "canary", "private/x": "canary"})
    for text in (
        f"include: {home}/private.txt\n",
        "include: ~/private\n",
        "include: ../../home/ada/private\n",
        f"script: {home}/private.txt\n",
        "script: ../../home/ada/x.py\n",
        "deps: ../../home/ada/private.txt\n",
        "data: [{mount: h, path: '~'}]\n",
        "data: [{mount: h, path: ../../home}]\n",
    ):
        place = make({"gpu.yaml": text})
        with pytest.raises(InvalidSpec):
            pack(place, {} if "script" in text else {"script": "train.py"})


def test_50000_ignored_files_do_not_take_long(make):
    place = make({".gitignore": "data/\n*.bin\n"})
    for folder in range(50):
        inside = place / "data" / str(folder)
        inside.mkdir(parents=True)
        for number in range(1000):
            (inside / str(number)).touch()
    packed(place)
    began = time.perf_counter()
    found = packed(place)
    assert (
        found.summary["left_out"] == ["data/ (ignored, 4946+ files)"]
        or "+ files" in found.summary["left_out"][0]
    )
    assert time.perf_counter() - began < 5
    assert found.summary["files"] == 2


def test_what_did_not_change_is_not_read_again(make, later):
    place = make({f"src/{number}.py": f"{number}" for number in range(20)})
    first = packed(place)
    again = packed(place)
    assert (again.tree.read, again.spec) == (0, first.spec)
    write(place, {"src/3.py": "changed"})
    changed = packed(place)
    assert changed.tree.read == 1
    assert shipped(changed)["src/3.py"] == b"changed"
    assert changed.spec["bundle"]["manifest_sha256"] != first.spec["bundle"]["manifest_sha256"]


def test_the_same_content_in_another_place_is_named_alike(make, tmp_path):
    files = {"a.py": "1", "b/c.py": "2", "train.py": "print('training')\n"}
    other = project(tmp_path / "work" / "other", files)
    assert (
        packed(make(files)).spec["bundle"]["manifest_sha256"]
        == packed(other).spec["bundle"]["manifest_sha256"]
    )


def test_a_cache_that_is_damaged_is_forgotten(make, tmp_path, later):
    place = make({"a.py": "1"})
    expected = packed(place).spec
    (kept,) = (tmp_path / "trainshed-home/packed").glob("*.json")
    head, _, entries = kept.read_text().partition("\n")
    for text in (
        "",
        "{}",
        "[]\n[]",
        head,
        f"{head}\n[]",
        f"{head}\n{{",
        f"{head}\n{entries.replace('0', 'x')}",
    ):
        kept.write_text(text)
        found = packed(place)
        assert found.spec == expected
        assert shipped(found)["a.py"] == b"1"


def test_a_file_that_changes_between_packing_and_upload_is_not_sent(make):
    place = make({"a.py": "1"})
    found = packed(place)
    write(place, {"a.py": "22"})
    with pytest.raises(Exception, match="changed while"):
        shipped(found)


@pytest.fixture
def later(monkeypatch):
    """All files are older than a tick of the clock, so that their digests are trusted."""
    now = time.time_ns
    monkeypatch.setattr("trainshed.sdk.packing.contents.time.time_ns", lambda: now() + 10 * 10**9)


names = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda name: name not in {".", ".."} and name.lower() != ".git")


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(names, min_size=1, max_size=6, unique=True))
def test_whatever_files_are_called_each_ships_or_has_a_reason(tmp_path_factory, given_names):
    place = tmp_path_factory.mktemp("work") / "p"
    project(place, {"train.py": "1"}, tracked=False)
    for name in given_names:
        (place / name).write_text("x")
    seen = look(str(place), {"script": "train.py"})
    listed = {each["path"] for each in seen.listing()}
    for name in given_names:
        verdict = seen.explain(name)
        assert verdict["ships"] == (name in listed), verdict
        assert verdict["why"]
