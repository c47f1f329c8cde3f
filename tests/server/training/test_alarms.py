"""Alarms reach real channels: a web server, a mail server, and Apprise (contract C40)."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from aiosmtpd.controller import Controller as MailServer
from aiosmtpd.smtp import SMTP, Envelope, Session

from support.site import Site
from support.tasks import fail, place, task_document
from support.waiting import wait_until
from trainshed.control.training.alarms import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, MAX_TRIES, Alarms
from trainshed.control.training.channels import Alarm, NotSent, send
from trainshed.engines.contract import Sample
from trainshed.jobkit.ray_wire import free_ports
from trainshed.model.training.catalog import AlarmChannel, ChannelType


@dataclass
class Hook:
    """A web server that keeps what is posted to it, and answers what it is told to."""

    status: int = 204
    heard: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.heard.append(json.loads(body))
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}/T0K3N"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Drip:
    """A web server whose answers, or whose answers' bodies, never come to their end."""

    url: str = ""
    head: bytes = b""
    drops: bytes = b""
    heard: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def drip() -> Iterator[Drip]:
    found = Drip()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            found.heard.set()
            with contextlib.suppress(OSError):
                self.request.sendall(found.head)
                while not found.done.wait(0.01):
                    self.request.sendall(found.drops)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}/T0K3N"
    yield found
    found.done.set()
    server.shutdown()
    thread.join()
    server.server_close()


ALARM = Alarm("a title", "a body", {})


def test_C40_of_a_webhooks_answer_only_the_status_is_read(drip: Drip):
    drip.head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n"
    drip.drops = b"x" * 65_536
    send(AlarmChannel("ops", ChannelType.WEBHOOK, drip.url), ALARM)
    assert drip.heard.is_set()


@pytest.mark.parametrize("kind", ["webhook", "mailto", "apprise"])
@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
def test_C40_a_delivery_has_one_time_limit_however_often_something_comes(drip: Drip, kind: str):
    drip.head = b"220-hello\r\n" if kind == "mailto" else b"HTTP/1.1 200 OK\r\n"
    drip.drops = b"220-and\r\n" if kind == "mailto" else b"X: y\r\n"
    if kind == "apprise":
        drip.head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    scheme = {"webhook": "http", "mailto": "mailto", "apprise": "json"}[kind]
    url = drip.url.replace("http://", f"{scheme}://")
    with pytest.raises(NotSent, match="within 2 s") as refused:
        send(AlarmChannel("ops", ChannelType(kind), url), ALARM, seconds=2.0)
    assert "T0K3N" not in str(refused.value)


@dataclass
class Mailbox:
    """What a mail server took."""

    port: int = 0
    mails: list[Envelope] = field(default_factory=list)

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        self.mails.append(envelope)
        return "250 taken"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    found = Mailbox()
    # Its controller connects to the port that it was given, so that cannot be 0.
    [found.port] = free_ports(1)
    server = MailServer(found, hostname="127.0.0.1", port=found.port)
    server.start()
    yield found
    server.stop()


