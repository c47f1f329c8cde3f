"""Manifests are read entry by entry, and every other spelling of them is refused."""

from __future__ import annotations

import hashlib
import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model import manifests
from trainshed.model.content import ContentFile, ContentKind, Manifest, make_manifest
from trainshed.model.manifests import (
    ENTRY_START,
    ManifestFault,
    ManifestScan,
    PathRules,
    read_entries,
    tree_faults,
)
from trainshed.model.runner_tree import path_fault
from trainshed.model.strict_json import canonical_json

A, B = "a" * 64, "b" * 64


def scan(data: bytes, chunk: int = 1 << 20) -> tuple[ManifestScan, list[ContentFile]]:
    stream = io.BytesIO(data)
    found = ManifestScan(lambda count: stream.read(min(count, chunk)))
    return found, list(found)


def fault(data: bytes) -> str:
    with pytest.raises(ManifestFault) as caught:
        scan(data)
    return str(caught.value)


class Heard(list[ContentFile]):
    """The files that a scan with a listener found."""

    scan: ManifestScan


def listen(data: bytes) -> tuple[Heard, list[tuple[str, str]], ManifestFault | None]:
    """The files, what the listener was told, and what ended the reading before its time."""
    told: list[tuple[str, str]] = []
    found = Heard()
    found.scan = ManifestScan(io.BytesIO(data).read, lambda *each: told.append(each))
    try:
        for file in found.scan:
            found.append(file)
    except ManifestFault as error:
        return found, told, error
    return found, told, None


def listing(files: list[object]) -> bytes:
    """A manifest with these entries, whatever they are."""
    document = {"schema": "trainshed.manifest/1", "kind": "datasets", "files": files, "about": {}}
    return canonical_json(document).encode()


def manifest(*paths: str, about=None, size=3) -> Manifest:
    return make_manifest(ContentKind.DATASETS, [ContentFile(path, size, A) for path in paths], about)


def test_a_listener_is_told_every_entry_at_fault_and_the_rest_is_read():
    files = [{"path": path, "sha256": A, "size": 3} for path in ("b", "a", "", "c", "c", "d")]
    files[3] = {"more": 1}
    found, told, _ = listen(listing(files))
    assert [file.path for file in found] == ["b", "a", "c", "d"]
    assert (found.scan.files, found.scan.unread) == (6, 1)
    places = [place for place, _ in told]
    assert places == ["files[1]", "files[2]", "files[3]"]
    assert ["order" in told[0][1], "empty" in told[1][1], "canonically" in told[2][1]] == [True] * 3


def test_every_entry_at_fault_is_told_whatever_it_is_and_wherever_it_stands():
    good = {"path": "b", "sha256": A, "size": 3}
    files = [
        {},
        7,
        good | {"path": "a", "size": "x"},
        good,
        good | {"path": "c", "aaa": 1},
        good | {"path": [good, good]},
        "],",
        {"x": 1},
        good | {"path": "c"},
    ]
    found, told, failed = listen(listing(files))
    assert [file.path for file in found] == ["a", "b", "c", "c"]
    assert [place for place, _ in told] == [f"files[{place}]" for place in (0, 1, 2, 4, 5, 6, 7, 8)]
    assert "is listed twice" in told[-1][1]
    assert failed is None


def test_of_an_entry_at_fault_the_path_is_read_and_nothing_else():
    spelled = "d\\u00fc", "d\u00fd"
    entries = [f'{{"path":"{path}","sha256":"{A}","size":"x"}}' for path in ("a\\/b", "c", *spelled)]
    no_path = ['{"path":7}', '{"path":"' + "x" * 1025 + '"}', "[]", '{"size":"é"}']
    found, told, _ = listen(listing([]).replace(b"[]", f"[{','.join([*entries, *no_path])}]".encode()))
    assert list(found) == [ContentFile(path, 0, "") for path in ("a/b", "c", "dü", "dý")]
    assert (len(told), found.scan.files, found.scan.unread) == (8, 8, 4)
    assert found.scan.total_bytes == 0


class CountedDecoder(json.JSONDecoder):
    """Counts what a manifest makes it do."""

    def __init__(self):
        super().__init__()
        self.failed = 0
        self.decoded = 0

    def raw_decode(self, text, place=0):
        self.failed += 1
        value, end = super().raw_decode(text, place)
        self.failed -= 1
        self.decoded += end - place
        return value, end


@pytest.mark.parametrize("entry", ['{"path":[1', '{"path":"', '{"path":1}x', '{"path":' + "9" * 5000])
def test_entries_that_are_no_json_are_decoded_no_more_often_than_faults_are_shown(monkeypatch, entry):
    monkeypatch.setattr(manifests, "_DECODER", decoder := CountedDecoder())
    whole = listing([]).replace(b"[]", f"[{','.join([entry] * 1000)}]".encode())
    _, told, failed = listen(whole)
    assert len(told) == 999
    assert "files[999]" in str(failed)
    assert decoder.failed <= manifests.SHOWN_FAULTS
    assert decoder.decoded <= len(whole)


