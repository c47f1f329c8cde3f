"""Words of sentences for people."""

from __future__ import annotations

import pytest

from trainshed.model.words import counted


@pytest.mark.parametrize(("number", "told"), [(0, "0 files"), (1, "1 file"), (2, "2 files")])
def test_a_noun_stands_in_the_number_that_is_told(number: int, told: str):
    assert counted(number, "file") == told
