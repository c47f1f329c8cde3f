"""podman with settings of its own.

Everything it keeps lies below the engine's folder and one folder of ``/run``: no image, container, lock,
credential or setting of anybody else on the machine is seen or touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EngineError
from trainshed.engines.local import cdi, runtimes
from trainshed.engines.local.runtimes import Container, ImageFacts, Starting
from trainshed.jobkit import cgroups, container, procs
from trainshed.model.images import ImageReference, RegistryRules
from trainshed.model.resources import Gpu

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PID_MAX = Path("/proc/sys/kernel/pid_max")
_POLICIES = (Path("/etc/containers/policy.json"),)
_PRIVATE = 0o700
_OLDEST_WITH_CDI = (4, 1)
_ONE_BY_ONE = "containers-one-by-one.conf"


class Podman:
    """podman with settings of its own, rootless where the server is not root."""

    name = "podman"

    def __init__(self, program: str, home: Path, instance: str, oci_runtime: str | None) -> None:
        self.program = program
        self._home = home
        self._downloads = home / runtimes.DOWNLOADS
        for path in (home, self._downloads, home / "home"):
            path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        self._run = _run_folder(instance, home)
        self.shared = self._run.parent
        self.environment = self._configure(oci_runtime)
        runtimes.clear_downloads(home)

    def version(self) -> str:
        done = runtimes.call([self.program, "--version"], self.environment)
        return done.stdout.strip().replace("version ", "") or runtimes.last_words(done.stderr)

    def get_ready(self) -> None:
        """Without root a process of podman's own holds the user namespace of all containers.

        The command that starts it must not be one of an attempt, which would take it along at its end.
        """
        if os.geteuid() == 0:
            return
        for repair in (True, False):
            done = runtimes.call([self.program, "unshare", "true"], self.environment)
            if done.returncode == 0:
                return
            if repair:  # it is gone, and no container lives that could lend its namespace
                runtimes.call([self.program, "system", "migrate"], self.environment)
        raise EngineError("IMAGES_UNAVAILABLE", f"podman: {runtimes.last_words(done.stderr)}", retryable=True)

    def starting(self, wanted: Container, folder: Path) -> Starting:
        keeper, monitor = (folder / f"{name}-{container.START}.pid" for name in ("keeper", "monitor"))
        command = [self.program, "run", "--detach", "--replace", f"--name={wanted.name}", "--pull=never"]
        command += [f"--pidfile={keeper}", f"--conmon-pidfile={monitor}", "--cgroups=no-conmon"]
        command += [
            "--image-volume=ignore",
            "--systemd=false",
            "--security-opt=label=disable",
        ]
        command += ["--read-only-tmpfs=false"] if wanted.read_only else []
        command += [f"--device={name}" for name in self._names(wanted.gpus)]
        command += [
            *runtimes.common_options(wanted),
            f"--entrypoint={json.dumps(['bash', *container.KEEPER])}",
        ]
        return Starting([[*command, *wanted.image]], keeper, monitor, replace=self._removing(wanted.name))

    def why_no_gpus(self, gpus: Sequence[Gpu]) -> str | None:
        version = re.search(r"(\d+)\.(\d+)", self.version())
        if version and (int(version[1]), int(version[2])) < _OLDEST_WITH_CDI:
            return f"podman {version[0]} has no Container Device Interface; 4.1 has"
        return cdi.names(gpus)[1]

    def _names(self, gpus: Sequence[Gpu]) -> list[str]:
        names, missing = cdi.names(gpus) if gpus else ([], None)
        if missing:
            raise EngineError("GPU_LOST", missing, retryable=True)
        return names

    @contextmanager
    def bare(self, root: Path) -> Iterator[Sequence[str]]:
        yield "--rootfs", f"{root}:O"

    def pulling(
        self, image: ImageReference, registries: RegistryRules, downloads: Path, *, one_by_one: bool
    ) -> tuple[list[str], Mapping[str, str]]:
        path = self._home / f"registries-{hashlib.sha256(image.host.encode()).hexdigest()[:16]}.conf"
        runtimes.write(path, _registries(image, registries))
        command = [self.program, "pull", *self._policy(), str(image)]
        own = {name: os.environ[name] for name in _names_of_proxies()}
        own |= {"CONTAINERS_REGISTRIES_CONF": os.fspath(path), "TMPDIR": os.fspath(downloads)}
        if one_by_one:
            own["CONTAINERS_CONF"] = os.fspath(self._home / _ONE_BY_ONE)
        return command, {**self.environment, **own}

    def downloaded(self, downloads: Path) -> int:
        total = 0
        for path in downloads.rglob("*"):
            with suppress(OSError):
                total += path.lstat().st_size
        return total

    def layers_here(self) -> frozenset[str]:
        try:
            layers = json.loads((self._home / "store" / "overlay-layers" / "layers.json").read_bytes())
            return frozenset(each["compressed-diff-digest"] for each in layers if _is_whole(each))
        except (OSError, ValueError, TypeError):
            return frozenset()  # none yet

    def worked(self, pid: int) -> int:
        """What the processes of the pull read and wrote: a layer is unpacked by a child."""
        return sum(procs.bytes_moved(each) for each in (pid, *procs.descendants(pid)))

    def inspect(self, image: str) -> ImageFacts | None:
        done = runtimes.call([self.program, "image", "inspect", image], self.environment)
        return runtimes.facts(done.stdout) if done.returncode == 0 else None

    def remove_image(self, image: str) -> bool:
        done = runtimes.call([self.program, "image", "rm", "--ignore", image], self.environment)
        return done.returncode == 0

    def containers(self, instance: str) -> list[str]:
        folder = self._home / "store" / "overlay-containers"
        if not folder.is_dir() or not any(entry.is_dir() for entry in folder.iterdir()):
            return []  # as nearly always; asking podman takes thousands of times longer
        return runtimes.names([self.program, "ps", "--all"], instance, self.environment)

    def settle(self, name: str, image: str) -> None:
        """It makes containers itself, so nobody goes on when it is killed."""

    def remove(self, name: str) -> str | None:
        said = ""
        # Where its monitor was killed too, podman first notices that, and removes it when asked again.
        for _ in range(3):
            done = runtimes.call(self._removing(name), self.environment)
            if done.returncode == 0:
                return None
            said = done.stderr
        return runtimes.last_words(said)

    def close(self) -> None:
        containers = self._home / "store" / "overlay-containers"
        if not containers.is_dir() or not any(entry.is_dir() for entry in containers.iterdir()):
            if os.geteuid() != 0:
                runtimes.call([self.program, "system", "migrate"], self.environment)  # ends that process
            shutil.rmtree(self._run, ignore_errors=True)

    def _removing(self, name: str) -> list[str]:
        return [self.program, "rm", "--force", "--ignore", "--time=0", name]

    def _configure(self, oci_runtime: str | None) -> dict[str, str]:
        home, run = self._home, self._run
        containers = _containers(home, run, oci_runtime)
        files = {"storage.conf": _storage(home, run), "containers.conf": containers}
        files[_ONE_BY_ONE] = f"{containers}image_parallel_copies = 1\n"
        files["registries.conf"] = "unqualified-search-registries = []\n"
        files["auth.json"] = "{}"
        for name, text in files.items():
            runtimes.write(home / name, text)
        environment = {
            "PATH": runtimes.search_path(),
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
        runtimes.write(path, '{"default": [{"type": "insecureAcceptAnything"}]}')
        return [f"--signature-policy={path}"]


def _is_whole(layer: Mapping[str, Any]) -> bool:
    """Whether podman's record of a layer is of one that was pulled and unpacked wholly."""
    return bool(layer.get("compressed-diff-digest")) and not (layer.get("flags") or {}).get("incomplete")


def oci_runtimes() -> list[str]:
    """What can start podman's containers here, best first. crun refuses a mix of control group versions."""
    order = ["runc", "crun"] if len(cgroups.versions()) > 1 else ["crun", "runc"]
    return [name for name in order if shutil.which(name, path=runtimes.search_path())]


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
        "image_copy_tmp_dir": home / runtimes.DOWNLOADS,
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
        runtimes.write(path / "home", os.fspath(home))
    except OSError as error:
        raise EngineError("IMAGES_UNAVAILABLE", f"{path}: {error.strerror}", retryable=True) from error
    return path
