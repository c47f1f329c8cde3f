"""Sending one alarm to one channel: a webhook, a mail, or anything that Apprise knows (contract C40).

No message says a channel's URL: it holds passwords. Of a webhook's answer only the status is read. Mail and
Apprise know limits for each step only, so they run in a process that its own alarm clock ends.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import resource
import signal
import smtplib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2

from trainshed.model.training.catalog import AlarmChannel, ChannelType

TRY_SECONDS = 10.0
"""A whole delivery takes no longer, however its receiver behaves."""
_CHILD_SLACK_SECONDS = 2.0
_CHILD_MEMORY_BYTES = 2 << 30
_OK = range(200, 300)
_SMTP_PORT, _SMTPS_PORT = 25, 465
APPRISE_MISSING = "channels of type apprise need the program Apprise: pip install 'trainshed[alarms]'"


class NotSent(Exception):
    """The alarm did not go out; its message may be shown to anybody."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """What is told."""

    title: str
    body: str
    facts: Mapping[str, Any]
    """For programs: what happened to which task."""


def apprise_is_there() -> bool:
    return importlib.util.find_spec("apprise") is not None


def send(channel: AlarmChannel, alarm: Alarm, *, seconds: float = TRY_SECONDS) -> None:
    """Send it now; blocks up to about ``seconds``, whatever the receiver does. Raises `NotSent`."""
    if channel.type is ChannelType.WEBHOOK:
        _post(channel.url, alarm, seconds)
        return
    if channel.type is ChannelType.APPRISE and not apprise_is_there():
        raise NotSent(APPRISE_MISSING)
    _in_child(channel, alarm, seconds)


def _post(url: str, alarm: Alarm, seconds: float) -> None:
    body = {"title": alarm.title, "body": alarm.body, **alarm.facts}
    try:
        status = asyncio.run(_status_of(url, body, seconds))
    except TimeoutError:
        raise NotSent(f"the webhook did not answer within {seconds:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NotSent(f"the webhook cannot be reached: {type(error).__name__}") from None
    if status not in _OK:
        raise NotSent(f"the webhook answered {status}")


async def _status_of(url: str, body: Mapping[str, Any], seconds: float) -> int:
    """The status alone: what follows it may be long, slow, or both."""
    async with (
        asyncio.timeout(seconds),
        httpx2.AsyncClient(timeout=seconds, follow_redirects=False) as client,
        client.stream("POST", url, json=body) as answer,
    ):
        return answer.status_code


def _in_child(channel: AlarmChannel, alarm: Alarm, seconds: float) -> None:
    """Send by a process of its own, which hears the URL where no list of processes shows it."""
    told = {"type": channel.type.value, "url": channel.url, "title": alarm.title, "body": alarm.body}
    slow = NotSent(f"it was not sent within {seconds:g} s")
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", __name__, str(seconds)],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds + _CHILD_SLACK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise slow from None
    if done.returncode == -signal.SIGALRM:
        raise slow
    if done.returncode == 0:
        return
    said = done.stdout.rpartition(_NOT_SENT)[2].strip() if _NOT_SENT in done.stdout else ""
    raise NotSent(said or f"its sender ended with code {done.returncode}")


_NOT_SENT = "not sent: "


def main() -> int:
    """One mail or call of Apprise, as standard input says; the clock ends it after ``argv[1]`` seconds."""
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_AS, (_CHILD_MEMORY_BYTES, _CHILD_MEMORY_BYTES))
    told = json.load(sys.stdin)
    alarm = Alarm(told["title"], told["body"], {})
    try:
        if told["type"] == ChannelType.MAILTO:
            _mail(told["url"], alarm)
        else:
            _apprise(told["url"], alarm)
    except NotSent as error:
        sys.stdout.write(f"\n{_NOT_SENT}{error}\n")
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class MailPlace:
    """Where a mail goes, and through which server."""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None
    sender: str
    receivers: tuple[str, ...]


def mail_place(url: str) -> MailPlace:
    """Read ``mailto:ADDRESS`` (the server of this machine) or ``mailto://USER:PASSWORD@HOST:PORT?to=…&from=…``.

    ``mailtos`` speaks TLS from the first byte. Raises `NotSent`.
    """
    parts = urlsplit(url)
    tls = parts.scheme == "mailtos"
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    try:
        port = parts.port or (_SMTPS_PORT if tls else _SMTP_PORT)
    except ValueError:
        raise NotSent("the channel's URL names no port") from None
    if not parts.netloc:
        receivers = tuple(unquote(each) for each in parts.path.split(",") if each)
        host, user, password = "localhost", None, None
    else:
        host = parts.hostname or "localhost"
        user = None if parts.username is None else unquote(parts.username)
        password = None if parts.password is None else unquote(parts.password)
        at = user if user is not None and "@" in user else f"{user or 'trainshed'}@{host}"
        receivers = tuple(each.strip() for each in query.get("to", at).split(",") if each.strip())
    if not receivers:
        raise NotSent("the channel's URL names nobody to write to")
    sender = query.get("from", f"trainshed@{host}")
    return MailPlace(host, port, tls, user, password, sender, receivers)


def _mail(url: str, alarm: Alarm) -> None:
    place = mail_place(url)
    message = EmailMessage()
    message["Subject"] = alarm.title
    message["From"], message["To"] = place.sender, ", ".join(place.receivers)
    message.set_content(alarm.body)
    kind = smtplib.SMTP_SSL if place.tls else smtplib.SMTP
    try:
        with kind(place.host, place.port, timeout=TRY_SECONDS) as server:
            if not place.tls and server.has_extn("starttls"):
                server.starttls()
            if place.user is not None and place.password is not None:
                server.login(place.user, place.password)
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        raise NotSent(f"the mail server did not take it: {type(error).__name__}") from None


def _apprise(url: str, alarm: Alarm) -> None:
    apprise: Any = importlib.import_module("apprise")
    sender = apprise.Apprise()
    if not sender.add(url):
        raise NotSent("Apprise does not know the service that the channel's URL names")
    if not sender.notify(title=alarm.title, body=alarm.body):
        raise NotSent("the service did not take it")


if __name__ == "__main__":
    sys.exit(main())
