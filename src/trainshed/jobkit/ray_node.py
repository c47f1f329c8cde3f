"""One node of a Ray cluster of a task's own: how it is started, where its files lie, what its logs say.

Runs in the program's place beside user code, with the Python that has Ray. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time

from trainshed.jobkit import linux, ray_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.ray_wire import Json

SHARED = "/tmp/ray"  # noqa: S108 - where Ray has its files, and C48 its shared storage
_STARTED = b"Ray runtime started."
_TRIES = 3
_FIRST_FAKE_GPU = 1000
"""Simulated GPUs get numbers that no machine has, so that a program with real ones there sees none."""
_LOG_BYTES, _ALL_LOG_BYTES = 1 << 20, 16 << 20
_DRIVERS_OWN = ("worker-", "job-driver-")
"""What tasks and drivers printed: it is in the submitter's log already (C52)."""
_VERSION_SECONDS = 60.0


class Failed(Exception):
    """This node cannot be started; the message says why."""


def lacks_ray() -> str:
    """Why no Ray can be run here, or nothing; tells its version (C7)."""
    program = shutil.which("ray")
    if program is None:
        return "there is no `ray` on the PATH"
    try:
        done = subprocess.run(  # noqa: S603 - the image's own Ray
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`ray --version` cannot be run: {error}"
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        return f"`ray --version` ended with {done.returncode}: {last}"
    ray_wire.tell(done.stdout.strip())
    return ""


def has_job_server() -> bool:
    """Whether Ray's dashboard extras are here, without which there are no Ray Jobs (C7)."""
    done = subprocess.run(
        [sys.executable, "-c", "import ray.dashboard.optional_deps"], capture_output=True, check=False
    )
    return done.returncode == 0


class Node:
    """The Ray processes of one member."""

    def __init__(self, config: Json) -> None:
        self._config = config
        self.place = _place(config)
        """Ray's temporary folder of this node."""
        self._process: subprocess.Popen[bytes] | None = None
        self.ended = threading.Event()
        """Set once the node is no longer there."""

    def start_head(self) -> tuple[str, str]:
        """Start the cluster; its address and that of its dashboard. Raises `Failed`."""
        head = self._config["head"]
        for last in range(_TRIES):
            gcs, dashboard, client = ray_wire.free_ports(3)
            if last + 1 < _TRIES:
                # The door leads there and nowhere else (C50); rather no door than no cluster.
                dashboard = self._config.get("dashboard_port") or dashboard
            words = [
                "--head",
                f"--port={gcs}",
                f"--dashboard-host={head}",
                f"--dashboard-port={dashboard}",
                f"--ray-client-server-port={client}",
                "--include-dashboard=true",
                "--disable-usage-stats",
            ]
            if self._try(words, last):
                break
        return f"{head}:{gcs}", f"http://{head}:{dashboard}"

    def join(self, gcs: str) -> None:
        """Join the cluster at ``gcs``. Raises `Failed`."""
        for last in range(_TRIES):
            if self._try([f"--address={gcs}"], last):
                break

    def _try(self, words: list[str], tried: int) -> bool:
        started = threading.Event()
        self.ended.clear()
        config = self._config
        common = [
            f"--node-ip-address={config['address']}",
            f"--num-cpus={config['cpus']}",
            f"--num-gpus={config['gpus']}",
            f"--memory={config['memory_bytes']}",
            f"--object-store-memory={config['object_store_bytes']}",
            f"--temp-dir={self.place}",
            # Every worker takes a free port: nodes on one machine would all take them from the same list.
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--dashboard-agent-listen-port={ray_wire.free_ports(1)[0]}",
            "--block",
        ]
        self._process = subprocess.Popen(  # noqa: S603 - the image's own Ray
            ["ray", "start", *words, *common],  # noqa: S607 - the first on the program's PATH
            env=_environment(config),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        threading.Thread(target=self._follow, args=(self._process, started), daemon=True).start()
        while not started.wait(0.05):
            if self.ended.is_set():
                code = self._process.wait()
                if tried + 1 < _TRIES:
                    ray_wire.tell(f"`ray start` ended with {code}; it is tried again")
                    return False
                raise Failed(f"`ray start` ended with {code} {_TRIES} times")
        return True

    def _follow(self, process: subprocess.Popen[bytes], started: threading.Event) -> None:
        """Hand on what `ray start` prints, and see when the node is there and when it is gone."""
        assert process.stdout is not None  # noqa: S101 - it was started with a pipe
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            if _STARTED in line:  # printed once the cluster lists the node as alive
                started.set()
        process.wait()
        self.ended.set()

    def follows_own_place(self) -> bool:
        """Whether Ray keeps this node's files where it was told to; older ones do not (C48)."""
        return any(name.startswith("session_") for name in _names(self.place))

    def hand_in_logs(self, _job: str | None) -> None:
        """Write what this node's processes logged into this member's own log (C52)."""
        sessions = [name for name in _names(self.place) if name.startswith("session_2")]
        # Names are times; a shared storage may hold the sessions of earlier Attempts, too.
        logs = os.path.join(self.place, max(sessions, default="session_latest"), "logs")
        left = _ALL_LOG_BYTES
        for name in sorted(_names(logs)):
            path = os.path.join(logs, name)
            if name.startswith(_DRIVERS_OWN) or os.path.islink(path) or not os.path.isfile(path):
                continue
            left -= _hand_in(path, name, min(left, _LOG_BYTES))
        sys.stdout.flush()

    def end(self) -> None:
        """Remove what lies outside of the work directory. The shim ends all processes, with the tree."""
        if not self.place.startswith(SHARED):
            shutil.rmtree(self.place, ignore_errors=True)


class GivenNode(Node):
    """A node of a shared cluster: it is there before and after us, and so are other people's logs."""

    def __init__(self, config: Json) -> None:
        self._config = config
        self._cluster: Json = config["cluster"]
        self.place = ""
        self.ended = threading.Event()

    def start_head(self) -> tuple[str, str]:
        """Leave the task's variables for the driver; where the cluster is. Raises `Failed`."""
        names = [*self._cluster["env"], *self._cluster["hidden"]]
        content = {name: os.environ[name] for name in names if name in os.environ}
        path = os.path.join(self._config["place"], ray_wire.ENVIRONMENT)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(content, file)
        except OSError as error:
            raise Failed(f"the driver's variables cannot be written: {error}") from error
        dashboard = self._cluster["dashboard"]
        return self._cluster["gcs"], f"http://{dashboard}" if dashboard else ""

    def join(self, gcs: str) -> None:
        """It has."""

    def follows_own_place(self) -> bool:
        return True

    def hand_in_logs(self, job: str | None) -> None:
        """Write what the processes of our own Job logged on this node."""
        logs = self._cluster["logs"]
        marks = {name.split("-")[1] for name in _names(logs) if job and f"-{job}-" in name}
        for name in sorted(_names(logs)):
            if name.startswith("python-core-worker-") and any(mark in name for mark in marks):
                _hand_in(os.path.join(logs, name), name, _LOG_BYTES)

    def end(self) -> None:
        """Nothing of it is ours."""


def node_of(config: Json) -> Node:
    """The node of a member: on a shared cluster, or one that it starts."""
    return GivenNode(config) if config["cluster"] else Node(config)


def _place(config: Json) -> str:
    """Where this node keeps its files: short, as sockets lie there, and its own. Raises `Failed`."""
    own = os.path.join(SHARED, "n", config["short"])
    if config["shared"]:
        if not _is_mounted(SHARED):
            raise Failed(f"the shared storage is not mounted at {SHARED}")
        place = SHARED if config["role"] == "head" else own
    elif _mount_own():
        place = SHARED
    else:
        place = os.path.join("/tmp", f"tr-{config['short']}")  # noqa: S108 - as SHARED
    os.makedirs(place, exist_ok=True)
    return place


def _is_mounted(place: str) -> bool:
    """Whether something is mounted there for this process; binds of one disk look like folders."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return any(line.split(" ")[4] == place for line in file)


def _mount_own() -> bool:
    """Put a folder of the work directory at `SHARED`, if this process sees mounts of its own.

    The files then count as the task's and go with its work directory, however it ends.
    """
    try:
        if os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{os.getppid()}/ns/mnt"):
            return False  # what we mounted here the whole machine would see
        source = os.path.join(os.getcwd(), ray_wire.FOLDER, "node")
        os.makedirs(source, exist_ok=True)
        os.makedirs(SHARED, mode=0o1777, exist_ok=True)
        linux.bind(source, SHARED)
    except OSError:
        return False
    return True


def _environment(config: Json) -> dict[str, str]:
    environment = {
        "RAY_DEDUP_LOGS": "0",  # equal lines of different workers are lines, too
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": str(max(1, int(config["grace_seconds"]))),
    }
    environment.pop("RAY_ADDRESS", None)
    if config["gpus"] and not environment.get("CUDA_VISIBLE_DEVICES"):
        fakes = range(_FIRST_FAKE_GPU, _FIRST_FAKE_GPU + int(config["gpus"]))
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, fakes))
    return environment


def _names(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:
        return []


def _hand_in(path: str, name: str, most: int) -> int:
    """Write the last ``most`` bytes of a log to our own; how many there were."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most))
            text = file.read(most)
    except OSError as error:
        text, size = f"cannot be read: {error.strerror}".encode(), 0
    if text:
        cut = f" (the last {most} of {size} bytes)" if size > most else ""
        sys.stdout.buffer.write(f"==> {name} <=={cut}\n".encode() + text.rstrip(b"\n") + b"\n")
        sys.stdout.buffer.flush()
    return len(text)


def pause_until(at: float, *events: threading.Event) -> bool:
    """Wait until a moment of the monotonic clock or one of the events; whether an event came."""
    while not any(event.is_set() for event in events):
        left = at - time.monotonic()
        if left <= 0:
            return False
        events[0].wait(min(left, 0.1 if len(events) > 1 else left))
    return True