def test_entries_that_are_json_are_decoded_once_and_counted_to_the_last(monkeypatch):
    monkeypatch.setattr(manifests, "_DECODER", decoder := CountedDecoder())
    whole = listing([{"path": f"{number:04}", "sha256": A, "size": "x"} for number in range(2000)])
    found, told, failed = listen(whole)
    assert (len(told), found.scan.files, failed) == (2000, 2000, None)
    assert (len(found), found.scan.unread) == (manifests.SHOWN_FAULTS, 2000 - manifests.SHOWN_FAULTS)
    assert decoder.failed == 0
    assert decoder.decoded <= len(whole)


def test_faults_beyond_those_that_are_shown_are_counted():
    rules = PathRules()
    for number in range(250):
        rules.add(f"../{number}")
    rules.add("a")
    rules.add("a/b")
    assert len(rules.finish()) == manifests.SHOWN_FAULTS
    assert rules.left_out == 251 - manifests.SHOWN_FAULTS


@pytest.mark.parametrize("name", ["a\nb", "a\x7fb", "a\x85b", "a\x00b", "a\x1b[2Jb"])
def test_a_name_with_control_characters_is_shown_so_that_its_file_can_be_found(name):
    [found] = tree_faults([f"folder/{name}"])
    shown = name.encode("unicode_escape").decode()
    assert found.path == f"folder/{shown}"
    assert f"`folder/{shown}` holds control characters" in found.message
    assert found.message.isprintable()


def test_a_long_name_is_cut_with_a_mark():
    [found] = tree_faults(["x" * 300])
    assert found.path == "x" * 200 + "…"


texts = st.text(max_size=12)
paths = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
files = st.builds(
    ContentFile,
    paths,
    st.integers(0, 10**18 - 1),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.booleans(),
)
abouts = st.dictionaries(texts, st.recursive(texts | st.integers() | st.booleans(), st.lists, max_leaves=5))


@given(
    st.lists(files, max_size=12, unique_by=lambda file: file.path),
    abouts,
    st.sampled_from(list(ContentKind)),
    st.integers(1, 300),
)
def test_what_is_encoded_is_read_again_whatever_the_pieces(listed, about, kind, chunk):
    made = make_manifest(kind, listed, about)
    data = made.encode()
    try:
        found, read = scan(data, chunk)
    except ManifestFault as error:
        # Text that is no Unicode cannot be stored anywhere.
        assert "about" in str(error)  # noqa: PT017 - the only refusal that generated input may meet
        with pytest.raises(UnicodeEncodeError):
            json.dumps(about, ensure_ascii=False).encode()
        return
    assert (found.kind, found.about, tuple(read)) == (kind, about, made.files)
    assert (found.sha256, found.size) == (made.sha256, len(data))
    assert (found.files, found.total_bytes) == (len(listed), made.total_bytes)
    entries = list(read_entries(data[found.files_start :]))
    assert tuple(file for _, file in entries) == made.files
    starts = [found.files_start, *(match.start() + 1 for match in ENTRY_START.finditer(data))]
    assert (
        starts[: len(listed)]
        == [found.files_start, *(found.files_start + end for end, _ in entries[:-1])][: len(listed)]
    )


@given(st.data())
def test_any_other_byte_is_refused_or_another_manifest(data):
    whole = manifest("a.txt", "b/ü.txt", about={"type": "data"}).encode()
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255))
    changed = whole[:place] + bytes([other]) + whole[place + 1 :]
    try:
        found, read = scan(changed)
    except ManifestFault:
        return
    again = Manifest(found.kind, tuple(read), found.about)
    assert again.encode() == changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.replace(b'"size":3', b'"size": 3', 1), "files[0] (byte"),
        (lambda d: d.replace(b'"size":3', b'"size":03', 1), "files[0]"),
        (lambda d: d.replace(b'"size":3', b'"size":-3', 1), "files[0]"),
        (lambda d: d.replace(b'"size":3', b'"size":3.0', 1), "files[0]"),
        (lambda d: d.replace(b'"path":"b"', b'"extra":1,"path":"b"', 1), "files[1]"),
        (lambda d: d.replace(b'"path":"b"', b'"executable":false,"path":"b"', 1), "files[1]"),
        (lambda d: d.replace(b'"path":"b"', b'"path":"\\u0062"', 1), "files[1]"),
        (lambda d: d.replace(b'"path":"b"', b'"path":"a"', 1), "listed twice"),
        (lambda d: d.replace(b'"path":"b"', b'"path":"A"', 1), "order"),
        (lambda d: d.replace(b'"path":"b"', b'"path":"b\0"', 1), "files[1] (byte"),
        (lambda d: d.replace(b'"path":"a"', b'"path":""', 1), "files[0]: the path is empty"),
        (lambda d: d.replace(A.encode(), A.upper().encode(), 1), "files[0]"),
        (lambda d: d + b"\n", "ends with"),
        (lambda d: d[:-1], "ends with"),
        (lambda d: d.replace(b"datasets", b"checkpoints"), "kind"),
        (lambda d: b" " + d, "byte 0"),
        (lambda d: d.replace(b'{"about":{', b'{"about":[', 1), "about"),
        (lambda d: d.replace(b'{"x":1}', b'{"x":NaN}'), "about"),
        (lambda d: d.replace(b'{"x":1}', b'{"x":1,"x":1}'), "twice"),
        (lambda d: d.replace(b'{"x":1}', b'{"x": 1}'), "canonically"),
        (lambda d: d.replace(b'{"x":1}', b'{"x":"\\ud800"}'), "about"),
        (lambda d: d.replace(b'{"x":1}', b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"), "about"),
        (lambda d: d.replace(b'{"x":1}', b'{"x":"' + b"y" * manifests.MAX_ABOUT_BYTES + b'"}'), "longer"),
        (lambda _: b"", "byte 0"),
        (lambda _: b"<html>", "byte 0"),
    ],
)
def test_bytes_that_no_manifest_has_are_refused_with_their_place(change, said):
    assert said in fault(change(manifest("a", "b", about={"x": 1}).encode()))


