"""podman and docker by their command lines: where they are, their settings, and the words for what we need.

Everything podman keeps lies below the engine's folder and one folder of ``/run``: no image, container, lock,
credential or setting of anybody else on the machine is seen or touched.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainshed.engines.contract import EngineError
from trainshed.jobkit import cgroups, container
from trainshed.model.images import ImageReference, RegistryRules

RUNTIMES = ("podman", "docker")
"""In the order in which they are preferred."""
LABEL = "trainshed.instance"
"""Every container of an engine carries it."""
DOWNLOADS = "downloads"
"""Where below the folder of images what is on its way in lies."""
_CALL_SECONDS = 60.0
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
LOOK_SECONDS = 0.1
_OUTPUT_BYTES = 1 << 16
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PID_MAX = Path("/proc/sys/kernel/pid_max")
_POLICIES = (Path("/etc/containers/policy.json"),)
_PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or folder of the machine inside a container."""

    source: Path
    target: str
    read_only: bool

    def option(self) -> str:
        """As ``--mount`` takes it: one line of comma-separated values."""
        line = io.StringIO()
        words = ["type=bind", f"src={self.source}", f"dst={self.target}"]
        csv.writer(line, lineterminator="").writerow([*words, "ro=true"] if self.read_only else words)
        return line.getvalue()


@dataclass(frozen=True, slots=True)
class Container:
    """What a container is made of. The program itself is started in it by us."""

    name: str
    instance: str
    image: Sequence[str]
    """How the runtime names the image, with options before it."""
    user: int
    network: str
    """``host`` or ``none``."""
    shm_mb: int
    marks: Mapping[str, str]
    binds: Sequence[Bind]
    devices: Sequence[str]
    """CDI names of the GPUs."""
    group: str | None
    """Parent control group, below the mount of each hierarchy."""
    read_only: bool = False
    """Whether the image's own files cannot be changed."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the runtime says of an image that it holds."""

    id: str
    names: tuple[str, ...]
    """``repository@sha256:…`` for every manifest and index that it was pulled by."""
    system: str
    architecture: str
    size: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Starting:
    """How a container is made: commands in their order, and where the first process' id is found then."""

    commands: Sequence[Sequence[str]]
    keeper: Path | None
    """``None``: the last command prints it."""
    monitor: Path | None


class Runtime(Protocol):
    """What is needed of podman and docker."""

    name: str
    program: str
    environment: dict[str, str]

    def version(self) -> str: ...

    def get_ready(self) -> None:
        """What must be there before a container is made, and outlive it. Raises `EngineError`."""
        ...

    def starting(self, wanted: Container, folder: Path) -> Starting: ...

    def pulling(
        self, image: ImageReference, registries: RegistryRules, downloads: Path
    ) -> tuple[list[str], Mapping[str, str]]:
        """The command that pulls an image by way of the folder ``downloads``, and its environment."""
        ...

    def downloaded(self, downloads: Path) -> int:
        """Bytes of a pull that lie there on their way in."""
        ...

    def inspect(self, image: str) -> ImageFacts | None:
        """What is known of an image; ``None`` if it is not here."""
        ...

    def remove_image(self, image: str) -> bool:
        """Remove an image that no container uses; whether it is gone."""
        ...

    def containers(self, instance: str) -> list[str]:
        """Names of the containers of an engine."""
        ...

    def remove(self, name: str) -> str | None:
        """End and remove a container; why it is still there, or ``None``. No error if it is gone."""
        ...

    def close(self) -> None:
        """Remove what belongs to this boot only, if nothing uses it."""
        ...


