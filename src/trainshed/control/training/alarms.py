"""Alarms: what happened to a task is told to the channels that it named (contract C40).

Rows are made from events that are durable already, each once by task, subject and channel; the place in the
events moves in the same transaction. A row is tried until it was delivered, so a channel hears of everything
at least once. Several processes may do this at the same time. Each channel has a sender of its own, for which
nobody waits: a slow receiver holds up neither other channels nor the end of the server.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from trainshed.control.training.catalogs import Catalogs
from trainshed.control.training.channels import TRY_SECONDS, Alarm, NotSent, send
from trainshed.engines.contract import Sample
from trainshed.model.states import State
from trainshed.model.training.catalog import AlarmChannel, named
from trainshed.policy.words import iso
from trainshed.store import deliveries, events, gangs, jobs, moves, settings
from trainshed.store.database import Connection, Database, DatabaseUnavailable
from trainshed.store.deliveries import Delivery
from trainshed.store.records import Event, Replica, Task, Trial

LOOK_SECONDS = 1.0
COUNT_SECONDS = 5.0
"""How often it is looked how long tasks wait."""
MEASURE_SECONDS = 15.0
"""How often samples are looked at."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 900.0
MAX_TRIES = 50
"""About half a day; then it stays undelivered, and says why."""
TOLD_TRIES = frozenset({3, MAX_TRIES})
"""After so many tries in vain the task's events and the log say that nobody heard of it."""
_LEASE_SECONDS = 3 * TRY_SECONDS
"""Longer than any try: so long nobody else tries what a process took, even if it ended meanwhile."""
_IN_A_ROW = 16
"""So many deliveries a sender takes before it asks anew what is due."""
_PAGE = 1000
_LATE_EVENTS = 500
"""Events of PostgreSQL may be committed in another order than they are numbered: so many are read again."""
_SEEN = "alarms_seen"
FAILED = "ALARM_FAILED"
"""The event of an alarm that nobody hears."""
_ACTOR = "controller"

log = structlog.get_logger(__name__)

ReadSamples = Callable[[str, float], Sequence[Sample]]
"""``(unit, after)`` -> samples of a replica taken later than ``after`` (Unix seconds), oldest first."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a task's spec says of one alarm."""

    events: frozenset[str]
    channels: tuple[str, ...]
    threshold: float
    metric: str | None


def rules_of(task: Task) -> list[Rule]:
    return [
        Rule(
            frozenset(each["events"]),
            tuple(each["channels"]),
            float(each.get("threshold") or 0.0),
            each.get("metric"),
        )
        for each in json.loads(task.spec).get("alarms") or ()
    ]


def word_of(event: Event) -> str | None:
    """Which alarm an event is; ``None`` for one that no alarm is about."""
    ends = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.CANCELLED: "stopped"}
    if event.after in ends:
        return ends[State(event.after)]
    if event.code == "STARTED" and event.after == State.RUNNING:
        return "started"
    if event.after is None:
        # The decision; the move that follows from it is not told once more.
        return "preempted" if event.code == "PREEMPTED" else None
    return {"RESUBMITTED": "resubmitted", "NODE_REPLACED": "node_replaced"}.get(event.code)