def test_a_manifest_without_files_is_read():
    assert scan(manifest().encode())[1] == []


def test_too_many_files_and_bytes_end_the_reading(monkeypatch):
    monkeypatch.setattr(manifests, "MAX_FILES", 2)
    assert "at most 2 files" in fault(manifest("a", "b", "c").encode())
    monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", 100)
    assert "at most 100 bytes" in fault(manifest("a").encode())


def said_of(*given_paths: str) -> list[str]:
    return [found.message for found in tree_faults(given_paths)]


def test_names_in_every_script_are_allowed():
    names = [
        "данные/поезд.txt",
        "数据/训练.csv",
        "بيانات.json",
        "डेटा.txt",
        "ƒun😀 ny.txt",
        "e\u0301.txt",
        "שלום",
    ]
    assert said_of(*names) == []


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../x", "leaves the published directory"),
        ("a/../b", "leaves"),
        ("/etc/passwd", "absolute"),
        ("a//b", "empty"),
        ("./a", "`.` part"),
        ("", "empty"),
        ("a\\b", "backslash"),
        ("a\nb", "control"),
        ("a\0b", "control"),
        ("x/.git/config", ".git"),
        ("x" * 256, "over 255 bytes"),
        ("/".join(["x" * 200] * 6), "longer than 1024"),
        ("\ud800", "not UTF-8"),
    ],
)
def test_names_that_could_leave_or_break_a_folder_are_refused(path, said):
    (message,) = said_of(path)
    assert said in message


def test_names_that_differ_in_case_or_composition_are_refused_with_both():
    (case,) = said_of("Data/x.txt", "data/y.txt")
    assert "`Data` and `data` differ only in case" in case
    composed, apart = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    (form,) = said_of(composed, apart)
    assert "NFC" in form
    assert ascii(composed)[1:-1] in form
    assert ascii(apart)[1:-1] in form
    assert len(said_of("STRASSE", "straße")) == 1


def test_a_file_that_is_also_a_directory_is_refused():
    (message,) = said_of("a", "a-b", "a/b/c")
    assert message == "`a` is both a file and a directory"


def test_all_faults_come_at_once_and_no_more_than_can_be_read():
    assert len(said_of("../a", "b/../c", "ok", "OK")) == 3
    assert len(said_of(*(f"../{number}" for number in range(500)))) == manifests.SHOWN_FAULTS


@given(st.lists(paths, max_size=8, unique=True))
def test_names_that_pass_can_all_be_files_of_one_folder(given_paths):
    if tree_faults(given_paths):
        return
    folded = {unicodedata.normalize("NFC", path).casefold() for path in given_paths}
    assert len(folded) == len(given_paths)
    for path in given_paths:
        assert not {"", ".", ".."} & set(path.split("/"))
        assert not any(other.startswith(path + "/") for other in given_paths)


@given(st.text("ab1./_- Z\\\n\0ü", min_size=1, max_size=12) | st.text("a.-_/g it", min_size=1, max_size=300))
def test_a_path_that_looks_plain_breaks_no_rule(path):
    if manifests._PLAIN.fullmatch(path):
        assert path_fault(path) is None


def test_a_tree_of_a_hundred_thousand_files_is_verified_and_its_one_bad_name_found():
    entry = b'{"path":"data/part-%03d/%06d.json","sha256":"%064x","size":%d}'
    entries = b",".join(entry % (number // 1000, number, number, number) for number in range(100_000))
    whole = manifest().encode().replace(b'"files":[]', b'"files":[' + entries + b"]")
    found = ManifestScan(io.BytesIO(whole).read)
    rules = PathRules()
    for file in found:
        rules.add(file.path)
    assert (found.files, found.sha256) == (100_000, hashlib.sha256(whole).hexdigest())
    assert rules.finish() == []
    rules.add("data/part-050/050000.JSON")
    (fault,) = rules.finish()
    assert "`data/part-050/050000.json` and `data/part-050/050000.JSON` differ only in case" in fault.message


@pytest.mark.parametrize("path", ["C:/x", "c:x", "C:"])
def test_no_file_is_named_like_a_drive(path):
    [found] = manifests.tree_faults([path, "a/C:b", "data:x"])
    assert (found.path, found.message) == (path, f"`{path}` starts like a drive of another system; rename it")
