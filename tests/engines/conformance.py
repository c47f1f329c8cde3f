"""The conformance suite of engines: the numbered rules of ``trainshed.engines.contract``, one class.

An engine is admitted by a `Harness` that says how its programs behave as asked; see
``test_conformance.py``. Every rule is proved through the contract's own calls only.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

import pytest

from support.terminals import ending
from trainshed.engines import EndedBy, Engine, EngineError, Launch, Limits, Mount, Observation, Phase
from trainshed.jobkit import frames

LIMITS = Limits(cpus=1, memory_mb=512, storage_mb=512, shm_mb=64)
SETTLED = {Phase.EXITED, Phase.LOST}
HELLO = b"hello from the program\n"


class Behaviour(Enum):
    """What a program of this suite does."""

    SUCCEEDS = auto()
    """Writes `HELLO` to stdout, ``done`` into ``out/result.txt``, exits 0."""
    EXITS_WITH_3 = auto()
    KILLED_BY_SIGNAL_9 = auto()
    """Ends itself with SIGKILL."""
    RUNS_UNTIL_STOPPED = auto()
    IGNORES_SIGTERM = auto()
    SAVES_WHEN_TOLD = auto()
    """Runs until SIGUSR1 comes, saves for a moment, exits 0."""
    CANNOT_BE_EXECUTED = auto()
    SHOWS_ITS_INPUTS = auto()
    """Prints ``INPUTS is PATH`` and then, sorted, ``FILE: CONTENT`` for each file there; tries to write."""


class Harness(ABC):
    """How the suite drives one engine."""

    engine: Engine

    @abstractmethod
    def launch(
        self, attempt_id: str, behaviour: Behaviour, *, timeout: int = 60, grace: float = 30.0
    ) -> Launch:
        """A launch whose program behaves so."""

    @abstractmethod
    def pass_time(self) -> set[str]:
        """Let the engine get on: wait for a hint, or move its clock. Returns the hints."""

    @abstractmethod
    def reopen(self) -> None:
        """Replace ``engine`` by one that knows only what is durable, as after a restart."""

    @abstractmethod
    def lose(self, attempt_id: str) -> None:
        """Have whatever watches the attempt vanish without a trace."""

    @abstractmethod
    def starts(self, attempt_id: str) -> int:
        """How often user code of the attempt really started."""

    @abstractmethod
    def close(self) -> None:
        """End everything."""

    def observe(self, attempt_id: str) -> Observation:
        return self.engine.observe([attempt_id])[attempt_id]

    def until(self, attempt_id: str, phases: Iterable[Phase]) -> Observation:
        wanted = set(phases)
        for _ in range(400):
            observation = self.observe(attempt_id)
            if observation.phase in wanted:
                return observation
            self.pass_time()
        raise AssertionError(f"{attempt_id} is {observation}, never {wanted}")

    def running(self, attempt_id: str) -> Observation:
        """Wait until its user code really runs."""
        observation = self.until(attempt_id, {Phase.RUNNING})
        while not self.starts(attempt_id):
            self.pass_time()
        return observation

    def run(self, attempt_id: str, behaviour: Behaviour, **settings: float) -> Observation:
        self.engine.launch(self.launch(attempt_id, behaviour, **settings))  # type: ignore[arg-type]
        return self.until(attempt_id, SETTLED)


def read_frames(path: Path) -> list[tuple[int, int, bytes]]:
    """All whole frames of a log as ``(stream, flags, payload)``."""
    data, at, found = path.read_bytes(), 0, []
    while at + frames.HEADER.size <= len(data):
        length, stream, flags, zero, _ = frames.HEADER.unpack_from(data, at)
        assert zero == 0
        at += frames.HEADER.size
        found.append((stream, flags, data[at : at + length]))
        at += length
    assert at == len(data), "a torn tail"
    return found


def written(path: Path, stream: int = frames.STDOUT) -> bytes:
    """What the program wrote to one stream."""
    return b"".join(payload for kind, _, payload in read_frames(path) if kind == stream)


def dropped(path: Path) -> int:
    """How many bytes the log says are missing."""
    return sum(
        struct.unpack("<Q", payload)[0] for kind, _, payload in read_frames(path) if kind == frames.GAP
    )


class EngineConformance:
    """The rules. A subclass provides the ``harness`` fixture."""

    # Rule 1: at most once

    def test_P3_a_repeated_launch_starts_user_code_once(self, harness: Harness) -> None:
        launch = harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED)
        for _ in range(3):
            harness.engine.launch(launch)
        harness.running("attempt-1")
        harness.engine.launch(launch)
        harness.engine.stop("attempt-1", grace_seconds=0)
        harness.until("attempt-1", SETTLED)
        harness.engine.launch(launch)
        assert harness.observe("attempt-1").phase is Phase.EXITED
        assert harness.starts("attempt-1") == 1

    def test_P3_concurrent_launches_start_user_code_once(self, harness: Harness) -> None:
        launch = harness.launch("attempt-1", Behaviour.SUCCEEDS)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(harness.engine.launch, [launch] * 16))
        assert harness.until("attempt-1", SETTLED).phase is Phase.EXITED
        assert harness.starts("attempt-1") == 1

    def test_P3_a_launch_after_a_restart_starts_nothing_again(self, harness: Harness) -> None:
        launch = harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED)
        harness.engine.launch(launch)
        harness.running("attempt-1")
        harness.reopen()
        harness.engine.launch(launch)
        assert harness.observe("attempt-1").phase is Phase.RUNNING
        harness.engine.stop("attempt-1", grace_seconds=0)
        harness.until("attempt-1", SETTLED)
        harness.reopen()
        harness.engine.launch(launch)
        assert harness.observe("attempt-1").phase is Phase.EXITED
        assert harness.starts("attempt-1") == 1

    # Rule 2: the intent is durable

    def test_a_launch_that_returned_is_known_after_a_restart(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.reopen()
        assert harness.observe("attempt-1").phase in {Phase.PREPARING, Phase.RUNNING}
        harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.running("attempt-1")

    def test_launch_many_starts_all_and_reports_failures_by_id(self, harness: Harness) -> None:
        ids = [f"attempt-{number}" for number in range(12)]
        errors = harness.engine.launch_many([harness.launch(name, Behaviour.SUCCEEDS) for name in ids])
        assert errors == {}
        assert {harness.until(name, SETTLED).phase for name in ids} == {Phase.EXITED}

    # Rule 3: durable evidence

    def test_P14_a_running_attempt_is_found_again_after_a_restart(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        before = harness.running("attempt-1")
        harness.reopen()
        after = harness.observe("attempt-1")
        assert (after.phase, after.started_at) == (Phase.RUNNING, before.started_at)

    def test_an_exit_is_found_again_after_a_restart(self, harness: Harness) -> None:
        before = harness.run("attempt-1", Behaviour.EXITS_WITH_3)
        harness.reopen()
        assert harness.observe("attempt-1") == before

    def test_every_id_gets_an_answer(self, harness: Harness) -> None:
        harness.run("attempt-1", Behaviour.SUCCEEDS)
        seen = harness.engine.observe(["attempt-1", "attempt-2"])
        assert {name: observation.phase for name, observation in seen.items()} == {
            "attempt-1": Phase.EXITED,
            "attempt-2": Phase.ABSENT,
        }

    def test_changed_names_an_attempt_that_ended(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.SUCCEEDS))
        hints: set[str] = set()
        for _ in range(100):
            hints |= harness.engine.changed(0.05)
            if "attempt-1" in hints and harness.observe("attempt-1").phase is Phase.EXITED:
                break
            hints |= harness.pass_time()
        assert "attempt-1" in hints

    def test_interrupt_ends_a_wait_for_changes(self, harness: Harness) -> None:
        harness.engine.changed(0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(harness.engine.changed, 60)
            harness.engine.interrupt()
            assert waiting.result(timeout=10) == set()

    # Rule 4: unknown is absent, and safe to launch

    def test_an_absent_attempt_can_be_launched(self, harness: Harness) -> None:
        assert harness.observe("attempt-1").phase is Phase.ABSENT
        assert harness.run("attempt-1", Behaviour.SUCCEEDS).phase is Phase.EXITED

    # Rule 5: lost is lost

    def test_P3_a_started_attempt_whose_watcher_vanished_is_lost_and_never_launched_again(
        self, harness: Harness
    ) -> None:
        launch = harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED)
        harness.engine.launch(launch)
        started_at = harness.running("attempt-1").started_at
        harness.lose("attempt-1")
        lost = harness.until("attempt-1", SETTLED)
        assert (lost.phase, lost.exit, lost.started_at) == (Phase.LOST, None, started_at)
        harness.engine.launch(launch)
        assert harness.observe("attempt-1").phase is Phase.LOST
        assert harness.engine.release("attempt-1").confirmed
        harness.engine.launch(launch)
        assert harness.starts("attempt-1") == 1

    # Rule 6: stop

    def test_a_stop_is_sigterm_for_a_program_that_heeds_it(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.running("attempt-1")
        harness.engine.stop("attempt-1")
        exit_ = harness.until("attempt-1", SETTLED).exit
        assert exit_ is not None
        assert (exit_.code, exit_.signal, exit_.ended_by) == (143, 15, EndedBy.STOP)

    def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.IGNORES_SIGTERM, grace=0.2))
        harness.running("attempt-1")
        harness.engine.stop("attempt-1")
        exit_ = harness.until("attempt-1", SETTLED).exit
        assert exit_ is not None
        assert (exit_.code, exit_.signal, exit_.ended_by) == (137, 9, EndedBy.STOP)

    def test_a_second_stop_can_shorten_the_grace(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.IGNORES_SIGTERM, grace=3600))
        harness.running("attempt-1")
        harness.engine.stop("attempt-1")
        harness.engine.stop("attempt-1", grace_seconds=0)
        exit_ = harness.until("attempt-1", SETTLED).exit
        assert exit_ is not None
        assert exit_.ended_by is EndedBy.STOP

    def test_P3_a_stop_before_the_launch_means_that_it_never_starts(self, harness: Harness) -> None:
        harness.engine.stop("attempt-1")
        harness.reopen()
        harness.engine.launch(harness.launch("attempt-1", Behaviour.SUCCEEDS))
        observation = harness.until("attempt-1", SETTLED)
        assert observation.started_at is None
        assert observation.exit is not None
        assert (observation.exit.code, observation.exit.ended_by) == (None, EndedBy.STOP)
        assert harness.starts("attempt-1") == 0

    def test_a_stop_after_the_end_changes_nothing(self, harness: Harness) -> None:
        before = harness.run("attempt-1", Behaviour.EXITS_WITH_3)
        harness.engine.stop("attempt-1")
        assert harness.observe("attempt-1") == before

    def test_the_timeout_counts_from_the_start_of_user_code(self, harness: Harness) -> None:
        observation = harness.run("attempt-1", Behaviour.RUNS_UNTIL_STOPPED, timeout=1)
        assert observation.exit is not None
        assert observation.started_at is not None
        assert (observation.exit.code, observation.exit.ended_by) == (143, EndedBy.TIMEOUT)
        assert observation.exit.finished_at - observation.started_at >= 0.99

    # Rule 7: release

    def test_P6_a_release_of_a_running_attempt_ends_it(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.IGNORES_SIGTERM, grace=3600))
        harness.running("attempt-1")
        release = harness.engine.release("attempt-1")
        assert release.confirmed
        assert release.checks
        assert harness.observe("attempt-1").phase in SETTLED

    def test_P6_a_release_may_be_repeated(self, harness: Harness) -> None:
        harness.run("attempt-1", Behaviour.SUCCEEDS)
        assert harness.engine.release("attempt-1").confirmed
        harness.reopen()
        assert harness.engine.release("attempt-1").confirmed

    def test_P3_what_was_released_before_it_started_never_starts(self, harness: Harness) -> None:
        assert harness.engine.release("attempt-1").confirmed
        harness.engine.launch(harness.launch("attempt-1", Behaviour.SUCCEEDS))
        assert harness.until("attempt-1", SETTLED).started_at is None
        assert harness.starts("attempt-1") == 0

    # Rule 8: sweep

    def test_P6_a_sweep_ends_strangers_and_spares_the_known(self, harness: Harness) -> None:
        for name in ("known", "stranger"):
            harness.engine.launch(harness.launch(name, Behaviour.RUNS_UNTIL_STOPPED))
            harness.running(name)
        harness.reopen()
        assert list(harness.engine.sweep({"known"})) == ["stranger"]
        assert harness.observe("known").phase is Phase.RUNNING
        assert harness.observe("stranger").phase in SETTLED
        assert list(harness.engine.sweep({"known"})) == []

    # Rule 9: what stays for how long

    def test_outputs_stay_until_release_and_the_log_until_forget(self, harness: Harness) -> None:
        harness.run("attempt-1", Behaviour.SUCCEEDS)
        result = harness.engine.work_directory("attempt-1") / "out" / "result.txt"
        assert result.read_bytes() == b"done"
        log = harness.engine.logs("attempt-1").frames
        assert written(log) == HELLO
        assert read_frames(log)[-1][0] == frames.EOF
        harness.engine.release("attempt-1")
        assert not result.exists()
        assert written(harness.engine.logs("attempt-1").frames) == HELLO
        harness.engine.forget("attempt-1")
        assert not log.exists()
        harness.engine.forget("attempt-1")

    def test_a_held_attempt_cannot_be_forgotten(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.running("attempt-1")
        with pytest.raises(EngineError, match="not released") as refusal:
            harness.engine.forget("attempt-1")
        assert refusal.value.retryable
        assert harness.observe("attempt-1").phase is Phase.RUNNING

    # Rule 10: raw exit codes

    @pytest.mark.parametrize(
        ("behaviour", "code", "signal"),
        [
            (Behaviour.SUCCEEDS, 0, None),
            (Behaviour.EXITS_WITH_3, 3, None),
            (Behaviour.KILLED_BY_SIGNAL_9, 137, 9),
        ],
    )
    def test_exit_codes_are_raw(
        self, harness: Harness, behaviour: Behaviour, code: int, signal: int | None
    ) -> None:
        observation = harness.run("attempt-1", behaviour)
        assert observation.phase is Phase.EXITED
        assert observation.exit is not None
        assert (observation.exit.code, observation.exit.signal) == (code, signal)
        assert observation.exit.ended_by is EndedBy.EXIT
        assert observation.started_at is not None

    def test_a_program_that_cannot_be_executed_did_not_start(self, harness: Harness) -> None:
        observation = harness.run("attempt-1", Behaviour.CANNOT_BE_EXECUTED)
        assert observation.started_at is None
        assert observation.exit is not None
        assert (observation.exit.code, observation.exit.ended_by) == (None, EndedBy.NOT_STARTED)
        assert "no-such-program" in observation.exit.detail

    # Rule 10: force

    def test_P6_a_kill_settles_a_running_attempt_and_keeps_its_outputs(self, harness: Harness) -> None:
        harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.running("attempt-1")
        harness.engine.kill("attempt-1")
        assert harness.until("attempt-1", SETTLED).phase in {Phase.EXITED, Phase.LOST}
        assert harness.engine.work_directory("attempt-1").is_dir()
        assert harness.engine.release("attempt-1").confirmed

    # Rule 12: mounts

    def test_C13_mounts_show_their_sources_and_are_gone_after_the_release(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        (source / "deep").mkdir(parents=True)
        (source / "a.txt").write_text("one")
        (source / "deep" / "b.txt").write_text("two")
        note = tmp_path / "note.json"
        note.write_text("{}")
        before = [(place.stat().st_ino, place.stat().st_mtime_ns) for place in sorted(source.rglob("*"))]
        launch = replace(
            harness.launch("attempt-1", Behaviour.SHOWS_ITS_INPUTS),
            mounts=(Mount(source, "inputs/data"), Mount(note, "inputs/note.json"), Mount(note, "other")),
            paths={"INPUTS": "inputs"},
        )
        harness.engine.launch(launch)
        observation = harness.until("attempt-1", SETTLED)
        assert observation.exit is not None
        assert observation.exit.code == 0
        where, *lines = written(harness.engine.logs("attempt-1").frames).decode().splitlines()
        assert sorted(lines) == ["data/a.txt: one", "data/deep/b.txt: two", "note.json: {}"]
        after = [(place.stat().st_ino, place.stat().st_mtime_ns) for place in sorted(source.rglob("*"))]
        assert after == before
        assert harness.engine.release("attempt-1").confirmed
        assert not Path(where.removeprefix("INPUTS is ")).exists()
        assert (source / "deep" / "b.txt").read_text() == "two"

    def test_C13_mounts_are_found_by_a_launch_that_is_repeated_after_a_restart(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        source.mkdir()
        (source / "a.txt").write_text("one")
        launch = replace(
            harness.launch("attempt-1", Behaviour.SHOWS_ITS_INPUTS),
            mounts=(Mount(source, "data"),),
            paths={"INPUTS": "data"},
        )
        harness.engine.launch(launch)
        harness.reopen()
        harness.engine.launch(launch)
        harness.until("attempt-1", SETTLED)
        assert written(harness.engine.logs("attempt-1").frames).endswith(b"\na.txt: one\n")

    # Rule 20: shells

    def test_C50_a_shell_beside_a_program_tells_its_exit_code_and_changes_nothing_of_the_attempt(
        self, harness: Harness
    ) -> None:
        engine = harness.engine
        with pytest.raises(EngineError) as caught:
            engine.open_shell("attempt-1", rows=24, columns=80)
        if engine.shells() is not None:
            assert caught.value.code == "NOT_SUPPORTED_BY_ENGINE"
            return
        assert caught.value.code == "SHELL_UNAVAILABLE"
        engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.running("attempt-1")
        for code in (7, 0):
            shell = engine.open_shell("attempt-1", rows=24, columns=80)
            os.write(shell.terminal, b"exit %d\n" % code)
            assert ending(shell) == code
            shell.close()
        shell.close()
        assert harness.observe("attempt-1").phase is Phase.RUNNING
        engine.stop("attempt-1", grace_seconds=0)
        exit_ = harness.until("attempt-1", SETTLED).exit
        assert exit_ is not None
        assert exit_.ended_by is EndedBy.STOP
        with pytest.raises(EngineError, match="does not run"):
            engine.open_shell("attempt-1", rows=24, columns=80)

    def test_P6_a_shell_that_is_open_ends_with_its_attempt(self, harness: Harness) -> None:
        engine = harness.engine
        if engine.shells() is not None:
            assert "Ray" in str(engine.shells())
            return
        engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
        harness.running("attempt-1")
        shell = engine.open_shell("attempt-1", rows=24, columns=80)
        assert engine.release("attempt-1").confirmed
        assert ending(shell) is None
        shell.close()
