"""Following a log: every record once and in order, whatever the network does."""

from __future__ import annotations

import base64
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from support import documents
from support.examples import examples
from support.fake_server import DROP, FakeServer, Reply, in_turn, refusal
from trainshed import Client
from trainshed.sdk import InvalidAnswer, NotFound, RetryPolicy, ServerUnavailable, WaitTimeout
from trainshed.sdk.logs import LONG_POLL_SECONDS

LOGS = f"GET /v1/jobs/{documents.JOB_ID}/logs"
QUICK = RetryPolicy(attempts=3, first=0.001, longest=0.002)


def paged(records, size, faults):
    """A log in pages of ``size``, with a fault before some of the answers; ends with an empty last page."""
    left = list(faults)

    def handler(request):
        if left and (fault := left.pop(0)) is not None:
            return fault
        start = int(request.query.get("cursor", "0"))
        items = records[start : start + size]
        end = start + len(items)
        if end == len(records):
            return Reply(body=documents.log_page(items, None))
        more = (start // size) % 2 == 0
        return Reply(body=documents.log_page(items, str(end), has_more=more))

    return handler


@hypothesis.given(
    count=st.integers(0, 12),
    size=st.integers(1, 5),
    faults=st.lists(
        st.sampled_from(
            [None, DROP, refusal(503, "LOG_STORAGE_UNAVAILABLE"), Reply(200, {"items": []}, cut_after=5)]
        ),
        max_size=8,
    ),
)
@hypothesis.settings(max_examples=examples(40))
def test_P8_a_follower_neither_loses_nor_repeats_a_record(count, size, faults):
    records = [documents.record(number) for number in range(count)]
    routes = {LOGS: paged(records, size, faults)}
    with FakeServer(routes) as server, Client(server.url, "k", retry=QUICK) as client:
        found = [record.id for record in client.jobs.follow(documents.JOB_ID)]
    assert found == [record["id"] for record in records]


def test_following_holds_the_request_open_and_goes_on_at_the_cursor(serve):
    server, client = serve(
        {
            LOGS: in_turn(
                Reply(body=documents.log_page([documents.record(1)], "c1")),
                Reply(body=documents.log_page([], "c1")),
                Reply(body=documents.log_page([documents.record(2)], None)),
            )
        }
    )
    follower = client.jobs.follow(documents.JOB_ID, tail=200, trial="trial-1", source="runtime")
    assert [record.text for record in follower] == ["line 1", "line 2"]
    queries = [request.query for request in server.seen]
    assert queries[0] == {
        "source": "runtime",
        "trial": "trial-1",
        "tail": "200",
        "limit": "1000",
        "wait": str(LONG_POLL_SECONDS),
    }
    assert [query.get("cursor") for query in queries] == [None, "c1", "c1"]
    assert not any("tail" in query for query in queries[1:])
    assert follower.last.eof


def test_a_follower_can_be_continued_from_its_cursor(serve):
    server, client = serve({LOGS: Reply(body=documents.log_page([], None))})
    assert list(client.jobs.follow(documents.JOB_ID, cursor="kept")) == []
    assert server.seen[0].query["cursor"] == "kept"


def test_reading_without_following_stops_where_the_log_ends_now(serve):
    server, client = serve(
        {
            LOGS: in_turn(
                Reply(body=documents.log_page([documents.record(1)], "c1", has_more=True)),
                Reply(body=documents.log_page([documents.record(2)], "c2")),
            )
        }
    )
    records = client.jobs.logs(documents.JOB_ID)
    assert len(list(records)) == 2
    assert records.cursor == "c2"
    assert not records.last.eof
    assert "wait" not in server.seen[0].query


def test_bytes_that_are_no_text_arrive_unchanged(serve):
    data = b"\xff\xfe\x00 caf\xc3\xa9"
    item = documents.record(
        1, data.decode("utf-8", "replace"), content_base64=base64.b64encode(data).decode()
    )
    _, client = serve({LOGS: Reply(body=documents.log_page([item], None))})
    (record,) = client.jobs.logs(documents.JOB_ID)
    assert record.data == data
    assert record.text == "\ufffd\ufffd\x00 café"


@pytest.mark.parametrize(
    "broken",
    [
        documents.log_page([], None, eof=False),
        documents.log_page([], None, has_more=True),
        {"next_cursor": "c"},
        documents.log_page([{"content": "no id"}], None),
        documents.log_page([documents.record(1, content_base64="%%%")], None),
    ],
    ids=["no cursor before the end", "no cursor but more", "no items", "no record id", "no base64"],
)
def test_a_page_that_cannot_be_followed_is_named(serve, broken):
    _, client = serve({LOGS: Reply(body=broken)})
    with pytest.raises(InvalidAnswer):
        list(client.jobs.follow(documents.JOB_ID))


def test_a_cursor_that_does_not_move_is_named_instead_of_looping(serve):
    _, client = serve({LOGS: Reply(body=documents.log_page([documents.record(1)], "c1", has_more=True))})
    with pytest.raises(InvalidAnswer, match="does not move"):
        list(client.jobs.follow(documents.JOB_ID))


def test_an_expired_cursor_ends_following_with_its_code(serve):
    _, client = serve({LOGS: refusal(410, "LOG_CURSOR_EXPIRED")})
    with pytest.raises(NotFound, match="LOG_CURSOR_EXPIRED"):
        list(client.jobs.follow(documents.JOB_ID, cursor="old"))


def test_an_outage_that_lasts_ends_following(serve):
    server, client = serve({LOGS: DROP})
    with pytest.raises(Exception, match="no answer"):
        list(client.jobs.follow(documents.JOB_ID, outage_seconds=0.05))
    assert len(server.seen) > 3


def test_a_fault_of_the_server_that_stays_ends_following(serve):
    server, client = serve({LOGS: refusal(500, "INTERNAL_ERROR")})
    with pytest.raises(ServerUnavailable):
        list(client.jobs.follow(documents.JOB_ID))
    assert len(server.seen) == 4


@pytest.mark.parametrize(
    "reply", [DROP, Reply(body=documents.log_page([], "c1"))], ids=["no connection", "nothing new"]
)
def test_following_ends_after_the_time_given(serve, reply):
    _, client = serve({LOGS: reply})
    start = time.monotonic()
    with pytest.raises(WaitTimeout):
        list(client.jobs.follow(documents.JOB_ID, timeout=0.3))
    assert time.monotonic() - start < 5