def call(
    command: Sequence[str], environment: Mapping[str, str], seconds: float = _CALL_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a short command of a runtime. Raises `EngineError` if it does not end in time."""
    try:
        return subprocess.run(  # noqa: S603 - a container runtime with arguments of ours
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        words = f"{Path(command[0]).name} did not answer within {seconds:g} seconds"
        raise EngineError("IMAGES_UNAVAILABLE", words, retryable=True) from error
    except OSError as error:
        words = f"{command[0]} cannot be run: {error.strerror}"
        raise EngineError("IMAGES_UNAVAILABLE", words, retryable=True) from error


def last_words(said: str) -> str:
    """What went wrong, as a runtime's last line says it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ").strip() if lines else "no word about why"


class Podman:
    """podman with settings of its own, rootless where the server is not root."""

    name = "podman"

    def __init__(self, program: str, home: Path, instance: str, oci_runtime: str | None) -> None:
        self.program = program
        self._home = home
        self._downloads = home / DOWNLOADS
        for path in (home, self._downloads, home / "home"):
            path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        self._run = _run_folder(instance, home)
        self.shared = self._run.parent
        """A folder of this boot and this user, for what holds for the machine."""
        self.environment = self._configure(oci_runtime)
        for left in self._downloads.iterdir():  # of pulls of a server that was killed: ours come later
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def version(self) -> str:
        done = call([self.program, "--version"], self.environment)
        return done.stdout.strip().replace("version ", "") or last_words(done.stderr)

    def get_ready(self) -> None:
        """Without root a process of podman's own holds the user namespace of all containers.

        The command that starts it must not be one of an attempt, which would take it along at its end.
        """
        if os.geteuid() == 0:
            return
        for repair in (True, False):
            done = call([self.program, "unshare", "true"], self.environment)
            if done.returncode == 0:
                return
            if repair:  # it is gone, and no container lives that could lend its namespace
                call([self.program, "system", "migrate"], self.environment)
        raise EngineError("IMAGES_UNAVAILABLE", f"podman: {last_words(done.stderr)}", retryable=True)

    def starting(self, wanted: Container, folder: Path) -> Starting:
        keeper, monitor = folder / "keeper.pid", folder / "monitor.pid"
        command = [self.program, "run", "--detach", "--replace", f"--name={wanted.name}", "--pull=never"]
        command += [f"--pidfile={keeper}", f"--conmon-pidfile={monitor}", "--cgroups=no-conmon"]
        command += ["--image-volume=ignore", "--systemd=false", "--security-opt=label=disable"]
        command += ["--read-only-tmpfs=false"] if wanted.read_only else []
        command += [*common_options(wanted), f"--entrypoint={json.dumps(['bash', *container.KEEPER])}"]
        return Starting([[*command, *wanted.image]], keeper, monitor)

    def pulling(
        self, image: ImageReference, registries: RegistryRules, downloads: Path
    ) -> tuple[list[str], Mapping[str, str]]:
        path = self._home / f"registries-{hashlib.sha256(image.host.encode()).hexdigest()[:16]}.conf"
        write(path, _registries(image, registries))
        command = [self.program, "pull", *self._policy(), str(image)]
        own = {name: os.environ[name] for name in _names_of_proxies()}
        own |= {"CONTAINERS_REGISTRIES_CONF": os.fspath(path), "TMPDIR": os.fspath(downloads)}
        return command, {**self.environment, **own}

    def downloaded(self, downloads: Path) -> int:
        total = 0
        for path in downloads.rglob("*"):
            with suppress(OSError):
                total += path.lstat().st_size
        return total

    def inspect(self, image: str) -> ImageFacts | None:
        done = call([self.program, "image", "inspect", image], self.environment)
        return facts(done.stdout) if done.returncode == 0 else None

    def remove_image(self, image: str) -> bool:
        done = call([self.program, "image", "rm", "--ignore", image], self.environment)
        return done.returncode == 0

    def containers(self, instance: str) -> list[str]:
        folder = self._home / "store" / "overlay-containers"
        if not folder.is_dir() or not any(entry.is_dir() for entry in folder.iterdir()):
            return []  # as nearly always; asking podman takes thousands of times longer
        return names([self.program, "ps", "--all"], instance, self.environment)

    def remove(self, name: str) -> str | None:
        said = ""
        # Where its monitor was killed too, podman first notices that, and removes it when asked again.
        for _ in range(3):
            done = call([self.program, "rm", "--force", "--ignore", "--time=0", name], self.environment)
            if done.returncode == 0:
                return None
            said = done.stderr
        return last_words(said)

    def close(self) -> None:
        containers = self._home / "store" / "overlay-containers"
        if not containers.is_dir() or not any(entry.is_dir() for entry in containers.iterdir()):
            if os.geteuid() != 0:
                call([self.program, "system", "migrate"], self.environment)  # ends that process
            shutil.rmtree(self._run, ignore_errors=True)

    def _configure(self, oci_runtime: str | None) -> dict[str, str]:
        home, run = self._home, self._run
        files = {"storage.conf": _storage(home, run), "containers.conf": _containers(home, run, oci_runtime)}
        files["registries.conf"] = "unqualified-search-registries = []\n"
        files["auth.json"] = "{}"
        for name, text in files.items():
            write(home / name, text)
        environment = {
            "PATH": _path(),
            "HOME": os.fspath(home / "home"),
            "XDG_RUNTIME_DIR": os.fspath(run),
            "TMPDIR": os.fspath(self._downloads),
            "CONTAINERS_STORAGE_CONF": os.fspath(home / "storage.conf"),
            "CONTAINERS_CONF": os.fspath(home / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": os.fspath(home / "registries.conf"),
            # Nobody's credentials: what only some may pull was refused at the door (E44).
            "REGISTRY_AUTH_FILE": os.fspath(home / "auth.json"),
        }
        if os.geteuid() == 0:
            del environment["XDG_RUNTIME_DIR"]
        return environment

    def _policy(self) -> list[str]:
        """The machine's own policy of signatures where it has one; else none is asked for."""
        if any(path.exists() for path in _POLICIES):
            return []
        path = self._home / "policy.json"
        write(path, '{"default": [{"type": "insecureAcceptAnything"}]}')
        return [f"--signature-policy={path}"]


def common_options(wanted: Container) -> Iterator[str]:
    """Options that podman and docker share."""
    yield f"--label={LABEL}={wanted.instance}"
    yield f"--network={wanted.network}"
    if wanted.network == "none":
        # Programs that look up their own name to talk to themselves find the only address there is.
        yield "--hostname=localhost"
    yield from ("--ipc=private", "--cap-drop=all", "--security-opt=no-new-privileges", "--no-healthcheck")
    yield from ("--log-driver=none", f"--user={wanted.user}:{wanted.user}", f"--shm-size={wanted.shm_mb}m")
    if wanted.read_only:
        yield "--read-only"
    if wanted.group:
        yield f"--cgroup-parent={wanted.group}"
    for name, value in wanted.marks.items():
        yield f"--env={name}={value}"
    for device in wanted.devices:
        yield f"--device={device}"
    for bind in wanted.binds:
        yield f"--mount={bind.option()}"


def facts(text: str) -> ImageFacts:
    """What ``image inspect`` says, in the words that podman and docker share."""
    document: Mapping[str, Any] = json.loads(text)[0]
    pairs = (variable.partition("=") for variable in (document.get("Config") or {}).get("Env") or ())
    return ImageFacts(
        id=str(document["Id"]).removeprefix("sha256:"),
        names=tuple(document.get("RepoDigests") or ()),
        system=str(document.get("Os", "")),
        architecture=str(document.get("Architecture", "")),
        size=int(document.get("Size", 0)),
        environment={name: value for name, _, value in pairs},
    )


def names(command: Sequence[str], instance: str, environment: Mapping[str, str]) -> list[str]:
    """Names of the containers that carry an engine's label."""
    done = call([*command, f"--filter=label={LABEL}={instance}", "--format={{.Names}}"], environment)
    if done.returncode != 0:
        raise EngineError("IMAGES_UNAVAILABLE", last_words(done.stderr), retryable=True)
    return done.stdout.split()


def _registries(image: ImageReference, registries: RegistryRules) -> str:
    """Where podman may ask for this image, in the same order as the door did."""
    lines = ["unqualified-search-registries = []", "[[registry]]", f"location = {json.dumps(image.host)}"]
    insecure = "true" if registries.plain_http(image.host) else "false"
    lines.append(f"insecure = {insecure}")
    for mirror in registries.mirrors:
        if mirror.registry == image.host:
            plain = "true" if registries.plain_http(mirror.host) else "false"
            lines += ["[[registry.mirror]]", f"location = {json.dumps(mirror.place)}", f"insecure = {plain}"]
    return "\n".join(lines) + "\n"


def _storage(home: Path, run: Path) -> str:
    store = json.dumps(os.fspath(home / "store"))
    # Without root podman reads the second of these names only.
    lines = ["[storage]", 'driver = "overlay"', f"graphroot = {store}", f"rootless_storage_path = {store}"]
    lines += [f"runroot = {json.dumps(os.fspath(run / 'run'))}", "[storage.options]"]
    if os.geteuid() != 0:
        lines.append('ignore_chown_errors = "true"')  # a user may have no other ids to give to files
    # Device files of an image are of no use in it.
    lines += ["[storage.options.overlay]", 'mountopt = "nodev"', 'skip_mount_home = "true"']
    return "\n".join(lines) + "\n"


def _containers(home: Path, run: Path, oci_runtime: str | None) -> str:
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    # podman's own defaults are higher than some roots may go; programs get the limits of the shim anyway.
    ulimits = [f"{name}={_limit(which)}" for name, which in limits.items()]
    places = {
        "tmp_dir": run / "tmp",
        "static_dir": home / "static",
        "volume_path": home / "volumes",
        "image_copy_tmp_dir": home / DOWNLOADS,
    }
    lines = ["[containers]", f"default_ulimits = {json.dumps(ulimits)}", "http_proxy = false", "[engine]"]
    lines += ['cgroup_manager = "cgroupfs"', 'events_logger = "file"', 'lock_type = "file"']
    lines += [f"{name} = {json.dumps(os.fspath(path))}" for name, path in places.items()]
    if oci_runtime:
        lines.append(f"runtime = {json.dumps(oci_runtime)}")
    return "\n".join(lines) + "\n"


def _limit(which: int) -> str:
    # podman lowers its own limit of processes to the largest process id, and cannot go back.
    most = int(_PID_MAX.read_text(encoding="ascii")) if which == resource.RLIMIT_NPROC else 1 << 20
    soft, hard = (min(each, most) if each >= 0 else most for each in resource.getrlimit(which))
    return f"{soft}:{hard}"


def oci_runtimes() -> list[str]:
    """What can start podman's containers here, best first. crun refuses a mix of control group versions."""
    order = ["runc", "crun"] if len(cgroups.versions()) > 1 else ["crun", "runc"]
    return [name for name in order if shutil.which(name, path=_path())]


def find(wanted: str) -> tuple[str, str] | None:
    """Name and program of the runtime to use; ``wanted`` allows no other, unless it is ``auto``."""
    for name in RUNTIMES if wanted == "auto" else {wanted} & set(RUNTIMES):
        if program := shutil.which(name, path=_path()):
            return name, program
    return None


def _path() -> str:
    """Helpers of the runtimes lie where not every account looks."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _names_of_proxies() -> list[str]:
    return [name for each in _PROXIES for name in (each, each.lower()) if name in os.environ]


def _run_folder(instance: str, home: Path) -> Path:
    """A short path (sockets lie in it) that no other boot and no other engine uses.

    podman knows by its content what runs. Raises `EngineError` if somebody else owns that place. Those of
    engines whose own folder is gone are removed.
    """
    user = os.geteuid()
    if user == 0:
        base = Path("/run/trainshed")
    elif own := os.environ.get("XDG_RUNTIME_DIR"):
        base = Path(own, "trainshed")
    else:
        base = Path(tempfile.gettempdir(), f"trainshed-{user}")
    boot = _BOOT.read_text(encoding="ascii") if _BOOT.exists() else ""
    path = base / hashlib.sha256(f"{instance} {boot}".encode()).hexdigest()[:12]
    try:
        for each in (base, path):
            each.mkdir(mode=_PRIVATE, exist_ok=True)
            facts = each.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != user:
                raise EngineError("IMAGES_UNAVAILABLE", f"{each} belongs to somebody else", retryable=False)
        for other in base.glob("*/home"):
            with suppress(FileNotFoundError):
                if not Path(other.read_text(encoding="utf-8")).is_dir():
                    shutil.rmtree(other.parent, ignore_errors=True)
        write(path / "home", os.fspath(home))
    except OSError as error:
        raise EngineError("IMAGES_UNAVAILABLE", f"{path}: {error.strerror}", retryable=True) from error
    return path


def write(path: Path, text: str) -> None:
    """Replace a file at once: others read it meanwhile."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def process(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A long command, which does not survive us: its group is killed at the end of the block."""
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig=KILL"] if setpriv else []
    running = subprocess.Popen(  # noqa: S603 - a container runtime with arguments of ours
        [*prefix, *command],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        if running.stdout:
            running.stdout.close()


def read_output(running: subprocess.Popen[bytes], said: bytearray) -> bool:
    """Take what a process says now, waiting a moment for it; whether it has closed its output."""
    assert running.stdout is not None  # noqa: S101 - it was started with a pipe
    if not select.select([running.stdout], [], [], LOOK_SECONDS)[0]:
        return False
    piece = os.read(running.stdout.fileno(), _OUTPUT_BYTES)
    said += piece
    if len(said) > 2 * _OUTPUT_BYTES:
        del said[:_OUTPUT_BYTES]
    return not piece
