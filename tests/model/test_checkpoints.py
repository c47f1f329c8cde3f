"""How a Checkpoint is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.model.checkpoints import CheckpointRef, checkpoint_uri, parse_checkpoint_ref

JOB = "job_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"
CHECKPOINT = "ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0Q"


def test_a_checkpoint_is_named_by_its_id_or_with_its_job():
    assert parse_checkpoint_ref(CHECKPOINT) == CheckpointRef(CHECKPOINT)
    assert parse_checkpoint_ref(checkpoint_uri(JOB, CHECKPOINT)) == CheckpointRef(CHECKPOINT, JOB)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ckpt_",
        CHECKPOINT.lower(),
        f" {CHECKPOINT}",
        f"{CHECKPOINT}\n",
        f"{JOB}/{CHECKPOINT}",
        f"envloop://{CHECKPOINT}",
        f"envloop://{JOB}",
        f"envloop://{JOB}/{CHECKPOINT}/x",
        f"envloop://{JOB}/{CHECKPOINT}?a=b",
        f"tinker://{JOB}/{CHECKPOINT}",
        f"envloop://envloop://{JOB}/{CHECKPOINT}",
    ],
)
def test_anything_else_names_none(text):
    with pytest.raises(ValueError, match="write a Checkpoint's id"):
        parse_checkpoint_ref(text)


@given(st.text())
def test_no_text_breaks_the_parser(text):
    with pytest.raises(ValueError, match="write a Checkpoint's id"):
        parse_checkpoint_ref(text)
