"""Work in a child process: done when the call returns, whatever became of it; nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainshed.jobkit.apart import run_apart

PROGRAM = """
import os, sys
from pathlib import Path
from trainshed.jobkit.apart import run_apart

def work():
    import decimal
    number = lock.fileno()
    held = Path(f"/proc/self/fd/{number}").exists()
    Path(sys.argv[1]).write_text(f"{os.getppid() == parent} {held}")
    raise ValueError("told to nobody")

parent = os.getpid()
lock = open(sys.argv[2], "w")
print(run_apart(work), "decimal" in sys.modules, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere forking is not safe")
@pytest.mark.parametrize("handling", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_work_is_done_by_a_child_that_holds_nothing_and_leaves_nothing(tmp_path: Path, handling):
    said, lock = tmp_path / "said", tmp_path / "lock"
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(said), str(lock)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, handling),
    )
    assert (ran.stdout, ran.stderr) == ("True False\n", "")
    assert said.read_text() == "True False"


def test_beside_other_threads_nothing_is_forked():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        before = os.getpid()
        assert not run_apart(lambda: pytest.fail("it was run"))
        assert os.getpid() == before
    finally:
        done.set()
        thread.join()
