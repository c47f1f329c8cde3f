"""The child of a shim: it prepares itself, waits to be let go, and becomes the program.

All preparation happens here rather than in the shim, because what it costs in memory then ends with
``exec``. The child gets ready, reports, and waits for one byte before it executes anything. In that
pause the shim writes the start marker: whatever goes wrong before it certainly ran no user code.
"""

from __future__ import annotations

import json
import marshal
import os
import resource
import signal

from trainshed.jobkit import (
    cgroups,
    container,
    folder,
    linux,
    mounts,
    neighbours,
    procs,
    sandbox,
    seccomp,
    tree,
    volumes,
)

_GO, _CHECK = b"g", b"c"
_DEFAULT_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGCHLD,
    # Python ignores these two, and ignoring is inherited by programs that do not expect it.
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
_MESSAGE_BYTES = 1 << 16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    Report = tuple[float, float, int, int, bytes, str, tuple[int, ...]]


class Ready:
    """What the shim needs to know of the launch while the program runs."""

    __slots__ = ("enforcement", "grace", "helpers", "layer", "log_bytes", "pid", "storage_bytes", "timeout")

    def __init__(
        self,
        pid: int,
        timeout: float,
        grace: float,
        storage_bytes: int,
        log_bytes: int,
        enforcement: bytes,
        layer: str,
        helpers: tuple[int, ...],
    ) -> None:
        self.pid = pid
        """The process that becomes the program: the forked child, or one that it forked in namespaces."""
        self.timeout = timeout
        self.grace = grace
        self.storage_bytes = storage_bytes
        self.log_bytes = log_bytes
        self.enforcement = enforcement
        """How each limit is enforced, as JSON text."""
        self.layer = layer
        """Where on the disk lies what the program changes in an image's files, or empty."""
        self.helpers = helpers
        """Processes of its container that are none of the program's: a stop is not for them."""


class Child:
    """A forked child that gets ready and waits to be let go."""

    __slots__ = ("_findings", "_go", "pid", "status")

    def __init__(self, pid: int, status: int, go: int, findings: int) -> None:
        self.pid = pid
        self.status = status
        """Readable once the child has reported."""
        self._go = go
        self._findings = findings

    def report(self) -> Ready:
        """Wait for the report. Raises `OSError` with the reason if the child could not get ready."""
        message = os.read(self.status, _MESSAGE_BYTES)
        try:
            ready = Ready(*marshal.loads(message))  # noqa: S302 - from our own child, which runs our code
        except (ValueError, EOFError, TypeError):
            reason = message.decode(errors="replace") or "the process ended while it was being set up"
            raise OSError(reason) from None
        if ready.pid != self.pid:
            os.waitpid(self.pid, 0)  # it made way; what it no longer is counts against no limit
            self.pid = ready.pid
        return ready

    def check(self) -> int:
        """Have the check before training run; what it finds comes out of the descriptor until it is over."""
        findings, self._findings = self._findings, -1
        try:
            os.write(self._go, _CHECK)
        except BrokenPipeError:
            pass  # it is gone, and the check is over at once
        return findings

    def execute(self) -> str:
        """Let the child execute the program; returns why it could not, or nothing."""
        try:
            os.write(self._go, _GO)
        except BrokenPipeError:
            pass  # it is gone; its status says how
        message = os.read(self.status, _MESSAGE_BYTES)
        self.abandon()
        return message.decode(errors="replace")

    def abandon(self) -> None:
        """Close our ends: a child that still waits ends without executing anything."""
        os.close(self._go)
        os.close(self.status)
        if self._findings >= 0:
            os.close(self._findings)


def fork(path: str, group: str, stdout: int, stderr: int, *, may_check: bool = False) -> Child:
    """Fork a child that gets ready to become the program of the attempt folder ``path``.

    ``group`` is the attempt's version 2 control group, or empty. Both output pipes are taken over.
    ``may_check``: it can be asked to `Child.check` before it is let go.
    """
    findings_read, findings_write = os.pipe() if may_check else (-1, -1)
    status_read, status_write = os.pipe()
    go_read, go_write = os.pipe()
    parent = os.getpid()
    pid = _fork(group)
    if pid:
        for fd in (status_write, go_read, stdout, stderr, findings_write):
            if fd >= 0:
                os.close(fd)
        return Child(pid, status_read, go_write, findings_read)
    os.close(go_write)
    return _become(path, parent, (status_write, go_read, findings_write), (stdout, stderr))


