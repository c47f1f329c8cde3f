"""Tables: what fits stays beside its row, what does not moves below it, nothing is lost."""

from __future__ import annotations

import time

import hypothesis
import pytest
from hypothesis import strategies as st

from support import documents
from support.fake_server import Reply
from trainshed.cli import gpu_views, train_views, views
from trainshed.cli.output import Column, HumanOutput, Table, duration
from trainshed.cli.output import pick as picked
from trainshed.cli.pool import CORDONS, IDLE, POOLS
from trainshed.cli.quota import QUOTAS
from trainshed.cli.tables import Line, Shape, lay_out, text_width
from trainshed.cli.train_watch import METRICS


def printed(line: Line) -> str:
    return line.below or "".join(text + padding for text, padding in line.cells).rstrip()


def drawn(columns, rows, notes=None, width=None):
    return [printed(line) for line in lay_out(columns, rows, notes or [""] * len(rows), width)]


def test_without_a_terminal_nothing_is_cut_or_moved():
    columns = [Shape("A", shortest=2), Shape("B", rank=1)]
    assert drawn(columns, [["x" * 200, "y"]]) == ["A" + " " * 201 + "B", "x" * 200 + "  y"]


def test_what_does_not_fit_moves_below_its_row_with_its_label():
    columns = [Shape("ID"), Shape("SHA", rank=2), Shape("SIZE", rank=1)]
    assert drawn(columns, [["a", "f" * 20, "1"]], width=28) == ["ID  SIZE", "a   1", "    SHA " + "f" * 20]


def test_a_long_name_is_cut_before_a_column_moves():
    columns = [Shape("ID"), Shape("NAME", shortest=6), Shape("SIZE", rank=1)]
    assert drawn(columns, [["a", "long-long-name", "1"]], width=20) == [
        "ID  NAME        SIZE",
        "a   long-long…  1",
    ]


def test_a_reason_stands_on_a_line_of_its_own():
    lines = drawn([Shape("ID")], [["a"], ["b"]], ["why it waits for something", ""], width=20)
    assert lines == ["ID", "a", "    why it waits for", "    something", "b"]


@hypothesis.given(
    shapes=st.lists(
        st.builds(Shape, st.just("LABEL"), st.integers(0, 3), st.just(0)), min_size=1, max_size=5
    ),
    words=st.lists(
        st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=30), min_size=5
    ),
    width=st.integers(20, 120),
)
def test_nothing_that_is_never_cut_is_lost_at_any_width(shapes, words, width):
    shapes = [Shape("FIRST"), *shapes]
    row = (words * 2)[: len(shapes)]
    text = "\n".join(drawn(shapes, [row], width=width))
    assert all(word in text for word in row)


def test_wide_letters_are_counted_as_two():
    assert text_width("aé日") == 4
    assert drawn([Shape("A"), Shape("B")], [["日", "x"], ["ab", "y"]])[1:] == ["日  x", "ab  y"]


@pytest.mark.parametrize(
    "table",
    [
        *(views.JOBS, views.TRIALS, views.EVENTS, views.ARTIFACTS),
        *(train_views.TASKS, train_views.REPLICAS, train_views.ATTEMPTS, train_views.EVENTS),
        *(train_views.ROLES, train_views.QUOTA_OF_TASK, POOLS, IDLE, CORDONS, QUOTAS, METRICS),
    ],
    ids=lambda t: t.empty,
)
def test_tables_of_people_fit_80_columns(table: Table):
    shapes = [Shape(each.label, each.rank, each.shortest) for each in table.columns]
    rows = [
        [documents.TRIAL_ID if each.label in {"TRIAL", "RESOURCE"} else "x" * 9 for each in table.columns]
    ]
    rows[0][0] = documents.JOB_ID if table is views.JOBS else "name"
    for line in lay_out(shapes, rows, [""], 80):
        assert text_width(printed(line)) <= 80


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (59.9, "59.9 s"), (61, "1 min 1 s"), (7260, "2 h 1 min")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_why_and_when_are_told_in_local_time_without_the_form_of_the_wire():
    at = "2026-01-02T03:04:05+00:00"
    waiting = {"code": "GPUS_BUSY", "message": f"expected by {at}", "position": 2, "estimated_start_at": at}
    row = documents.trial(status="queued", error=None, waiting=waiting)
    assert "T03" not in views.reason_text(row)
    assert "place 2 in the queue" in views.reason_text(row)
    assert "T03" not in views.estimate_text(row)


def test_a_job_is_shown_with_runner_gpus_counts_and_a_short_request_id():
    job = documents.job(
        trials=[documents.trial(), documents.trial(status="failed")],
        request_id="cc305845-b5f2-4643-b6e6-0a543b6f551a",
    )
    assert views.trial_counts(job) == "1 succeeded, 1 failed"
    assert views.job_gpus(job) == "2xH100 simulated"
    assert views.job_runner(job) == "a/b@main"
    assert views.job_took(job) == "0.0 s"
    assert views.short_request(job) == "cc305845…"


def test_in_a_pipe_a_job_and_a_checkpoint_are_shown_with_whole_ids_and_selectors(capsys):
    request = "cc305845-b5f2-4643-b6e6-0a543b6f551a"
    selectors = [f"a/b@{digit * 40}" for digit in "01"]
    trials = [documents.trial(runner={"selector": each}) for each in selectors]
    job = documents.job(trials=trials, request_id=request)
    HumanOutput().show({"items": [job]}, views.JOBS)
    row = capsys.readouterr().out.splitlines()[1]
    assert row.endswith(f"  {request}")
    assert f"  {', '.join(selectors)}  " in row
    checkpoint = {"checkpoint_id": "ckpt_1", "trial_id": documents.TRIAL_ID}
    HumanOutput().show({"checkpoints": [checkpoint]}, views.CHECKPOINTS)
    assert capsys.readouterr().out.splitlines()[1].endswith(f"  {documents.TRIAL_ID}")


