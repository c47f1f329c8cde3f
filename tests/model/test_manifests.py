"""Manifests: equal contents have equal bytes, and only such bytes are read back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.content import ContentFile, ContentKind, Manifest, make_manifest

PARTS = st.text("abc.ä本🙂 -", min_size=1, max_size=6).filter(lambda text: text not in {".", ".."})
FILES = st.builds(
    ContentFile,
    path=st.lists(PARTS, min_size=1, max_size=3).map("/".join),
    size=st.integers(0, 1 << 50),
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    executable=st.booleans(),
)
ABOUT = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)


@given(st.lists(FILES, unique_by=lambda file: file.path, max_size=6), ABOUT, st.sampled_from(ContentKind))
def test_E99_a_manifest_is_read_back_as_it_was_written_whatever_the_order_of_its_files(files, about, kind):
    manifest = make_manifest(kind, files, about)
    assert Manifest.decode(manifest.encode()) == manifest
    assert make_manifest(kind, reversed(files), about).sha256 == manifest.sha256


GOOD = make_manifest(ContentKind.DATASETS, [ContentFile("a", 1, "0" * 64), ContentFile("b", 1, "0" * 64)])


def changed(**values: object) -> bytes:
    document = json.loads(GOOD.encode()) | values
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        GOOD.encode() + b" ",
        changed(kind="cats"),
        changed(schema="other/1"),
        changed(more=1),
        changed(files=json.loads(GOOD.encode())["files"][::-1]),
        changed(files=[{"path": "a", "size": 1, "sha256": "0" * 64}] * 2),
        *(
            changed(files=[{"path": path, "size": 1, "sha256": "0" * 64}])
            for path in ("/etc/passwd", "../a", "a/../b", "a//b", "a/", ".", "", "a\0b")
        ),
        changed(files=[{"path": "a", "size": -1, "sha256": "0" * 64}]),
        changed(files=[{"path": "a", "size": True, "sha256": "0" * 64}]),
        changed(files=[{"path": "a", "size": 1, "sha256": "../../x"}]),
        changed(files=[{"path": 1, "size": 1, "sha256": "0" * 64}]),
        changed(about=[]),
    ],
)
def test_bytes_that_no_manifest_has_are_refused(data):
    with pytest.raises(ValueError, match="manifest"):
        Manifest.decode(data)
