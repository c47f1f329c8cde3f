"""The shim: one small process beside each program, which outlives the server.

It holds the attempt's lock, starts the program at most once, frames its output, enforces what must
hold while no server is there (timeout, stop, disk), ends the whole tree and writes the exit record.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time

from trainshed.jobkit import cgroups, child, folder, frames, linux, procs, reporting, tree
from trainshed.jobkit.logwriter import LogWriter, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.jobkit.shells import Shells
    from trainshed.jobkit.training import Training

STOP, TIMEOUT, DISK, MEMORY, EXIT, NOT_STARTED = "stop", "timeout", "disk", "memory", "exit", "not_started"
GANG, LOST = "gang", "lost"
STOPPED_BEFORE = "It was stopped before it started."
GONE, STILL_THERE = "gone", "still there"
"""What an exit record says of the process tree."""
_TREE_SECONDS = 10.0
_KILL_AGAIN_SECONDS = 1.0
_GANG_GRACE = 30.0
"""The most that a program gets to end itself when another member of its gang failed (c8: 60 s in all)."""
_DRAIN_BYTES = 2 << 20
_DISK_BYTES_PER_SECOND = 400 << 20
"""How fast a program is assumed to fill its disk at most; the nearer the limit, the sooner we look."""
_DISK_SECONDS = (0.25, 15.0)
_DISK_SHARE = 20
"""Of its time the shim spends at most one part in this many on measuring the disk."""
_RECORD_TRIES = 60
_LONGEST_SECONDS = 3600.0
_CHUNK = 4096


def main(path: str, group: str, notify: str) -> None:
    """Run the attempt in ``path``; returns when it is over or is another shim's business.

    ``group`` is its version 2 control group or empty, ``notify`` the FIFO on which the engine waits.
    """
    lock = folder.acquire(path)
    if lock is None:
        return
    if folder.exists(path, folder.EXIT) or folder.has_begun(path):
        return
    if not folder.exists(path, folder.LAUNCH):
        return
    linux.set_name(b"trainshed-shim")
    linux.adopt_orphans()
    hint = f"{os.path.basename(path)}\n".encode()
    _Attempt(path, lambda: folder.poke(notify, hint)).run(group)
    os.close(lock)
    folder.poke(notify, hint)


def record_unstarted(path: folder.StrPath, ended_by: str, detail: str, tree_is: str = GONE) -> None:
    """Write the exit record, and an empty log, of an attempt that never ran. Needs the lock."""
    folder.use_reserve(path)
    folder.forget_secrets(path)
    LogWriter(os.path.join(path, folder.FRAMES), os.path.join(path, folder.INDEX), 0).close()
    record = _unstarted(ended_by, detail) | {"tree": tree_is, "usage": {}}
    _record(path, record, lambda: not os.path.isdir(path))


def _unstarted(ended_by: str, detail: str) -> folder.Json:
    return {"code": None, "signal": None, "ended_by": ended_by, "detail": detail}


def _record(path: folder.StrPath, content: folder.Json, removed: Callable[[], bool]) -> None:
    content = {**content, "finished_at": time.time()}
    for _ in range(_RECORD_TRIES):
        if removed():
            return  # released, perhaps since the last try: nobody is to wait for us then
        try:
            folder.record_exit(path, content)
        except OSError:
            time.sleep(1)  # a full disk: others may free it; without a record the attempt is lost
        else:
            return


class _Attempt:
    """One attempt from preparation to exit record, while we hold its lock."""

    def __init__(self, path: str, hint: Callable[[], object]) -> None:
        self._path = path
        self._identity = folder.identity(path)
        # Open before user code: it can remove the name, and its tree is to be ended then, too.
        self._launch_file = os.open(os.path.join(path, folder.LAUNCH), os.O_RDONLY | os.O_CLOEXEC)
        self._hint = hint
        self._control = folder.open_control(path)
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        # SIGCHLD has a handler, and the others are ignored, since the fork server.
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._streams: dict[int, Stream] = {}
        self._spec: folder.Json | None = None
        self._status: int | None = None
        self._reason = ""
        self._cpu_before = 0.0
        self._kill_at: float | None = None
        self._timeout_at = 0.0
        self._disk_at = 0.0
        self._shells: Shells | None = None
        self._training: Training | None = None
        if folder.exists(path, folder.TRAINING):
            from trainshed.jobkit.training import Training  # noqa: PLC0415 - costs memory beside user code

            self._training = Training(path, hint)

    def run(self, group: str) -> None:
        """Prepare, start, watch, end, record."""
        path = self._path
        if folder.is_stopped(path):
            self._record_unstarted(STOP, STOPPED_BEFORE)
            return
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self._streams = {out_read: Stream(out_read, frames.STDOUT), err_read: Stream(err_read, frames.STDERR)}
        waiting = child.fork(path, group, out_write, err_write, may_check=self._training is not None)
        self._main = waiting.pid
        try:
            stopped = self._wait_for_report(waiting)
            self._ready = waiting.report() if not stopped else None
        except OSError as error:
            self._abandon(waiting, NOT_STARTED, str(error))
            return
        # Asked again: from here on a stop is found in the control FIFO.
        if self._ready is None or folder.is_stopped(path):
            self._abandon(waiting, STOP, STOPPED_BEFORE)
            return
        self._main = self._ready.pid
        self._cpu_before = _children_cpu_seconds()  # what made its surroundings is not the program's
        names = (os.path.join(path, folder.FRAMES), os.path.join(path, folder.INDEX))
        self._log = LogWriter(*names, self._ready.log_bytes)
        if self._training is not None and (never := self._assemble(waiting, self._training)):
            waiting.abandon()
            self._finish(_unstarted(*never), self._end_tree())
            return
        marker = b'{"at": %.6f, "enforcement": %s}' % (time.time(), self._ready.enforcement)
        try:
            folder.create_durably(path, folder.STARTED, marker)
            folder.note_begun(path)
        except OSError as error:
            waiting.abandon()
            self._finish(_unstarted(NOT_STARTED, f"Its start cannot be recorded: {error}"), self._end_tree())
            return
        failure = waiting.execute()
        if failure:
            self._finish(_unstarted(NOT_STARTED, failure), self._end_tree())
            return
        self._hint()
        if self._training is not None:
            self._training.started(self._members, self._main)
        self._watch(self._ready)
        if self._training is not None:
            self._training.program_ended()
        tree_is = self._end_tree()
        self._finish(self._ending(), tree_is)

    def _wait_for_report(self, waiting: child.Child) -> bool:
        """Wait while the child prepares, which may be long; whether a stop came first."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(waiting.status, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._control in ready:
                _empty(self._control)
                if folder.is_stopped(self._path):
                    return True
            if waiting.status in ready:
                return False

    def _abandon(self, waiting: child.Child, ended_by: str, detail: str) -> None:
        """Record that user code never started."""
        waiting.abandon()
        tree_is = self._end_tree()
        self._group().remove(1.0)
        self._record_unstarted(ended_by, detail, tree_is)

    def _record_unstarted(self, ended_by: str, detail: str, tree_is: str = GONE) -> None:
        if self._training is not None:
            self._training.ended(_unstarted(ended_by, detail))
        record_unstarted(self._path, ended_by, detail, tree_is)

    def _assemble(self, waiting: child.Child, training: Training) -> tuple[str, str] | None:
        """Wait for the gang and for the check before training; why user code never starts, if it does not."""
        poll = select.poll()
        for fd in (self._control, self._wake, training.fd, *self._streams):
            poll.register(fd, select.POLLIN)
        for stream in self._streams.values():
            stream.masker = training.masker()
        while True:
            opening = training.opening(waiting)
            if opening is not False:
                return None if opening is True else opening
            self._reap()
            if self._status is not None:
                return NOT_STARTED, "The process that was to become the program ended while it waited."
            for fd, _ in poll.poll(self._pause_ms(training.due())):
                self._serve(fd, poll)
                if fd == self._control and folder.is_stopped(self._path):
                    return STOP, STOPPED_BEFORE
            self._flush()

    def _serve(self, fd: int, poll: select.poll) -> None:
        """Take what made a descriptor readable."""
        if fd in {self._control, self._wake}:
            _empty(fd)
        elif self._training is not None and fd == self._training.fd:
            self._training.drain()
        elif self._log.read(self._streams[fd]) == 0:
            poll.unregister(fd)
            self._close(fd)

    # While the program runs

    def _watch(self, ready: child.Ready) -> None:
        """Pump output and enforce time and disk until the main process ends."""
        poll = select.poll()
        for fd in (self._control, self._wake, *self._streams):
            poll.register(fd, select.POLLIN)
        training = self._training
        if training is not None:
            poll.register(training.fd, select.POLLIN)
        start = time.monotonic()
        self._timeout_at = start + ready.timeout
        self._disk_at = start + _DISK_SECONDS[0]
        self._reap()
        while self._status is None:
            self._keep_time(ready)
            if training is not None:
                self._attend(training, ready)
            for fd, _ in poll.poll(self._pause_ms(self._next_at())):
                self._serve(fd, poll)
                if fd == self._control:
                    self._obey(ready)
            self._flush()
            self._reap()

    def _attend(self, training: Training, ready: child.Ready) -> None:
        """End the program where its gang or its exit notice wants that."""
        wanted = training.step()
        if wanted is not None and not self._reason:
            reason, grace = wanted
            self._begin_end(reason, min(ready.grace, _GANG_GRACE) if grace is None else grace)

    def _flush(self) -> None:
        now = time.time_ns()
        for stream in self._streams.values():
            self._log.flush(stream, now)

    def _next_at(self) -> float:
        now = time.monotonic()
        due = min(self._timeout_at, self._disk_at) if not self._reason else now + _KILL_AGAIN_SECONDS
        if self._kill_at is not None:
            due = min(due, self._kill_at)
        if self._training is not None and not self._reason:
            due = min(due, self._training.due())
        return due

    def _pause_ms(self, due: float) -> int:
        now = time.monotonic()
        due = min(due, now + _LONGEST_SECONDS)
        for stream in self._streams.values():
            if stream.held:
                due = min(due, now + frames.HOLD_SECONDS)
        return max(1, int((due - now) * 1000) + 1)

    def _keep_time(self, ready: child.Ready) -> None:
        now = time.monotonic()
        if not self._reason and now >= self._timeout_at:
            self._begin_end(TIMEOUT, ready.grace)
        if not self._reason and now >= self._disk_at:
            # A program can take the FIFO away that tells of a stop; the request itself still stands.
            self._obey(ready)
            self._look_at_disk(ready)
            if self._is_removed():
                self._begin_end(LOST, 0)  # nobody can ask anything of it any more
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_tree(self._group())
            self._kill_at = now + _KILL_AGAIN_SECONDS

    def _look_at_disk(self, ready: child.Ready) -> None:
        limit = ready.storage_bytes
        begin = time.monotonic()
        places = [os.path.join(self._path, name) for name in (folder.WORK, folder.TEMPORARY)]
        if ready.layer:
            places.append(ready.layer)
        used = sum(tree.used_bytes(place, enough=limit) for place in places)
        now = time.monotonic()
        if used > limit:
            self._begin_end(DISK, 0)
            return
        least, most = _DISK_SECONDS
        pause = min(max((limit - used) / _DISK_BYTES_PER_SECOND, least), most)
        self._disk_at = now + max(pause, (now - begin) * _DISK_SHARE)

    def _obey(self, ready: child.Ready) -> None:
        request = folder.read(self._path, folder.STOP)
        if request is not None:
            grace = request.get("grace")
            self._begin_end(STOP, ready.grace if grace is None else float(grace))
        elif self._training is not None:
            self._training.hear()
        if not self._reason and folder.exists(self._path, folder.SHELLS):
            self._open_shells()

    def _open_shells(self) -> None:
        if self._shells is None:
            from trainshed.jobkit.shells import Shells  # noqa: PLC0415 - costs memory beside user code

            self._shells = Shells(self._path, self._main, self._launch, lambda: self._group().pids())
        self._shells.open()

    def _begin_end(self, reason: str, grace: float) -> None:
        """Ask the tree to end now and kill it after ``grace`` seconds; the first reason stands."""
        self._reason = self._reason or reason
        at = time.monotonic() + grace
        asked = self._kill_at is not None
        self._kill_at = at if self._kill_at is None else min(at, self._kill_at)
        if grace > 0 and not asked:
            for pid in self._members():
                procs.send(pid, signal.SIGTERM)
                procs.send(pid, signal.SIGCONT)

    def _reap(self) -> None:
        """Collect every child that ended, adopted ones included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._main:
                self._status = status
            elif self._shells is not None:
                self._shells.ended(pid)

    def _members(self) -> set[int]:
        """The processes that are the program's now."""
        helpers = set(self._ready.helpers if self._ready else ())
        if self._shells is not None:
            helpers |= self._shells.processes()
        return {*procs.descendants(os.getpid()), *self._group().pids()} - helpers

    # After the program ended

    def _launch(self) -> folder.Json:
        """What was to be run; read when it is needed, as keeping it all the time costs memory."""
        if self._spec is None:
            size = os.fstat(self._launch_file).st_size
            self._spec = json.loads(os.pread(self._launch_file, size, 0))
        return self._spec

    def _group(self) -> cgroups.Group:
        layout = cgroups.Layout.from_json(self._launch()["cgroups"])
        return cgroups.Group(layout, os.path.basename(self._path))

    @staticmethod
    def _kill_tree(group: cgroups.Group) -> None:
        group.kill()
        for pid in procs.descendants(os.getpid()):
            procs.send(pid, signal.SIGKILL)

    def _end_tree(self) -> str:
        """Kill and reap until no child and no member is left; says whether that was reached in time."""
        group = self._group()
        deadline = time.monotonic() + _TREE_SECONDS
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if not group.kill():
                    return GONE
                pid = 0
            if pid:
                continue
            if time.monotonic() >= deadline:
                return STILL_THERE
            self._kill_tree(group)
            select.select([self._wake], [], [], 0.01)
            _empty(self._wake)

    def _drain(self) -> None:
        """Take what was written and not yet read. A stranger may hold the pipe open for ever."""
        for fd, stream in list(self._streams.items()):
            taken = 0
            while taken < _DRAIN_BYTES and (count := self._log.read(stream)) > 0:
                taken += count
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._log.finish(self._streams.pop(fd))
        os.close(fd)

    def _ending(self) -> folder.Json:
        launch = self._launch()
        limits = launch["limits"]
        code = os.waitstatus_to_exitcode(self._status or 0)
        number = -code if code < 0 else None
        if number:
            code = 128 + number
        ended_by, detail = self._reason or EXIT, ""
        if kills := self._group().out_of_memory_kills():
            detail = f"The kernel killed {kills} process(es) at {limits['memory_mb']} MiB of memory."
            if not self._reason and code:
                ended_by = MEMORY
        elif self._reason == DISK or (not self._reason and number == signal.SIGXFSZ):
            ended_by = DISK
            detail = f"The work directory outgrew its {limits['storage_mb']} MiB."
        elif self._reason == TIMEOUT:
            detail = f"It ran for longer than its {launch['timeout']} seconds."
        elif self._training is not None and self._reason == GANG:
            detail = self._training.detail
        elif self._training is not None and not self._reason and self._training.noticed():
            ended_by = STOP  # it went because it was told to
        elif self._training is not None and not self._reason and code:
            detail = self._training.hide(reporting.reason(os.path.join(self._path, folder.WORK)))
        return {"code": code, "signal": number, "ended_by": ended_by, "detail": detail}

    def _finish(self, ending: folder.Json, tree_is: str) -> None:
        self._drain()
        if self._is_removed():
            ending = _unstarted(LOST, "")  # no record is left, or could be: the engine finds it lost
        else:
            folder.use_reserve(self._path)
        if self._training is not None:
            self._training.ended(ending)
        if not self._log.close():
            ending = ending | {
                "detail": f"{ending['detail']} Its log is not complete: the disk is full.".strip()
            }
        group = self._group()
        memory = group.max_memory_bytes()
        if memory is None:
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        usage = {
            "max_memory_mb": memory / cgroups.MIB,
            "cpu_seconds": _children_cpu_seconds() - self._cpu_before,
            "log_bytes": self._log.written_bytes,
            "log_file_bytes": self._log.file_bytes,
            "dropped_log_bytes": self._log.dropped_bytes,
        }
        group.remove(1.0)
        _record(self._path, ending | {"tree": tree_is, "usage": usage}, self._is_removed)

    def _is_removed(self) -> bool:
        """Whether the attempt folder is gone, or another one has its name: nothing in that is ours."""
        return self._identity is None or folder.identity(self._path) != self._identity


def _children_cpu_seconds() -> float:
    """Of all children that ended and were collected, with theirs."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def _empty(fd: int) -> None:
    try:
        while len(os.read(fd, _CHUNK)) == _CHUNK:
            pass
    except BlockingIOError:
        pass
