"""What follows from scripts and clock: how far each attempt of a fake world got. Pure functions.

A gang's members open together: all ready, all checked, then user code of all at once. What ends one before
that ends all before that, and what fails or is lost later ends the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from trainshed.engines.contract import EndedBy, Exit, Gang, Observation, Phase, Report, Sample
from trainshed.engines.fake.scripts import Attempt, World

STOPPED = "It was stopped before it started."
_GANG = "Another member of its gang ended: rank {rank} {why}."
_LATE = "Not all members of its gang were ready within {seconds:g} seconds."
_UNHEARD_SECONDS = 15.0
_NOTICE_GRACE = 10.0
_STOP_PATIENCE, _NOTICE_PATIENCE = 5.0, 30.0
"""How long the others wait for their own stop or timeout, or notice, after one member ended by such."""
_SIGTERM, _SIGKILL = 15, 9
_MOST_SAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Opening:
    """What happens up to the start of user code. Times are ``inf`` where it never comes to that."""

    ready: float
    begin: float
    """All members are ready."""
    start: float
    """All members are checked: user code starts."""
    exit: Exit | None
    """Why user code never starts."""


def members(world: World, gang: Gang) -> list[Attempt]:
    """The launched members of a gang, by rank."""
    found = (world.attempts.get(f"{gang.id}.{rank}") for rank in range(gang.size))
    return [each for each in found if each is not None]


def joined(world: World, gang: Gang) -> list[Attempt]:
    """Those launched that came to a gang after its start, by rank."""
    ranks = sorted(world.joined.get(gang.id, ()))
    found = (world.attempts.get(f"{gang.id}.{rank}") for rank in ranks)
    return [each for each in found if each is not None]


def _may_leave(attempt: Attempt) -> bool:
    gang = attempt.launch.gang
    return gang is not None and (gang.joins or gang.rank in gang.optional)


def _rank(attempt: Attempt) -> int:
    return attempt.launch.gang.rank if attempt.launch.gang else 0


def _together(world: World, attempt: Attempt) -> list[Attempt]:
    gang = attempt.launch.gang
    return members(world, gang) if gang else [attempt]


def _ready_at(attempt: Attempt) -> float:
    at = attempt.launched_at + attempt.script.start_after
    return inf if attempt.lost_at is not None and attempt.lost_at < at else at


def opening(world: World, attempt: Attempt) -> Opening:
    """How the attempt, with its gang, comes to start user code or not."""
    gang, group = attempt.launch.gang, _together(world, attempt)
    if gang is not None and gang.joins:
        return _joining(attempt, opening(world, group[0]) if group else None)
    complete = gang is None or len(group) == gang.size
    begin = max(map(_ready_at, group)) if complete else inf
    checked = {id(each): begin + _check_seconds(each) for each in group}
    start = max(checked.values())
    own: list[Exit] = []
    others: list[tuple[float, str]] = []
    for each in group:
        for ending in _before_start(each, begin, checked[id(each)]):
            if each is attempt:
                own.append(ending)
            else:
                others.append((ending.finished_at, _GANG.format(rank=_rank(each), why=_why(ending))))
        if each is not attempt and each.lost_at is not None and each.lost_at < start < inf:
            others.append((each.lost_at, _GANG.format(rank=_rank(each), why="is lost")))
    if gang is not None:
        others += [
            (attempt.launched_at, _GANG.format(rank=rank, why="did not start (stop)"))
            for rank in range(gang.size)
            if f"{gang.id}.{rank}" in world.stopped  # before it was even launched
        ]
        deadline = min(each.launched_at for each in group) + gang.start_seconds
        if begin > deadline:
            others.append((deadline, _LATE.format(seconds=gang.start_seconds)))
    endings = own + [Exit(None, None, EndedBy.GANG, at, detail) for at, detail in others]
    exit_ = min(endings, key=lambda ending: ending.finished_at, default=None)
    return Opening(_ready_at(attempt), begin, inf if exit_ else start, exit_)


def _joining(attempt: Attempt, of_gang: Opening | None) -> Opening:
    """How one that joins comes to start: never before its gang, and not at all without it."""
    ready = _ready_at(attempt)
    start = max(ready, inf if of_gang is None else of_gang.start)
    endings = list(_before_start(attempt, ready, start))
    if of_gang is not None and of_gang.exit is not None:
        at = max(attempt.launched_at, of_gang.exit.finished_at)
        endings.append(Exit(None, None, EndedBy.GANG, at, of_gang.exit.detail))
    exit_ = min(endings, key=lambda ending: ending.finished_at, default=None)
    return Opening(ready, start, inf if exit_ else start, exit_)


def _check_seconds(attempt: Attempt) -> float:
    return attempt.script.precheck_seconds if attempt.launch.precheck else 0.0


def _before_start(attempt: Attempt, begin: float, checked: float) -> Iterator[Exit]:
    """What of its own keeps user code from starting."""
    stopped, script = attempt.stopped_at, attempt.script
    if stopped is not None and attempt.never_starts:
        yield Exit(None, None, EndedBy.STOP, stopped, STOPPED)
    if script.not_started and _ready_at(attempt) < inf:
        yield Exit(None, None, EndedBy.NOT_STARTED, _ready_at(attempt), script.not_started)
    if script.precheck_failure and attempt.launch.precheck and begin < inf:
        detail = f"PRECHECK_FAILED: {script.precheck_failure}"
        yield Exit(None, None, EndedBy.PRECHECK, checked, detail)


def _why(ending: Exit) -> str:
    if ending.code is None:
        return f"did not start ({ending.ended_by.value})"
    return f"exited with {ending.code}"


def observe(world: World, attempt_id: str) -> Observation:
    """What evidence would say now."""
    attempt = world.attempts.get(attempt_id)
    if attempt is not None:
        seen = _observe(world, attempt)
        return seen if attempt.launch.gang is None else _with_reports(world, attempt_id, seen)
    if attempt_id in world.stopped:
        return _unstarted(Exit(None, None, EndedBy.STOP, world.now, STOPPED))
    return Observation(Phase.ABSENT)


def _with_reports(world: World, attempt_id: str, seen: Observation) -> Observation:
    return Observation(
        seen.phase,
        seen.started_at,
        seen.exit,
        seen.detail,
        seen.stage,
        seen.noticed,
        len(reports(world, attempt_id)),
    )


def _observe(world: World, attempt: Attempt) -> Observation:
    now, script, opens = world.now, attempt.script, opening(world, attempt)
    if opens.exit is not None and now >= opens.exit.finished_at:
        return _unstarted(opens.exit)
    if now < opens.start:
        return Observation(Phase.PREPARING, stage=_stage(now, opens))
    ending, lost = _ending(world, attempt, opens.start), _lost_at(attempt, opens.start)
    if now >= lost <= ending.finished_at:
        return Observation(Phase.LOST, opens.start, detail="Its watcher vanished.")
    if now < ending.finished_at + script.reported_after:
        return Observation(Phase.RUNNING, opens.start, noticed=attempt.notified_at is not None)
    return Observation(Phase.EXITED, opens.start, ending, ending.detail)


def _unstarted(ending: Exit) -> Observation:
    return Observation(Phase.EXITED, exit=ending, detail=ending.detail)


def _stage(now: float, opens: Opening) -> str:
    if now < opens.ready:
        return "starting"
    return "ready" if now < opens.begin else "prechecking"


def _lost_at(attempt: Attempt, start: float) -> float:
    scripted = inf if attempt.script.lost_after is None else start + attempt.script.lost_after
    return min(scripted, inf if attempt.lost_at is None else attempt.lost_at)


def _ending(world: World, attempt: Attempt, start: float) -> Exit:
    """How it ends: by itself, or because another member of its gang did."""
    own = _own_ending(attempt, start)
    if attempt.script.deaf:
        return own
    endings = [own]
    for each in _together(world, attempt):
        if each is attempt:
            continue
        began = opening(world, each).start
        other, lost = _own_ending(each, began), _lost_at(each, began)
        over = other.code == 0 and _rank(each) == 0 and _may_leave(attempt)
        if _may_leave(each):
            continue
        if lost <= other.finished_at:
            failed_at, why, patience = lost, "is lost", 0.0
        elif over and other.finished_at < inf:
            failed_at, why, patience = other.finished_at, "ended", _NOTICE_PATIENCE
        elif other.code == 0 or other.finished_at == inf:
            continue
        else:
            failed_at, why, patience = other.finished_at, _why(other), _patience(each, other)
        if attempt.notified_at is not None and attempt.notified_at <= failed_at + patience:
            continue  # it is saving, and goes anyway
        at = max(start, failed_at + patience)
        heeds, grace = attempt.script.heeds_sigterm, attempt.launch.stop_grace_seconds
        number = _SIGTERM if heeds else _SIGKILL
        detail = _GANG.format(rank=_rank(each), why=why)
        endings.append(Exit(128 + number, number, EndedBy.GANG, at if heeds else at + grace, detail))
    return min(endings, key=lambda ending: ending.finished_at)


def _patience(attempt: Attempt, ending: Exit) -> float:
    if ending.ended_by not in {EndedBy.STOP, EndedBy.TIMEOUT}:
        return 0.0
    return _STOP_PATIENCE if attempt.notified_at is None else _NOTICE_PATIENCE


def _own_ending(attempt: Attempt, start: float) -> Exit:
    """The first of its own end, its timeout, its stop and its notice."""
    script, launch = attempt.script, attempt.launch
    own_at = inf if script.run_seconds is None else start + script.run_seconds
    code = script.code if script.signal is None else 128 + script.signal
    endings = [Exit(code, script.signal, script.ended_by, own_at)]
    asked: list[tuple[float | None, EndedBy, float]] = [
        (start + launch.timeout_seconds, EndedBy.TIMEOUT, launch.stop_grace_seconds),
        (attempt.stopped_at, EndedBy.STOP, attempt.grace or 0.0),
    ]
    if attempt.notified_at is not None:
        goes_at, by_itself = _notice_ends(attempt, attempt.notified_at)
        if by_itself and goes_at < own_at and not script.deaf:
            endings.append(Exit(script.notice_code, None, EndedBy.STOP, goes_at))
        elif not by_itself:
            asked.append((goes_at, EndedBy.STOP, _NOTICE_GRACE))
    for at, why, grace in asked:
        if at is None or at >= own_at or script.deaf:
            continue
        number = _SIGTERM if script.heeds_sigterm and grace else _SIGKILL
        ended_at = at if script.heeds_sigterm else at + grace
        if number == _SIGTERM and script.stop_code is not None:
            endings.append(Exit(script.stop_code, None, why, ended_at))
        else:
            endings.append(Exit(128 + number, number, why, ended_at))
    return min(endings, key=lambda ending: ending.finished_at)


def _notice_ends(attempt: Attempt, notified_at: float) -> tuple[float, bool]:
    """When a notice is over, and whether the program then went by itself."""
    saves_for = attempt.script.saves_for
    if saves_for is None:
        return min(notified_at + _UNHEARD_SECONDS, attempt.notice_deadline), False
    if notified_at + saves_for > attempt.notice_deadline:
        return attempt.notice_deadline, False
    return notified_at + saves_for, True


def reports(world: World, attempt_id: str) -> list[Report]:
    """All that its watcher said by now."""
    attempt = world.attempts.get(attempt_id)
    if attempt is None:
        return []
    said = [each for each in _said(world, attempt) if each.at <= world.now]
    ordered = sorted(said, key=lambda each: each.at)
    return [
        Report(number, each.at, each.code, each.message, each.level, each.data)
        for number, each in enumerate(ordered, 1)
    ]


def _said(world: World, attempt: Attempt) -> Iterator[Report]:
    opens, script = opening(world, attempt), attempt.script
    ended_at = opens.exit.finished_at if opens.exit else inf
    if attempt.launch.gang is not None and opens.ready <= ended_at and not script.not_started:
        yield Report(0, opens.ready, "READY", "It is ready and waits for its gang.")
    if attempt.launch.precheck is not None and opens.begin < inf:
        at = opens.begin + script.precheck_seconds
        if opens.exit is not None and opens.exit.ended_by is EndedBy.PRECHECK:
            yield Report(0, at, "PRECHECK_FAILED", opens.exit.detail, "error")
        elif at <= ended_at:
            yield Report(0, at, "PRECHECK_PASSED", "The check before training passed.")
    if opens.start == inf:
        return
    ending = min(_ending(world, attempt, opens.start).finished_at, _lost_at(attempt, opens.start))
    for each in script.reports:
        if opens.start + each.at <= ending:
            yield Report(0, opens.start + each.at, each.code, each.message, each.level, each.data)
    if attempt.notified_at is not None:
        yield from _said_of_notice(attempt, attempt.notified_at, ending)


def _said_of_notice(attempt: Attempt, notified_at: float, ended_at: float) -> Iterator[Report]:
    reason = attempt.notice_reason
    yield Report(0, notified_at, "EXIT_NOTICE_SENT", f"It was told to save and go ({reason}).")
    over_at, by_itself = _notice_ends(attempt, notified_at)
    after = min(over_at, ended_at) - notified_at
    if by_itself or ended_at < over_at:
        words = f"The program answered the notice after {after:g} seconds."
        yield Report(0, notified_at + after, "EXIT_NOTICE_HEARD", words, data={"seconds": after})
    else:
        words = f"The program did not finish within {after:g} seconds of the notice."
        yield Report(0, over_at, "EXIT_NOTICE_UNHEARD", words, "warning", {"seconds": after})


def samples(world: World, attempt_id: str) -> list[Sample]:
    """All that was measured by now, at most the newest ten thousand."""
    attempt = world.attempts.get(attempt_id)
    every = attempt.launch.sample_seconds if attempt else None
    if attempt is None or every is None:
        return []
    start = opening(world, attempt).start
    if start == inf:
        return []
    end = min(world.now, _ending(world, attempt, start).finished_at, _lost_at(attempt, start))
    taken = int((end - start) // every)
    numbers = range(max(1, taken - _MOST_SAMPLES + 1), taken + 1)
    return [Sample(start + number * every, dict(attempt.script.measures)) for number in numbers]