class Alarms:
    """Makes and delivers alarms. `start` and `stop` once each; `look` does one round without a thread."""

    def __init__(
        self,
        database: Database,
        catalogs: Catalogs,
        clock: Callable[[], float],
        read_samples: ReadSamples,
        deliver: Callable[[AlarmChannel, Alarm], None] = send,
        *,
        patience_seconds: float = TRY_SECONDS,
    ) -> None:
        """``patience_seconds``: so long `stop` waits for what is under way."""
        self._database = database
        self._catalogs = catalogs
        self._clock = clock
        self._read_samples = read_samples
        self._deliver = deliver
        self._counted = self._measured = float("-inf")
        self._hint = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
        self._patience = patience_seconds
        self._senders: dict[str, threading.Thread] = {}
        """By channel. They end with the process: nothing waits for them."""

    def start(self) -> None:
        self._database.on_write(self._hint.set)
        self._thread.start()

    def stop(self) -> None:
        """End within ``patience_seconds``; what was not delivered yet is delivered by the next process."""
        until = time.monotonic() + self._patience
        self._stopping.set()
        self._hint.set()
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))
        if not self.wait(max(0.0, until - time.monotonic())):
            log.warning("alarms under way are left to the next process", channels=sorted(self._busy()))

    def wait(self, seconds: float) -> bool:
        """Until every sender has ended, but no longer; whether they have."""
        until = time.monotonic() + seconds
        for sender in list(self._senders.values()):
            sender.join(max(0.0, until - time.monotonic()))
        return not self._busy()

    def _busy(self) -> frozenset[str]:
        """Channels that something is being sent to."""
        return frozenset(channel for channel, sender in self._senders.items() if sender.is_alive())

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._hint.wait(LOOK_SECONDS)
            self._hint.clear()
            try:
                self.look()
            except DatabaseUnavailable as error:
                log.warning("alarms wait for the database", reason=str(error))
                self._stopping.wait(LOOK_SECONDS)
            except Exception:
                log.exception("a look for alarms failed; it is tried again")
                self._stopping.wait(LOOK_SECONDS)

    def look(self) -> int:
        """Make what is new and have sent what is due, without waiting for it; how many are tried."""
        while self._take_events():
            pass
        now = self._clock()
        rows: list[dict[str, Any]] = []
        with self._database.read() as connection:
            if now - self._counted >= COUNT_SECONDS:
                self._counted = now
                rows += self._waited(connection, now)
            if now - self._measured >= MEASURE_SECONDS:
                self._measured = now
                rows += self._measure(connection, now)
        if rows:
            self._database.write(lambda connection: deliveries.add(connection, rows))
        busy = self._busy()
        self._senders = {channel: self._senders[channel] for channel in busy}
        with self._database.read() as connection:
            due = deliveries.due(connection, now, _IN_A_ROW, without=busy)
        of_channel: dict[str, list[Delivery]] = {}
        for each in due:
            of_channel.setdefault(each.channel, []).append(each)
        for channel, mine in of_channel.items():
            sender = threading.Thread(target=self._send, args=(mine,), name=f"alarm {channel}", daemon=True)
            self._senders[channel] = sender
            sender.start()
        return len(due)

    # Making them

    def _take_events(self) -> bool:
        """Rows for the next events; whether there may be more."""
        with self._database.read() as connection:
            seen = settings.get(connection, _SEEN)
            newest = events.newest_id(connection)
            if seen is not None and int(seen) >= newest:
                return False
            late = _LATE_EVENTS if connection.dialect.name == "postgresql" else 0
            news = [] if seen is None else deliveries.news(connection, int(seen) - late, _PAGE)
        upto = news[-1][0].id if len(news) == _PAGE else newest
        rows = [row for event, task in news for row in self._rows_of(event, task)]

        def store(connection: Connection) -> None:
            if settings.get(connection, _SEEN) == seen:
                deliveries.add(connection, rows)
                settings.put(connection, _SEEN, str(max(upto, int(seen or 0))))

        self._database.write(store)
        return len(news) == _PAGE and upto > int(seen or 0)

    def _rows_of(self, event: Event, task: Task) -> Iterator[dict[str, Any]]:
        word = word_of(event)
        if word is None:
            return
        for rule in rules_of(task):
            if word in rule.events:
                yield from self._rows(task, rule, f"event:{event.id}", word, event.message)

    def _rows(
        self, task: Task, rule: Rule, subject: str, word: str, message: str
    ) -> Iterator[dict[str, Any]]:
        now = self._clock()
        for channel in rule.channels:
            yield {
                "trial_id": task.trial_id,
                "subject": subject,
                "channel": channel,
                "title": f"{task.name}: {word.replace('_', ' ')}",
                "body": message,
                "created_at": now,
                "next_at": now,
            }

    def _waited(self, connection: Connection, now: float) -> Iterator[dict[str, Any]]:
        for task, trial in deliveries.queued(connection):
            since = trial.updated_at
            for rule in rules_of(task):
                if "queued_over" in rule.events and now - since >= rule.threshold:
                    said = f"It has been queued for {now - since:.0f} s (alarm above {rule.threshold:g} s)."
                    yield from self._rows(task, rule, f"queued_over:{since}", "queued_over", said)

    def _measure(self, connection: Connection, now: float) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for task, trial in deliveries.running(connection):
            rules = [rule for rule in rules_of(task) if rule.events & {"gpu_idle_over", "metric_over"}]
            if not rules:
                continue
            attempt = jobs.attempts_of(connection, [trial.id])[trial.id][-1]
            members = gangs.replicas_of(connection, [attempt.id])[attempt.id]
            for rule in rules:
                rows += self._measured_rows(task, trial, rule, members, now)
        return rows

    def _measured_rows(
        self, task: Task, trial: Trial, rule: Rule, members: Sequence[Replica], now: float
    ) -> Iterator[dict[str, Any]]:
        begun = trial.started_at or now
        if "gpu_idle_over" in rule.events and now - begun >= rule.threshold:
            samples = [each for member in members for each in self._samples(member, now - rule.threshold)]
            rates = [rate for each in samples for rate in _gpu_rates(each.values)]
            if rates and max(rates) == 0 and _covers(samples, now - rule.threshold, rule.threshold):
                said = f"None of its GPUs worked for {rule.threshold:g} s."
                yield from self._rows(task, rule, f"gpu_idle_over:{begun}", "gpu_idle_over", said)
        if "metric_over" in rule.events and rule.metric is not None:
            for member in members:
                value = self._newest(member, rule.metric, now)
                if value is not None and value > rule.threshold:
                    said = f"{rule.metric} of replica {member.rank} is {value:g}, above {rule.threshold:g}."
                    subject = f"metric_over:{rule.metric}:{begun}"
                    yield from self._rows(task, rule, subject, "metric_over", said)
                    break

    def _samples(self, member: Replica, after: float) -> Sequence[Sample]:
        return self._read_samples(member.unit_id or member.attempt_id, after)

    def _newest(self, member: Replica, metric: str, now: float) -> float | None:
        found = None
        for sample in self._samples(member, now - 4 * MEASURE_SECONDS):
            for name, value in sample.values.items():
                if name.partition("{")[0] == metric:
                    found = value
        return found

    # Delivering them

    def _send(self, due: Sequence[Delivery]) -> None:
        """One after the other, to one channel."""
        try:
            for each in due:
                if self._stopping.is_set():
                    return
                if self._claim(each, self._clock()):
                    self._try(each)
        except DatabaseUnavailable as error:
            log.warning("alarms wait for the database", reason=str(error))
            return
        except Exception:
            if not self._stopping.is_set():
                log.exception("alarms could not be sent; they are tried again")
            return
        if len(due) == _IN_A_ROW:
            self._hint.set()

    def _claim(self, delivery: Delivery, now: float) -> bool:
        until = now + _LEASE_SECONDS
        return self._database.write(lambda connection: deliveries.claim(connection, delivery, until))

    def _try(self, delivery: Delivery) -> None:
        try:
            channel, alarm = self._prepared(delivery)
            self._deliver(channel, alarm)
            values: dict[str, Any] = {"delivered_at": self._clock(), "last_error": None}
        except NotSent as error:
            values = {"next_at": self._again_at(delivery.tries + 1), "last_error": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever a channel does, the others shall hear
            log.warning("an alarm could not be sent", channel=delivery.channel, error=type(error).__name__)
            values = {
                "next_at": self._again_at(delivery.tries + 1),
                "last_error": f"it could not be sent: {type(error).__name__}",
            }
        tries, said = delivery.tries + 1, values["last_error"]
        failed = None if said is None or tries not in TOLD_TRIES else _failed_words(delivery, tries, said)
        if failed is not None:
            log.warning("an alarm is not delivered", trial=delivery.trial_id, reason=failed)

        def store(connection: Connection) -> None:
            deliveries.settle(connection, delivery.id, values)
            if failed is not None:
                self._tell(connection, delivery.trial_id, failed)

        self._database.write(store)

    def _tell(self, connection: Connection, trial_id: str, message: str) -> None:
        """Whoever reads the task's events learns that a channel is deaf; no alarm is about this."""
        trial, _ = gangs.of_trials(connection, [trial_id])[trial_id]
        moves.lock_jobs(connection, [trial.job_id])
        told = events.NewEvent(
            trial.job_id, trial_id, self._clock(), _ACTOR, FAILED, message, level="warning"
        )
        events.record(connection, [told])

    def _again_at(self, tries: int) -> float:
        pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 20))
        return float("inf") if tries >= MAX_TRIES else self._clock() + pause

    def _prepared(self, delivery: Delivery) -> tuple[AlarmChannel, Alarm]:
        with self._database.read() as connection:
            _, catalog = self._catalogs.current(connection)
            trial, task = gangs.of_trials(connection, [delivery.trial_id])[delivery.trial_id]
        channel = catalog.channel(delivery.channel)
        if channel is None or not named(channel.projects, task.project_id):
            raise NotSent(f"there is no channel {delivery.channel} for this project any more")
        facts: Mapping[str, Any] = {
            "id": delivery.id,
            "subject": delivery.subject,
            "task": task.name,
            "task_uuid": task.task_uuid,
            "job_id": task.job_id,
            "project": task.project_id,
            "owner": task.owner,
            "state": str(trial.state),
            "at": iso(delivery.created_at),
        }
        return channel, Alarm(delivery.title, delivery.body, facts)


def _failed_words(delivery: Delivery, tries: int, error: str) -> str:
    after = f"after {tries} tries" if tries < MAX_TRIES else f"after {tries} tries, which were the last"
    return f"The alarm `{delivery.title}` did not reach the channel {delivery.channel} {after}: {error}."


def _gpu_rates(values: Mapping[str, float]) -> list[float]:
    return [
        value
        for name, value in values.items()
        if name.startswith("gpu") and name.endswith("_utilization_percent")
    ]


def _covers(samples: Sequence[Sample], begun: float, seconds: float) -> bool:
    """Whether the samples reach back over most of the time that is judged."""
    return bool(samples) and min(each.at for each in samples) <= begun + max(
        0.2 * seconds, 2 * MEASURE_SECONDS
    )