def test_a_job_without_a_runner_shows_the_gpus_that_it_got():
    asked_none = {"gpu_type": "", "gpus": 0}
    trial = documents.trial(runner=None, resources=asked_none)
    assert views.job_runner(documents.job(trials=[trial])) is None
    assert views.job_gpus(documents.job(trials=[trial])) == "1xH100 simulated"
    assert views.job_gpus(documents.job(trials=[{**trial, "gpu": None}])) is None


def test_E62_a_trial_is_shown_with_the_image_that_runs_and_the_name_it_was_asked_for():
    resolved = "docker.io/library/ubuntu@sha256:" + "0" * 64
    named = {"requested": "ubuntu:22.04", "resolved": resolved, "digest": "sha256:" + "0" * 64}
    assert views.image_text({"image": named}) == f"{resolved}\nasked for as ubuntu:22.04"
    assert views.image_text({"image": {**named, "requested": resolved}}) == resolved
    assert views.image_text({"image": None}) is views.image_text({}) is None


def test_E98_a_trials_profile_is_shown_by_what_it_names():
    digest = "ab" * 32
    uris = [f"envloop://{kind}/n/x@{digest}" for kind in ("recipes", "datasets", "plugins")]
    profile = {
        "schema": "envloop.job-profile/v2",
        "recipe": {"uri": uris[0]},
        "parameters": {},
        "inputs": {"data": {"uri": uris[1]}},
        "plugins": [{"uri": uris[2]}],
    }
    row = documents.trial(profile=profile, profile_sha256=digest)
    shown = {label: value for label, pick in views.TRIAL.fields if (value := picked(row, pick)) is not None}
    assert shown["profile"] == "envloop.job-profile/v2"
    assert shown["profile sha256"] == digest
    assert (shown["recipe"], shown["inputs"], shown["plugins"]) == (uris[0], f"data={uris[1]}", uris[2])
    v1 = documents.trial(
        profile={"schema": "v1", "recipe": {"uri": "a parameter"}, "inputs": {}, "plugins": []}
    )
    assert views.recipe_text(v1) is views.recipe_text(documents.trial()) is None


def test_the_reason_of_a_job_is_told_once(capsys):
    def shown(*reasons):
        trials = [
            documents.trial(
                name=f"t{number}", status="failed", error=each and {"code": each, "message": "why"}
            )
            for number, each in enumerate(reasons)
        ]
        error = {"code": "USER_CODE_FAILED", "message": "why"}
        job = documents.job("failed", trials, error=error)
        HumanOutput().show(job, views.JOB, views.TRIALS_OF_JOB)
        return capsys.readouterr().out

    for out in (shown("USER_CODE_FAILED"), shown("USER_CODE_FAILED", "USER_CODE_FAILED")):
        assert out.count("USER_CODE_FAILED: why") == 1
        assert "error       USER_CODE_FAILED: why\n" in out
    out = shown("USER_CODE_FAILED", None, "CONTENT_DAMAGED")
    assert (out.count("USER_CODE_FAILED: why"), out.count("CONTENT_DAMAGED: why")) == (1, 1)
    assert "error " not in out


@pytest.fixture
def berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("times", "drawn"),
    [
        (("2026-01-02T03:04:05.678Z",), ("AT (UTC+01:00)", "2026-01-02 04:04:05")),
        (
            ("2026-07-02T03:04:05.678Z", "2026-07-02T03:04:05.6789+00:00", "2026-07-02T03:04:07Z"),
            (
                "AT (UTC+02:00)",
                "2026-07-02 05:04:05.678",
                "2026-07-02 05:04:05.678",
                "2026-07-02 05:04:07.000",
            ),
        ),
        (
            ("2026-07-02T03:04:05Z", "2026-01-02T03:04:05Z"),
            ("AT", "2026-07-02 05:04:05+02:00", "2026-01-02 04:04:05+01:00"),
        ),
        (("", "2026-07-02T03:04:05Z"), ("AT (UTC+02:00)", "-", "2026-07-02 05:04:05")),
    ],
)
def test_events_say_their_zone_once_and_milliseconds_where_a_second_holds_several(
    berlin, capsys, times, drawn
):
    table = Table((Column("AT", "at", moments=True),), empty="")
    HumanOutput().show({"items": [{"at": each} for each in times]}, table)
    assert tuple(capsys.readouterr().out.splitlines()) == drawn


@pytest.mark.parametrize("view", [views.EVENTS, train_views.EVENTS, gpu_views.EVENTS])
def test_every_table_of_events_says_the_zone_of_its_times(view):
    assert view.columns[0] == Column("AT", "at", moments=True)


def test_each_part_of_the_usage_has_a_heading(run, fake):
    kind = {"kind": "datasets", "items": 1, "logical_bytes": 8, "stored_bytes": 8}
    held = {"project_id": "team", "content_bytes": 8, "max_content_bytes": None, "kinds": [kind]}
    amounts = dict.fromkeys(("blobs", "bytes", "waiting_blobs", "waiting_bytes"), 0)
    body = {"projects": [held], "garbage": {**amounts, "grace_hours": 24.0}}
    fake.routes["GET /v1/admin/content/usage"] = Reply(body=body)
    shown = run("content", "usage").out
    parts = [part.splitlines()[:2] for part in shown.split("\n\n")]
    assert [heading for heading, _ in parts] == [
        "Held, by kind:",
        "Quotas of what is published:",
        "Garbage, which nothing needs:",
    ]
    assert [rest.split()[0] for _, rest in parts] == ["PROJECT", "PROJECT", "would"]
