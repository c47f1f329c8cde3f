"""One Attempt from begin to end.

Whatever happens, there is an exit record, and an exit status that tells whose fault it was.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time

from trainshed.jobkit.gpu_runner import device, environments, hub, jobs, program, resume, say, store, sync
from trainshed.jobkit.gpu_runner.output import Relay

LIB = "lib"
"""The folder beside this module in which `gpu` is found."""
LOCK, REQUEST, EXIT, DATA = "lock", "checkpoint_requested", "exit.json", "data"
_STOPPED = 143
"""SIGTERM before there was a program to pass it on to."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.jobkit.gpu_runner.environments import Environment
    from trainshed.jobkit.gpu_runner.jobs import Job, Place


def run(work: str) -> int:
    """Run the Job in a work folder; the exit status, as in its exit record."""
    stop = program.Stop()
    course = _Course(jobs.place(work, os.environ), stop)
    try:
        course.run()
    except environments.Stopped:
        course.code = _STOPPED
    except jobs.Broken as problem:
        course.fail(str(problem))
    except Exception as problem:  # noqa: BLE001 - whatever it was, the record must say it
        course.stage = "internal"
        course.fail(f"the runner failed: {type(problem).__name__}: {problem}")
    return course.leave()


class _Course:
    """What an exit record is made of, as it becomes known."""

    def __init__(self, place: Place, stop: program.Stop) -> None:
        self._place = place
        self._stop = stop
        self._began = time.time()
        self._script_began: float | None = None
        self._script_ended: float | None = None
        self._stopped = False
        self._checkpoint: int | None = None
        self._foreign = False
        """The folder is another runner's, and so is the exit record in it."""
        self.stage = "start"
        self.code = jobs.ENVIRONMENT_FAILED
        self.signal: int | None = None
        self.message = ""

    def fail(self, message: str) -> None:
        """Nobody's program is to blame."""
        self.code, self.message = jobs.ENVIRONMENT_FAILED, message
        if self._stop.asked and self.stage != "internal":
            self.code = _STOPPED  # it failed because it was told to
        say.note(message)

    def run(self) -> None:
        """All of it."""
        place = self._place
        for folder in (place.state(""), place.outputs, place.data, place.checkpoints):
            os.makedirs(folder, exist_ok=True)
        self._hold()
        about: dict[str, object] = {"protocol": 1, "job": place.job, "attempt": place.attempt}
        say.wire("hello", {**about, "python": platform.python_version()})
        say.wire("device", device.find())
        job = jobs.read(place.work)
        cwd = os.path.join(place.code, job.workdir)
        if not os.path.isdir(cwd):
            raise jobs.Broken(f"entrypoint.workdir: there is no folder {job.workdir!r} in the shipped tree")
        self._enter("resume")
        resumed = resume.restore(place)
        self._enter("data")
        if job.data:
            place = self._place = _with_room_for_data(place)
        for mount, uri in job.data:
            hub.fetch(
                uri,
                os.path.join(place.data, mount),
                place.hub_token,
                lambda: bool(self._stop.asked),
                token_for=place.hub_token_for,
            )
        self._enter("install")
        environment = environments.prepare(place, job.deps, self._stop)
        self._enter("script")
        self._run(job, environment, cwd, resumed)

    def _hold(self) -> None:
        """Be known to live, for as long as we do."""
        lock = os.open(self._place.state(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._foreign = True
            raise jobs.Broken("another runner works in this folder") from None
        os.ftruncate(lock, 0)
        os.write(lock, b"%d\n" % os.getpid())

    def _enter(self, stage: str) -> None:
        if self._stop.asked:
            raise environments.Stopped
        self.stage = stage

    def _run(self, job: Job, environment: Environment, cwd: str, resumed: dict[str, Any] | None) -> None:
        place = self._place
        kept = store.Store(place.store, place.job, place.attempt)
        interval = job.interval if place.interval is None else place.interval
        watch = sync.Sync(kept, place.checkpoints, place.state(REQUEST), interval)
        relay = Relay(heard=watch.heard)
        env = _variables(place, environment, cwd, resumed=resumed is not None)
        argv = [environment.python, job.script, *job.args] if job.script else [*job.command, *job.args]
        self._script_began = time.time()
        try:
            ended = program.run(
                [_resolved(argv[0], env), *argv[1:]],
                cwd=cwd,
                env=env,
                relay=relay,
                stop=self._stop,
                grace=place.grace,
                started=watch.start,
            )
        except program.CannotStart as problem:
            self.code, self.message = problem.code, str(problem)
            say.note(self.message)
            return
        self._script_ended = ended.at
        self._stopped = self._stop.at is not None and self._stop.at <= ended.at
        self.code, self.signal = ended.code, ended.signal
        watch.end(ended, stopped=self._stopped)
        self._checkpoint = watch.stored.n if watch.stored else None

    def leave(self) -> int:
        """Write the exit record."""
        if self._script_ended is None:
            self._stopped = bool(self._stop.asked)
        seconds = None
        if self._script_began is not None and self._script_ended is not None:
            seconds = round(self._script_ended - self._script_began, 3)
        record: dict[str, object] = {
            "code": self.code,
            "signal": self.signal,
            "stage": self.stage,
            "stopped": self._stopped,
            "message": self.message,
            "script_seconds": seconds,
            "checkpoint": self._checkpoint,
        }
        if not self._foreign:
            self._write({"version": 1, **record, "started_at": self._began, "finished_at": time.time()})
        say.wire("exit", record)
        return self.code

    def _write(self, record: dict[str, object]) -> None:
        path = self._place.state(EXIT)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".part", "w", encoding="utf-8") as file:
                json.dump(record, file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(path + ".part", path)
        except OSError as problem:
            say.note(f"the exit record could not be written: {problem}")


def _with_room_for_data(place: Place) -> Place:
    """A data folder that can be added to: where the given one cannot, our own with links to what is there."""
    if os.access(place.data, os.W_OK):
        return place
    own = place.state(DATA)
    os.makedirs(own, exist_ok=True)
    for name in os.listdir(place.data):
        if not os.path.lexists(os.path.join(own, name)):
            os.symlink(os.path.join(place.data, name), os.path.join(own, name))
    return place._replace(data=own)


def _variables(place: Place, environment: Environment, cwd: str, *, resumed: bool) -> dict[str, str]:
    """The environment of the program.

    Importable, in this order: what lies beside the script (Python sees to that), in ``project_dir``, in the
    top of the shipped tree, each also in ``src/`` there, and last the module `gpu`.
    """
    env = {name: value for name, value in os.environ.items() if name not in jobs.HIDDEN}
    tops = dict.fromkeys([cwd, place.code])
    sources = [folder for top in tops for folder in (top, os.path.join(top, "src")) if os.path.isdir(folder)]
    lib = os.path.join(os.path.dirname(os.path.abspath(__file__)), LIB)
    given = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    path = [*environment.folders, *env.get("PATH", os.defpath).split(os.pathsep)]
    env.update(environment.variables)
    env.update(
        PATH=os.pathsep.join(path),
        PYTHONPATH=os.pathsep.join([*given, *sources, lib]),
        PYTHONUNBUFFERED="1",
        GPU_OUTPUT_DIR=place.outputs,
        GPU_DATA_DIR=place.data,
        GPU_CHECKPOINT_DIR=place.checkpoints,
        TRAINSHED_PROTOCOL="1",
        TRAINSHED_ATTEMPT=str(place.attempt),
        TRAINSHED_JOB_ID=place.job or "local",
    )
    env["TRAINSHED_CHECKPOINT_REQUEST"] = place.state(REQUEST)
    if resumed:
        env["GPU_RESUME_DIR"] = os.path.join(place.work, resume.FOLDER)
    return env


def _resolved(name: str, env: dict[str, str]) -> str:
    """A program found by the PATH that it will have, not by ours."""
    if "/" in name:
        return name
    for folder in env["PATH"].split(os.pathsep):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return name
