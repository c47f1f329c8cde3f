"""podman and docker by their command lines: where they are, and the words for what we need of both."""

from __future__ import annotations

import csv
import io
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainshed.engines.contract import EngineError
from trainshed.jobkit import container
from trainshed.model.images import ImageReference, RegistryRules
from trainshed.model.resources import Gpu

RUNTIMES = ("podman", "docker")
"""In the order in which they are preferred."""
LABEL = "trainshed.instance"
"""Every container of an engine carries it."""
DOWNLOADS = "downloads"
"""Where below the folder of images what is on its way in lies."""
NVIDIA_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_CALL_SECONDS = 60.0
LOOK_SECONDS = 0.1
_OUTPUT_BYTES = 1 << 16


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
    gpus: Sequence[Gpu]
    """Real GPUs, which the program gets beside no others."""
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
    replace: Sequence[str]
    """Removes a container of the same name that was left here."""


class Runtime(Protocol):
    """What is needed of podman and docker."""

    name: str
    program: str
    environment: dict[str, str]
    shared: Path
    """A folder of this boot and this user, for what holds for the machine."""

    def version(self) -> str: ...

    def get_ready(self) -> None:
        """What must be there before a container is made, and outlive it. Raises `EngineError`."""
        ...

    def starting(self, wanted: Container, folder: Path) -> Starting: ...

    def why_no_gpus(self, gpus: Sequence[Gpu]) -> str | None:
        """Why containers cannot be given all of these real GPUs, or ``None``."""
        ...

    def bare(self, root: Path) -> AbstractContextManager[Sequence[str]]:
        """An image of what lies in the folder ``root``, as `Container.image` has it. Raises `EngineError`."""
        ...

    def pulling(
        self, image: ImageReference, registries: RegistryRules, downloads: Path, *, one_by_one: bool
    ) -> tuple[list[str], Mapping[str, str]]:
        """The command that pulls an image by way of the folder ``downloads``, and its environment.

        ``one_by_one``: no layer is to come before those below it, so that each one that came is kept.
        """
        ...

    def layers_here(self) -> frozenset[str]:
        """Digests of layers that no pull brings again, as far as its words do not tell."""
        ...

    def worked(self, pid: int) -> int:
        """Bytes that move while the pull of process ``pid`` does something, though nothing comes."""
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

    def settle(self, name: str, image: str) -> None:
        """Wait until no container of this name and image is being made for a client that was killed.

        There may be one then; removing it is next.
        """
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
    lines = [line for line in lines if not line.startswith(container.HINTS)]
    return lines[-1].removeprefix("Error: ").strip() if lines else "no word about why"


def common_options(wanted: Container, nvidia_devices: str = "void") -> Iterator[str]:
    """Options that podman and docker share; ``nvidia_devices`` are what NVIDIA's own runtime is to add."""
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
    # Images for CUDA ask for all GPUs by it, and hooks or a default runtime of the machine would give them.
    yield f"--env={NVIDIA_DEVICES}={nvidia_devices}"
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


def installed(wanted: str) -> list[tuple[str, str]]:
    """Names and programs of the runtimes that may be used; ``wanted`` allows one only, but for ``auto``."""
    names = RUNTIMES if wanted == "auto" else [name for name in RUNTIMES if name == wanted]
    found = [(name, shutil.which(name, path=search_path())) for name in names]
    return [(name, program) for name, program in found if program]


def clear_downloads(home: Path) -> None:
    """Remove what pulls of a server that was killed left; before any pull of ours."""
    for left in (home / DOWNLOADS).iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def search_path() -> str:
    """Helpers of the runtimes lie where not every account looks."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


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
