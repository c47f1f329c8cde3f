"""Work in a child process, with which the memory that it takes goes."""

from __future__ import annotations

import os
import signal
import sys
import threading

from trainshed.jobkit import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def run_apart(work: Callable[[], object]) -> bool:
    """Run ``work`` in a child of this process and wait for its end; whether there was one at all.

    What ``work`` answers or raises is not told: whoever calls this looks at what it should have done. Nothing
    is run where forking is not safe, which is beside other threads and where this is not Linux.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    try:
        child = os.fork()
    except OSError:
        return False
    if not child:
        try:
            # Where this process is killed, neither the work nor a lock of this process's goes on.
            linux.die_with_parent(signal.SIGKILL)
            os.closerange(3, 1 << 16)
            work()
        finally:
            os._exit(0)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass  # it ended, and who ignores SIGCHLD is told no more
    return True
