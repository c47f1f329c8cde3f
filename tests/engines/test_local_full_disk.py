"""A disk that fills up costs output, which is flagged; never the end of an attempt, never its truth."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.conformance import SETTLED, dropped, read_frames, written
from engines.machinery import LocalHarness
from trainshed.engines import EndedBy, EngineError, Phase
from trainshed.jobkit import frames

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LocalHarness]:
    """An engine whose disk has four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        harness = LocalHarness(disk)
        yield harness
        harness.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_P8_output_that_no_longer_fits_is_counted_and_the_end_is_recorded(small: LocalHarness) -> None:
    code = "for n in range(80000): print(f'line {n:095}')\n"
    small.engine.launch(small.python("attempt-1", code))
    observation = small.until("attempt-1", SETTLED)
    total = 80_000 * 101
    log = small.engine.logs("attempt-1").frames
    assert observation.phase is Phase.EXITED
    assert (observation.exit.code, observation.exit.ended_by) == (0, EndedBy.EXIT)
    assert written(log).startswith(f"line {0:095}\nline {1:095}\n".encode())
    assert observation.exit.usage["dropped_log_bytes"] == total - len(written(log)) > 0
    assert dropped(log) == total - len(written(log))
    assert read_frames(log)[-1][0] == frames.EOF
    assert small.engine.release("attempt-1").confirmed


def test_a_program_that_fills_the_disk_gets_the_error_itself(small: LocalHarness) -> None:
    code = (
        "import time\n"
        "try: open('big', 'wb').write(b'x' * (8 << 20))\n"
        "except OSError as error: print(error.strerror, flush=True); raise SystemExit(9)\n"
    )
    small.engine.launch(small.python("attempt-1", code))
    observation = small.until("attempt-1", SETTLED)
    assert observation.exit.code == 9
    assert small.engine.release("attempt-1").confirmed


def test_a_launch_that_cannot_be_recorded_is_refused_and_can_be_repeated(small: LocalHarness) -> None:
    filler = small.path / "filler"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(b"x" * (8 << 20))
    launch = small.shell("attempt-1", "true")
    with pytest.raises(EngineError) as refusal:
        small.engine.launch(launch)
    assert (refusal.value.code, refusal.value.retryable) == ("ENGINE_DISK", True)
    assert small.observe("attempt-1").phase is Phase.ABSENT
    filler.unlink()
    small.engine.launch(launch)
    assert small.until("attempt-1", SETTLED).exit.code == 0
