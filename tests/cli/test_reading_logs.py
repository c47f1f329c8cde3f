"""``job log`` and ``trial log``: which byte goes where."""

from __future__ import annotations

import base64
import io
import json

import pytest

from support import documents
from support.fake_server import Reply
from trainshed.cli.logs import LogPrinter, LogStyle, safe_for_terminal
from trainshed.sdk.objects import log_record

JOB = f"GET /v1/jobs/{documents.JOB_ID}"
LOGS = f"{JOB}/logs"
TRIAL = f"GET /v1/trials/{documents.TRIAL_ID}"
RECORDS = [
    documents.record(1, "Trial started", source="system", stream=None),
    documents.record(2, "out "),
    documents.record(3, "err", stream="stderr"),
    documents.record(4, "no newline", partial=True),
]


@pytest.fixture
def logged(fake):
    fake.routes |= {
        JOB: Reply(body=documents.job()),
        LOGS: Reply(body=documents.log_page(RECORDS, None)),
        TRIAL: Reply(body=documents.trial()),
    }
    return fake


def test_E71_stdout_and_stderr_stay_apart_and_the_platform_speaks_on_stderr(run, logged):
    ran = run("job", "log", documents.JOB_ID)
    assert ran.status == 0
    assert ran.raw == b"out \nno newline"
    assert ran.err == "-- Trial started\nerr\n"


def test_E82_following_a_log_to_its_end(run, logged):
    assert run("job", "log", documents.JOB_ID, "--follow").raw == b"out \nno newline"
    assert logged.asked(LOGS)[0].query["wait"]


@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        (["--stream", "stderr"], b"", "err\n"),
        (["--stream", "stdout"], b"out \nno newline", ""),
        (["--raw"], b"out \nno newline", "err\n"),
        (["--trial", "trial-1"], b"out \nno newline", "-- Trial started\nerr\n"),
    ],
)
def test_options_choose_what_is_printed(run, logged, options, out, err):
    ran = run("job", "log", documents.JOB_ID, *options)
    assert (ran.raw, ran.err) == (out, err)


def test_options_that_the_server_decides_are_sent(run, logged):
    run("job", "log", documents.JOB_ID, "--tail", "5", "--source", "runtime", "--trial", "b")
    query = logged.asked(LOGS)[0].query
    assert (query["tail"], query["source"], query["trial"]) == ("5", "runtime", "b")
    run("trial", "log", documents.TRIAL_ID, "--cursor", "c")
    query = logged.asked(LOGS)[1].query
    assert (query["cursor"], query["trial"]) == ("c", documents.TRIAL_ID)


def test_json_is_one_document_or_one_a_line_when_following(run, logged):
    found = run("job", "log", documents.JOB_ID, "--json").json
    assert found["items"] == RECORDS
    assert found["eof"] is True
    lines = run("job", "log", documents.JOB_ID, "--json", "--follow").out.splitlines()
    assert [json.loads(line) for line in lines] == RECORDS


def test_several_trials_are_told_apart_and_never_share_a_line(run, logged):
    logged.routes[JOB] = Reply(
        body=documents.job(trials=[documents.trial(), documents.trial(name="trial-2")])
    )
    other = {"trial_id": "trial_2", "trial_name": "trial-2"}
    records = [
        documents.record(1, "half", partial=True),
        documents.record(2, "whole", **other),
        documents.record(3, " line"),
    ]
    logged.routes[LOGS] = Reply(body=documents.log_page(records, None))
    assert run("job", "log", documents.JOB_ID).out == "[trial-1] half\n[trial-2] whole\n[trial-1]  line\n"


def test_a_line_in_pieces_is_put_together_again(run, logged):
    pieces = [documents.record(n, "x" * 10, partial=n < 3) for n in range(4)]
    logged.routes[LOGS] = Reply(body=documents.log_page(pieces, None))
    assert run("job", "log", documents.JOB_ID).raw == b"x" * 40 + b"\n"


def test_P8_bytes_that_are_no_text_are_printed_unchanged(run, logged):
    data = bytes(range(256))
    item = documents.record(1, "?", content_base64=base64.b64encode(data).decode())
    logged.routes[LOGS] = Reply(body=documents.log_page([item], None))
    assert run("job", "log", documents.JOB_ID).raw == data + b"\n"


def test_the_exact_bytes_of_a_stream_come_from_the_raw_log(run, logged):
    route = f"{TRIAL}/logs/raw"
    logged.routes[route] = Reply(body=b"\x00exact\r\n")
    assert run("trial", "log", documents.TRIAL_ID, "--raw", "--stream", "stderr").raw == b"\x00exact\r\n"
    assert logged.asked(route)[0].query == {"stream": "stderr"}


def test_loss_is_never_silent(run, logged):
    page = documents.log_page([], None, collection_status="partial", truncated=True, dropped_bytes=12)
    logged.routes[LOGS] = Reply(body={**page, "missing_reason": "the disk was full"})
    err = run("job", "log", documents.JOB_ID).err
    assert "incomplete (partial)" in err
    assert "12 bytes" in err
    assert "the disk was full" in err


class Terminal(io.BytesIO):
    """A terminal that remembers what was written to it."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_colours_pass_and_control_sequences_do_not():
    hostile = (
        b"\x1b]0;title\x07\x1b[2J\x1b[1;31mred\x1b[0m\x1b]52;c;eA==\x1b\\ \x9b\xc2\x9b\x07 tab\tcr\r\xc3\xa9"
    )
    out, err = Terminal(), Terminal()
    printer = LogPrinter(LogStyle(), out, err)
    encoded = base64.b64encode(hostile).decode()
    printer.print_all([log_record(documents.record(1, "?", content_base64=encoded))])
    assert out.getvalue() == b"\x1b[1;31mred\x1b[0m \x9b tab\tcr\r\xc3\xa9\n"
    printer.print(log_record(documents.record(2, "start", source="system", stream=None)))
    assert err.getvalue() == b"\x1b[2m-- start\x1b[0m\n"


def test_raw_on_a_terminal_changes_nothing():
    out = Terminal()
    LogPrinter(LogStyle(raw=True), out, Terminal()).print_all([log_record(documents.record(1, "\x1b[2J"))])
    assert out.getvalue() == b"\x1b[2J\n"


def test_cleaning_is_repeatable():
    once = safe_for_terminal(b"\x1b\x1b]x\x1b[31m\x1b[")
    assert safe_for_terminal(once) == once