@dataclass
class Bell:
    """A site's alarms, with channels, samples and a look at a time."""

    site: Site
    alarms: Alarms
    samples: dict[str, list[Sample]]

    def look(self) -> int:
        """A look, and all that is sent for it."""
        tried = self.alarms.look()
        assert self.alarms.wait(30.0)
        return tried

    def channel(self, kind: str, url: str) -> None:
        """Make it the only one, under the id `ops`."""
        document = self.site.get("/v1/catalog").json()["document"]
        document["alarm_channels"] = [{"id": "ops", "type": kind, "url": url}]
        answer = self.site.request("PUT", "/v1/catalog", {"document": document})
        assert answer.status_code == 200, answer.text

    def submit(self, *events: str, **alarm: Any) -> dict[str, Any]:
        alarms = [{"events": list(events), "channels": ["ops"], **alarm}]
        answer = self.site.post("/v1/jobs", task_document(alarms=alarms))
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def told(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        return list(self.site.get(f"/v1/alarms?task={task['name']}").json()["items"])


@pytest.fixture
def bell(site: Site) -> Iterator[Bell]:
    samples: dict[str, list[Sample]] = {}
    alarms = Alarms(
        site.services.database,
        site.services.catalogs,
        site.clock,
        lambda unit, after: [each for each in samples.get(unit, []) if each.at > after],
        patience_seconds=0.0,
    )
    made = Bell(site, alarms, samples)
    made.look()
    yield made
    alarms.stop()


def test_C40_what_happens_to_a_task_is_posted_once_to_its_webhook(bell: Bell, hook: Hook):
    bell.channel("webhook", hook.url)
    task = bell.submit("started", "failed", "stopped")
    other = bell.submit("succeeded")
    place(bell.site, task)
    bell.look()
    fail(bell.site, task)
    while bell.look():
        pass
    assert [each["title"] for each in hook.heard] == [f"{task['name']}: started", f"{task['name']}: failed"]
    assert {each["task_uuid"] for each in hook.heard} == {task["task_uuid"]}
    assert {datetime.fromisoformat(each["at"]).utcoffset() for each in hook.heard} == {timedelta(0)}
    rows = bell.told(task)
    assert [(row["tries"], row["last_error"], row["delivered_at"] is None) for row in rows] == [
        (1, None, False)
    ] * 2
    assert bell.told(other) == []


def test_C40_nothing_is_told_twice_by_two_processes_that_look_at_the_same_events(bell: Bell, hook: Hook):
    bell.channel("webhook", hook.url)
    task = bell.submit("started")
    place(bell.site, task)
    site = bell.site
    second = Alarms(site.services.database, site.services.catalogs, site.clock, lambda _unit, _after: [])
    bell.look()
    second.look()
    second.stop()
    assert second.wait(0.0)
    assert len(hook.heard) == len(bell.told(task)) == 1


def test_C40_a_channel_that_fails_is_tried_again_later_until_it_hears(bell: Bell, hook: Hook):
    hook.status = 503
    bell.channel("webhook", hook.url)
    task = bell.submit("started")
    place(bell.site, task)
    assert bell.look() == 1
    (row,) = bell.told(task)
    assert (row["tries"], row["delivered_at"], row["last_error"]) == (1, None, "the webhook answered 503")
    assert bell.look() == 0
    hook.status = 200
    bell.site.clock.now += FIRST_PAUSE_SECONDS
    assert bell.look() == 1
    (row,) = bell.told(task)
    assert (row["tries"], row["last_error"]) == (2, None)
    assert row["delivered_at"] is not None
    assert "T0K3N" not in json.dumps(bell.told(task))


def test_C40_a_channel_that_cannot_be_reached_says_so_without_its_url(bell: Bell):
    bell.channel("webhook", "http://127.0.0.1:1/T0K3N")
    task = bell.submit("started")
    place(bell.site, task)
    bell.look()
    (row,) = bell.told(task)
    assert "cannot be reached" in row["last_error"]
    assert "T0K3N" not in json.dumps(row)


def test_C40_an_alarm_that_nobody_hears_is_told_by_an_event_after_some_tries_and_after_the_last(bell: Bell):
    bell.channel("webhook", "http://127.0.0.1:1/T0K3N")
    task = bell.submit("started", "failed")
    place(bell.site, task)

    def failures() -> list[dict[str, Any]]:
        items = bell.site.get(f"/v1/tasks/{task['name']}/events?limit=1000").json()["items"]
        return [each for each in items if each["code"] == "ALARM_FAILED"]

    told = []
    for _ in range(MAX_TRIES):
        assert bell.look() == 1
        told.append(len(failures()))
        bell.site.clock.now += MAX_PAUSE_SECONDS
    assert bell.look() == 0
    assert told == [0, 0, *[1] * (MAX_TRIES - 3), 2]
    first, last = failures()
    assert first["level"] == "warning"
    assert (
        f"`{task['name']}: started` did not reach the channel ops after 3 tries: the web" in first["message"]
    )
    assert "which were the last" in last["message"]
    assert "T0K3N" not in json.dumps([first, last])


def test_C40_a_slow_channel_holds_up_neither_another_one_nor_the_end(bell: Bell, drip: Drip, hook: Hook):
    document = bell.site.get("/v1/catalog").json()["document"]
    document["alarm_channels"] = [
        {"id": "slow", "type": "webhook", "url": drip.url},
        {"id": "ops", "type": "webhook", "url": hook.url},
    ]
    assert bell.site.request("PUT", "/v1/catalog", {"document": document}).status_code == 200
    alarms = [{"events": ["started", "failed"], "channels": ["slow", "ops"]}]
    task = dict(bell.site.post("/v1/jobs", task_document(alarms=alarms)).json())
    place(bell.site, task)
    assert bell.alarms.look() == 2
    wait_until(lambda: len(hook.heard) == 1 and drip.heard.is_set())
    fail(bell.site, task)
    wait_until(lambda: bell.alarms.look() == 1 or len(hook.heard) == 2)
    wait_until(lambda: len(hook.heard) == 2)
    bell.alarms.stop()
    slow = [row for row in bell.told(task) if row["channel"] == "slow"]
    assert [row["delivered_at"] for row in slow] == [None, None]
    assert [row["tries"] for row in slow] == [1, 0]
    bell.site.clock.now += 60.0
    second = Alarms(
        bell.site.services.database, bell.site.services.catalogs, bell.site.clock, lambda _unit, _after: []
    )
    # Before the slow one ends: what the first process abandoned could still arrive by itself.
    assert second.look() == 2, "what was left is tried by the next process"
    drip.done.set()
    assert second.wait(30.0)
    second.stop()


def test_C40_a_mail_goes_through_the_server_that_the_channel_names(bell: Bell, mailbox: Mailbox):
    bell.channel("mailto", f"mailto://127.0.0.1:{mailbox.port}?to=ops@example.org&from=shed@example.org")
    task = bell.submit("started")
    place(bell.site, task)
    bell.look()
    (mail,) = mailbox.mails
    assert (mail.mail_from, mail.rcpt_tos) == ("shed@example.org", ["ops@example.org"])
    assert f"Subject: {task['name']}: started" in (mail.content or b"").decode()


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # Apprise imports it
def test_C40_apprise_carries_it_to_whatever_it_knows(bell: Bell, hook: Hook):
    bell.channel("apprise", hook.url.replace("http://", "json://"))
    task = bell.submit("started")
    place(bell.site, task)
    bell.look()
    assert [row["last_error"] for row in bell.told(task)] == [None]
    (heard,) = hook.heard
    assert (heard["title"], heard["message"]) == (f"{task['name']}: started", "Started.")


def test_C40_a_task_that_waits_for_long_is_told_once_for_each_wait(bell: Bell, hook: Hook):
    bell.channel("webhook", hook.url)
    task = bell.submit("queued_over", threshold=60)
    bell.site.clock.now += 59
    bell.look()
    assert hook.heard == []
    for _ in range(2):
        bell.site.clock.now += 10
        bell.look()
    assert [each["title"] for each in hook.heard] == [f"{task['name']}: queued over"]


def test_C40_idle_gpus_and_metrics_above_their_threshold_are_told(bell: Bell, hook: Hook):
    bell.channel("webhook", hook.url)
    idle, loss = (
        bell.submit("gpu_idle_over", threshold=120),
        bell.submit("metric_over", threshold=5, metric="loss"),
    )
    (first,), (second,) = place(bell.site, idle), place(bell.site, loss)
    begun = bell.site.clock.now
    bell.samples[first] = [Sample(begun + at, {"gpu0_utilization_percent": 0.0}) for at in range(0, 130, 10)]
    bell.samples[second] = [Sample(begun + 100, {'loss{rank="0"}': 4.0}, ":9400/metrics")]
    bell.site.clock.now += 115
    bell.look()
    assert hook.heard == []
    bell.samples[second].append(Sample(begun + 118, {'loss{rank="0"}': 7.5}, ":9400/metrics"))
    bell.site.clock.now += 20
    bell.look()
    assert {each["subject"].partition(":")[0] for each in hook.heard} == {"gpu_idle_over", "metric_over"}
    bell.samples[first] = [Sample(begun + at, {"gpu0_utilization_percent": 90.0}) for at in range(0, 180, 10)]
    bell.site.clock.now += 60
    bell.look()
    assert len(hook.heard) == 2


def test_C40_a_channel_of_another_project_is_unknown(bell: Bell):
    document = bell.site.get("/v1/catalog").json()["document"]
    document["alarm_channels"] = [
        {"id": "ops", "type": "webhook", "url": "https://a.example/x", "projects": ["b"]}
    ]
    bell.site.request("PUT", "/v1/catalog", {"document": document})
    answer = bell.site.post("/v1/jobs", task_document(alarms=[{"events": ["failed"], "channels": ["ops"]}]))
    assert [fault["code"] for fault in answer.json()["errors"]] == ["ALARM_CHANNEL_UNKNOWN"]