def _become(path: str, shim: int, pipes: tuple[int, int, int], output: tuple[int, int]) -> NoReturn:
    """In the child: get ready, report, and become the program when that is wanted."""
    status_write, go_read, findings_write = pipes
    step = "be prepared"
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(127)
        launch = folder.read(path, folder.LAUNCH) or {}
        check = _check_of(launch)
        report = _prepare(path, launch, *output)
        apart = bool(launch.get("sandbox") or launch.get("container"))
        program = linux.fork_sibling() if apart else os.getpid()
        if program:
            os.write(status_write, marshal.dumps((program, *report)))
            if apart:
                os._exit(0)
        else:
            linux.die_with_parent(signal.SIGKILL)
            os.setsid()
        word = os.read(go_read, 1)
        if word == _CHECK:
            if check is not None:
                check(findings_write)
            os.close(findings_write)
            word = os.read(go_read, 1)
        if word == _GO:
            argv = launch["argv"]
            step = f"execute {argv[0]!r}"
            if launch.get("container"):
                seccomp.forbid()
            os.execvpe(argv[0], argv, launch["env"])  # noqa: S606 - argv is what was asked to run
    except BaseException as error:  # noqa: BLE001 - nothing may return into the shim's code
        reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        name = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
        words = f"It cannot {step}: {reason}{name}."
        if reason.startswith(neighbours.UNAVAILABLE):
            words = f"{reason}."
        os.write(status_write, words.encode()[:_MESSAGE_BYTES])
    finally:
        os._exit(127)


def _check_of(launch: folder.Json) -> Callable[[int], None] | None:
    """What runs the check before training; made before we are where our own files are not."""
    if not launch.get("precheck"):
        return None
    from trainshed.jobkit import checking  # noqa: PLC0415 - most programs have none

    text = checking.source()
    return lambda output: checking.run(text, launch, output)


def _fork(group: str) -> int:
    if group:
        try:
            os.makedirs(group, exist_ok=True)
            fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return linux.fork_into(fd)
            finally:
                os.close(fd)
        except OSError:
            pass  # an older kernel or a sandbox: the child moves by itself
    return os.fork()


def _prepare(path: str, launch: folder.Json, stdout: int, stderr: int) -> Report:
    """Everything between ``fork`` and ``exec``; returns what is to be reported."""
    os.setsid()
    for number in _DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    folder.reserve(path)
    work = os.path.join(path, folder.WORK)
    _make_folders(path, work, launch)
    hidden = folder.read(path, folder.SECRETS) or {}
    logins = launch.get("logins")
    if logins and logins["reason"]:
        raise neighbours.unavailable(logins["reason"])
    limits = launch["limits"]
    box, image = launch.get("sandbox"), launch.get("container")
    keeper = make_container(path, image, launch["attempt_id"]) if image else None
    group = cgroups.Group(cgroups.Layout.from_json(launch["cgroups"]), launch["attempt_id"])
    pids = limits["pids"] + (container.PROCESSES if image else sandbox.PROCESSES if box else 0)
    # The runtime's own programs need more memory than some Trials; they are gone by now.
    enforcement = group.create(memory_mb=limits["memory_mb"], pids=pids, cpus=limits["cpus"])
    if keeper:
        group.adopt(keeper.helpers)
    group.enter()
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    view = mounts.MOUNT
    sshd: tuple[int, ...] = ()
    if keeper and image:
        enter_container(keeper, image["user"])
        launch["env"] = keeper.environment | launch["env"]
        private = True
    elif box:
        enter_sandbox(path, box, limits["shm_mb"], launch["env"])
        private = True
    else:
        view = _own_view(path, launch, hidden.get("keys", {}))
        private = view == mounts.MOUNT
        if logins:
            sshd = (_start_sshd(path, logins, launch["env"]),)
        linux.forbid_new_privileges()
        os.chdir(work)
    launch["env"] |= hidden.get("env", {})
    if launch.get("precheck"):
        launch["precheck"]["env"] |= hidden.get("check", {})
    enforcement["shm"] = "mount" if private else cgroups.NOT_ENFORCED
    enforcement["mounts"] = view
    enforcement |= {"storage": "watched", "log": "shim", "tree": launch["killing"]}
    enforcement["isolation"] = container.NAME if keeper else sandbox.NAME if box else sandbox.NONE
    storage = limits["storage_mb"] * cgroups.MIB
    lower_limits(limits)
    return (
        launch["timeout"],
        launch["grace"],
        storage,
        limits["log_bytes"],
        json.dumps(enforcement).encode(),
        keeper.layer if keeper else "",
        tuple(keeper.helpers) if keeper else sshd,
    )


