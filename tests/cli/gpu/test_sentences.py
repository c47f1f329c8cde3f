"""What ``gpu`` says of a Job that waits, and of one that wrote nothing (contract G, i)."""

from __future__ import annotations

from trainshed.cli.gpu_events import Counted
from trainshed.cli.gpu_fetch import outputs_text
from trainshed.cli.gpu_views import say


def test_a_queued_job_says_when_it_is_looked_at_again():
    assert say({"state": "queued", "not_before": "2026-11-30T12:00:00Z"}).startswith("looks again at ")


def test_a_queued_job_says_why_it_waits_too():
    told = say(
        {"state": "queued", "not_before": "2026-11-30T12:00:00Z", "route_reason": "waits: local: busy"}
    )
    assert told.startswith("waits: local: busy; looks again at ")
    assert told.endswith(" at the latest")


def test_the_copy_of_a_checkpoint_that_is_kept_is_not_counted_as_a_save():
    save = [
        {"reason": "checkpoint_begin"},
        {"reason": "checkpoint_end", "message": "The checkpoint is saved."},
    ]
    kept = {"reason": "checkpoint_copied", "message": "Checkpoint 1 of step 0 is kept: 1 file, 11 bytes."}
    (row,) = Counted().all([*save, *save, *save, kept])
    assert row["message"] == f"Saved 2 times. {kept['message']}"
    (row,) = Counted().all([*save, *save, kept, *save, *save, *save, kept])
    assert row["message"] == f"Saved 3 times. {kept['message']}"
    (row,) = Counted().all([*save, *save, kept])
    assert row["message"] == kept["message"]


def test_fetch_says_that_there_are_no_files():
    nothing = {"dir": "/runs/abc123", "count": 0, "bytes": 0, "listing": []}
    assert outputs_text(nothing) == "There are no files: it wrote none."
    one = {**nothing, "count": 1, "bytes": 3, "listing": [{"path": "a", "bytes": 3}]}
    assert outputs_text(one).startswith("1 file, ")
    assert outputs_text(nothing | {"deleted": 2}) == "The server has no files any more: 2 files deleted."
    assert outputs_text(one | {"deleted": 2}).splitlines()[-1] == "  2 files deleted on the server"
