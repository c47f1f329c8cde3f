"""A shim that is killed while podman makes its container, at moments that a real race rarely meets."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.conformance import SETTLED, Behaviour
from engines.containers import ImageGround, ImageHarness, image_way
from support.leftovers import processes_of
from support.processes import all_pids, command_of
from support.waiting import wait_until
from trainshed.engines import EndedBy, Phase

_RUNTIME = """#!/bin/bash
# Stands before {real}: the first `create` after {place}/armed exists meets what a test scripts.
pidfile=""
for word in "$@"; do
  [ "$before" = --pid-file ] && pidfile=$word
  before=$word
done
if [[ " $* " = *" create "* ]] && mv {place}/armed {place}/met 2>/dev/null; then
  {fault}
fi
exec {real} "$@"
"""
_COMES_LATE = ": > PLACE/begun; while [ ! -e PLACE/go ]; do sleep 0.05; done"
"""A runtime that nobody killed, and that goes on when the next launch has begun, or is over."""
_DIES_WRITING = f': > "${{pidfile%/*}}/.${{pidfile##*/}}"; {_COMES_LATE}; exit 137'
"""What is left of a runtime that was killed between making its file and giving it its name."""
_REFUSES_LATER = f"""
  if [ -e PLACE/begun ]; then : > PLACE/refused; echo refused by the test >&2; exit 1; fi
  {_COMES_LATE}
"""
"""The first is killed with its shim, the second fails."""

Faulty = Callable[[str], ImageHarness]


@pytest.fixture
def faulty(tmp_path: Path, image_ground: ImageGround, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    """Makes an engine whose podman uses such a runtime."""
    ways: list[Iterator[ImageHarness]] = []
    place = tmp_path / "runtime"
    place.mkdir()

    def make(fault: str) -> ImageHarness:
        real = shutil.which("runc") or shutil.which("crun")
        assert real, "run scripts/install-containers"
        program = place / Path(real).name
        quoted = shlex.quote(str(place))
        program.write_text(_RUNTIME.format(real=real, place=quoted, fault=fault.replace("PLACE", quoted)))
        program.chmod(0o755)
        monkeypatch.setattr("trainshed.engines.local.containers.oci_runtimes", lambda: [str(program)])
        ways.append(image_way(tmp_path, image_ground))
        harness = next(ways[-1])
        assert harness.engine.images() is None
        return harness

    yield make
    (place / "go").touch()
    for way in ways:
        next(way, None)


def _lost_while_made(harness: ImageHarness) -> None:
    """Launch, and kill the shim when the runtime has met what is scripted; nothing has started."""
    place = harness.path / "runtime"
    (place / "armed").touch()
    harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    wait_until((place / "begun").exists)
    harness.lose("attempt-1")
    assert harness.observe("attempt-1").phase is Phase.PREPARING
    harness.reopen()


def _released(harness: ImageHarness) -> None:
    """Assert that it started once, and that its release is proved and leaves nothing."""
    assert harness.engine.release("attempt-1").confirmed
    assert harness.starts("attempt-1") == 1
    assert harness.containers() == []
    wait_until(lambda: not _of(harness), what="the end of everything of the first try")


def _of(harness: ImageHarness) -> list[str]:
    """Monitors, runtimes and programs of containers of this engine."""
    own = [command for command in processes_of(harness.root) if "conmon" in command]
    scripted = str(harness.path / "runtime")
    return own + [command_of(pid) for pid in all_pids() if scripted in command_of(pid)]


def test_P3_a_file_that_a_killed_runtime_left_half_made_is_in_nobodys_way(faulty: Faulty) -> None:
    harness = faulty(_DIES_WRITING)
    _lost_while_made(harness)
    (harness.path / "runtime" / "go").touch()
    wait_until(lambda: not _of(harness), what="the end of the runtime")
    harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    harness.running("attempt-1")
    _released(harness)


@pytest.mark.parametrize("late", ["while the next runs", "at the release"])
def test_P3_a_runtime_that_outlives_its_shim_changes_nothing_for_the_next_launch(
    faulty: Faulty, late: str
) -> None:
    harness = faulty(_COMES_LATE)
    _lost_while_made(harness)
    harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    harness.running("attempt-1")
    go = harness.path / "runtime" / "go"
    if late == "while the next runs":
        go.touch()
        wait_until(lambda: not [each for each in _of(harness) if "create" in each], what="its end")
        assert harness.observe("attempt-1").phase is Phase.RUNNING
    _released(harness)


def test_P3_a_failure_that_what_is_left_of_a_killed_shim_may_cause_is_tried_again(faulty: Faulty) -> None:
    """As when podman waits in vain for the end of a container that another podman has noticed."""
    harness = faulty(_REFUSES_LATER)
    _lost_while_made(harness)
    place = harness.path / "runtime"
    (place / "go").touch()
    (place / "armed").touch()
    harness.engine.launch(harness.launch("attempt-1", Behaviour.RUNS_UNTIL_STOPPED))
    harness.running("attempt-1")
    assert (place / "refused").exists()
    _released(harness)


def test_a_container_that_cannot_be_made_is_said_at_once_where_no_shim_was_killed(faulty: Faulty) -> None:
    harness = faulty(_REFUSES_LATER)
    (harness.path / "runtime" / "begun").touch()
    (harness.path / "runtime" / "armed").touch()
    harness.engine.launch(harness.launch("attempt-1", Behaviour.SUCCEEDS))
    observation = harness.until("attempt-1", SETTLED)
    assert observation.exit is not None
    assert observation.exit.ended_by is EndedBy.NOT_STARTED
    assert "refused by the test" in observation.exit.detail
    assert harness.engine.release("attempt-1").confirmed
