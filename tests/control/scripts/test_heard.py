"""What lines of a log mean for a Job (section f)."""

from __future__ import annotations

import pytest

from support.cloud import wire
from trainshed.control.scripts.heard import MOST_SAVES, known_progress, listen, progress_values
from trainshed.model.scripts.wire import Progress

BEGIN, END = wire("ckpt_begin", where="script"), wire("ckpt_end", where="script", ok=True)


@pytest.mark.parametrize(
    ("lines", "saves", "turns"),
    [
        ([], False, []),
        ([BEGIN, END], False, [True, False]),
        ([BEGIN], False, [True]),
        ([END], True, [False]),
        ([END], False, []),
        ([BEGIN, BEGIN, END, END], False, [True, False]),
        ([END, BEGIN], True, [False, True]),
        ([BEGIN, END] * 500, False, [True, False] * MOST_SAVES),
    ],
)
def test_saves_are_told_by_turns_and_end_where_they_ended(lines, saves, turns):
    heard = listen(lines, Progress(), saves=saves)
    assert heard.saving == turns
    assert all(before != after for before, after in zip([saves, *turns], turns, strict=False))


def test_a_checkpoint_counts_once_it_is_stored():
    stored = wire("ckpt_end", where="store", ok=True, n=1)
    failed = wire("ckpt_end", where="store", ok=False)
    assert listen([BEGIN, END, stored, failed], Progress(), saves=False).stored == 1


def test_progress_goes_through_the_columns_of_a_job_unchanged():
    lines = [wire("total", n=10), wire("metric", step=4, values={"loss": 0.5})]
    progress = listen(lines, Progress(), saves=False).progress
    columns = progress_values(progress)
    again = known_progress(
        columns["progress"], columns["metrics"], declared=progress.declared, worth=progress.worth
    )
    assert again == progress
    assert progress_values(Progress()) == {"progress": None, "metrics": None}