def _make_folders(path: str, work: str, launch: folder.Json) -> None:
    tree.fill(work, launch["files"])
    if launch.get("notice"):
        tree.fill(os.path.join(path, folder.TEMPORARY), [])
    if launch.get("staged"):
        volumes.stage(path, launch["staged"])


def _start_sshd(path: str, logins: folder.Json, env: dict[str, str]) -> int:
    from trainshed.jobkit import logins as servers  # noqa: PLC0415 - most programs have none

    return servers.start_sshd(path, logins, env)


def make_container(path: str, image: folder.Json, attempt_id: str) -> container.Keeper:
    """Have a container made for the attempt folder ``path``, whose work directory is filled."""
    temporary = os.path.join(path, folder.TEMPORARY)
    tree.fill(temporary, [])
    os.chmod(temporary, 0o1777)  # noqa: S103 - inside it is /tmp, outside nobody can walk here
    if image["user"] is not None:
        tree.give(temporary, image["user"])
        tree.give(os.path.join(path, folder.WORK), image["user"])
    return container.start(path, image, attempt_id)


def enter_container(keeper: container.Keeper, user: int | None) -> None:
    """Move this process into a container that was made for it."""
    if user is not None:
        for stream in (1, 2):
            os.fchown(stream, user, user)  # or /dev/stdout and /dev/stderr could not be opened
    container.enter(keeper, user)


def enter_sandbox(path: str, box: folder.Json, shm_mb: int, env: dict[str, str]) -> None:
    """Move this process into a sandbox around the attempt folder ``path``, whose work directory is filled."""
    temporary = os.path.join(path, folder.TEMPORARY)
    tree.fill(temporary, [])
    user = box["user"]
    if user is not None:
        tree.give(temporary, user)
        tree.give(os.path.join(path, folder.WORK), user)
        for stream in (1, 2):
            os.fchown(stream, user, user)  # or /dev/stdout and /dev/stderr could not be opened
    marks = {name: env[name] for name in (procs.ATTEMPT_VARIABLE, procs.INSTANCE_VARIABLE) if name in env}
    sandbox.enter(path, box, shm_mb * cgroups.MIB, marks)


def _own_view(path: str, launch: folder.Json, keys: dict[str, str]) -> str:
    """Give this process its own shared memory and the mounts of its launch; says how they are kept from it.

    Where a namespace cannot be had, shared memory is the machine's and the mounts are links.
    """
    entries = launch.get("mounts", [])
    own = launch["private_shm"] and _private_shared_memory(launch["limits"]["shm_mb"])
    if own and launch.get("neighbours"):
        neighbours.show(path, launch.get("logins"), keys)
    if entries and own:
        mounts.bind(path, entries)
        if any(name for _, _, name, _ in launch.get("staged", [])):
            volumes.unstage(path)
    elif entries:
        mounts.link(path, entries)
    return mounts.MOUNT if own else mounts.LINKS


def _private_shared_memory(size_mb: int) -> bool:
    try:
        linux.own_mounts()
        linux.private_shared_memory(size_mb * cgroups.MIB)
    except OSError:
        return False
    return True


def lower_limits(limits: folder.Json) -> None:
    """Lower what this process may use to the limits of a launch that the kernel keeps for each process."""
    # Files in shared memory count for this limit too, and may be larger.
    _lower(resource.RLIMIT_FSIZE, max(limits["storage_mb"], limits["shm_mb"]) * cgroups.MIB)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(limit: int, value: int) -> None:
    """Lower both limits: raising a hard one takes a capability that even root may lack."""
    hard = resource.getrlimit(limit)[1]
    if hard == resource.RLIM_INFINITY or value < hard:
        resource.setrlimit(limit, (value, value))
