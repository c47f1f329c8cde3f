"""Sending one alarm to one channel: a webhook, a mail, or anything that Apprise knows (contract C40).

No message says a channel's URL: it holds passwords.
"""

from __future__ import annotations

import importlib
import importlib.util
import smtplib
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2

from trainshed.model.training.catalog import AlarmChannel, ChannelType

TRY_SECONDS = 20.0
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


def send(channel: AlarmChannel, alarm: Alarm) -> None:
    """Send it now; blocks up to about `TRY_SECONDS`. Raises `NotSent`."""
    match channel.type:
        case ChannelType.WEBHOOK:
            _post(channel.url, alarm)
        case ChannelType.MAILTO:
            _mail(channel.url, alarm)
        case ChannelType.APPRISE:
            _apprise(channel.url, alarm)


def _post(url: str, alarm: Alarm) -> None:
    body = {"title": alarm.title, "body": alarm.body, **alarm.facts}
    try:
        answer = httpx2.post(url, json=body, timeout=TRY_SECONDS, follow_redirects=False)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NotSent(f"the webhook cannot be reached: {type(error).__name__}") from None
    if answer.status_code not in _OK:
        raise NotSent(f"the webhook answered {answer.status_code}")


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
    if not apprise_is_there():
        raise NotSent(APPRISE_MISSING)
    apprise: Any = importlib.import_module("apprise")
    sender = apprise.Apprise()
    if not sender.add(url):
        raise NotSent("Apprise does not know the service that the channel's URL names")
    if not sender.notify(title=alarm.title, body=alarm.body):
        raise NotSent("the service did not take it")
