"""What a test says of attempts and images, and the world that a fake engine acts in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainshed.engines.contract import EndedBy, EngineError, Host, Launch, Meeting, Report


@dataclass(frozen=True, slots=True)
class Script:
    """What one attempt does. Times are virtual seconds; the defaults start at once and succeed at once."""

    start_after: float = 0.0
    """From the launch to the start of user code."""
    run_seconds: float | None = 0.0
    """From the start to the program's own end; ``None`` runs until it is stopped or times out."""
    code: int = 0
    signal: int | None = None
    output: bytes = b""
    """Written to stdout when it starts."""
    shows: tuple[str, ...] = ()
    """Variables of which it prints, before that, where they lead and what is in the files there."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What lies in the work directory at the end."""
    heeds_sigterm: bool = True
    """Whether a stop ends it at once; otherwise only after the grace."""
    stop_code: int | None = None
    """What a program that handles the signal of a stop exits with; ``None``: the signal ends it."""
    not_started: str = ""
    """Why the platform could not start it, if it could not."""
    ended_by: EndedBy = EndedBy.EXIT
    lost_after: float | None = None
    """From the start to the moment its watcher vanishes without a trace."""
    deaf: bool = False
    """Its watcher hears of no stop and keeps no timeout: only a kill ends it early."""
    reported_after: float = 0.0
    """How long an end goes unnoticed: it is observed as running until then."""
    refusals: tuple[EngineError, ...] = ()
    """What the first launches answer instead of accepting, one each."""
    leaks: int = 0
    """How many releases fail before one is confirmed."""
    precheck_seconds: float = 0.0
    """How long its check before training takes, where its launch asks for one."""
    precheck_failure: str = ""
    """What that check finds, if it fails: replica, GPU and check."""
    saves_for: float | None = None
    """From an exit notice to its own end; more than the notice allows hangs, ``None`` does not hear it."""
    notice_code: int = 0
    """With what it ends after it saved."""
    reports: tuple[Report, ...] = ()
    """What its watcher says besides; ``at`` counts from the start of user code, numbers are given anew."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What every sample holds."""


@dataclass(frozen=True, slots=True)
class ImageScript:
    """What preparing an image does. The default finds it there at once."""

    seconds: float = 0.0
    """Virtual time that it takes. Whoever prepares waits until `FakeEngine.advance` brings it about."""
    progress: tuple[str, ...] = ()
    """What is told, spread evenly over that time."""
    failures: tuple[EngineError, ...] = ()
    """What the first tries come to, one each, when that time is over."""


@dataclass(slots=True)
class Attempt:
    """What was asked of one attempt, and when, in virtual Unix seconds."""

    launch: Launch
    script: Script
    launched_at: float
    stopped_at: float | None = None
    grace: float | None = None
    never_starts: bool = False
    """It was stopped before user code started."""
    released: bool = False
    shown: bytes = b""
    notified_at: float | None = None
    notice_deadline: float = 0.0
    notice_reason: str = ""
    lost_at: float | None = None
    """When the machine it was on went, if it did."""


@dataclass(slots=True)
class World:
    """What is outside of the server and survives it: the clock, the attempts, the scripts."""

    now: float = 1_000_000.0
    scripts: dict[str, Script] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    refused: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    leaked: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    images: dict[str, ImageScript] = field(default_factory=dict)
    prepared: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How often each image was prepared, failures included."""
    present: set[str] = field(default_factory=set)
    """Images that attempts can run in."""
    meetings: dict[str, Meeting] = field(default_factory=dict)
    joined: dict[str, dict[int, Host]] = field(default_factory=dict)
    """By gang and rank: where those are reached that came later."""
    left: set[str] = field(default_factory=set)
    """Gangs whose members were all released: their addresses and ports are free."""
    faults: dict[str, str] = field(default_factory=dict)
    """See `Engine.faults`."""
    gone: set[str] = field(default_factory=set)
    """Nodes that are lost."""
