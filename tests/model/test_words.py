"""Words of sentences for people."""

from __future__ import annotations

import pytest

from trainshed.cli.output import size
from trainshed.model.words import bytes_text, counted


@pytest.mark.parametrize(("number", "told"), [(0, "0 files"), (1, "1 file"), (2, "2 files")])
def test_a_noun_stands_in_the_number_that_is_told(number: int, told: str):
    assert counted(number, "file") == told


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB (1024 bytes)"),
        (2_097_152, "2.0 MiB (2097152 bytes)"),
        (2_004_574, "1.9 MiB (2004574 bytes)"),
        (5 << 50, "5120.0 TiB (5629499534213120 bytes)"),
    ],
)
def test_bytes_are_told_as_tables_tell_them_and_exactly(count, text):
    assert bytes_text(count) == text
    if "(" in text:
        assert text.startswith(size(count))
