"""The packages that a Job asks for, in environments of their own.

A program runs in a virtual environment that only its Attempt has, ``.gpu/env``: what it installs itself goes
there. It sees the packages of the interpreter that runs this, so that a framework that is here already is
used and not fetched again, and before those the packages that the Job asks for. These are in an environment
that Jobs share, kept under a name made of everything that decides its content::

    <cache>/<key>.lock           shared (flock) while a Job uses the environment, exclusive while it is made
    <cache>/<key>/               the virtual environment
    <cache>/<key>/complete       written last; touched by each Job that uses it

One that was cut short has no `complete` and is made anew. Requirements that lead to files of the Job itself
(``-e .``, ``./lib``) are installed into the Attempt's own environment, for those files go with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import time

from trainshed.jobkit.gpu_runner import program, say
from trainshed.jobkit.gpu_runner.jobs import HIDDEN, Broken, inside
from trainshed.jobkit.gpu_runner.output import Relay

COMPLETE, OWN = "complete", "env"
_FRAMEWORKS = ("torch", "tensorflow", "jax")
"""What is so large that one that is here must be used. uv does not see it, pip does."""
_UNUSED_SECONDS = 30 * 86400.0
_LOOK_SECONDS = 0.2
_ELSEWHERE = re.compile(
    r"PIP_(USER|TARGET|PREFIX|ROOT|PYTHON|DRY_RUN|REQUIREMENT|EDITABLE)|UV_(SYSTEM_PYTHON|TARGET|PREFIX|PYTHON|PROJECT_ENVIRONMENT|BREAK_SYSTEM_PACKAGES)|PYTHON(PATH|HOME)|VIRTUAL_ENV"
)
"""Variables that would have packages installed somewhere else."""
_SOURCES = re.compile(r"(PIP|UV)_\w*(INDEX|LINKS|CONSTRAINT|OVERRIDE|PRE|BINARY|CONFIG)\w*")
"""Variables that decide where packages come from."""
_NESTED = re.compile(r"(?:-r|-c|--requirement|--constraint)[ =]?\s*(\S+)")
_LOCAL = re.compile(r"(-e|--editable|-f\s*|--find-links[ =])|\.{0,2}/|file:|\S+\s*@\s*(file:|\.{0,2}/)")
_ARCHIVE = re.compile(r"[^\s:]+\.(whl|zip|tar\.gz|tgz|tar\.bz2)")
_OPTION = re.compile(r"--(?!requirement|constraint|editable)|-[if]\b")
_MOST_NESTED = 50
_BOUND = re.compile(r"\s*(>=|<=|==|!=|>|<|~=)\s*(\d+(?:\.\d+)*)(\.\*)?\s*")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.jobkit.gpu_runner.jobs import Deps, Place

_MISSING = re.compile(
    rb"No matching distribution found for [^\r\n;]+|Because [^\r\n;]*(?:not found|no version)[^\r\n;]*"
)
"""How pip and uv say that there is no such package, or no such version of it."""
_UNANSWERED = re.compile(
    rb"Retrying \(Retry|Could not fetch URL (?!\S+ 404 )|could not be queried|Failed to fetch|timed out"
    rb"|returned a (?!404)\d{3} |network was disabled|not found in the cache"
    rb"|[Cc]onnection (?:refused|reset|aborted|error)"
)
"""How they say that an index did not answer. pip then goes on as if it had nothing."""
_OTHER_MACHINE = re.compile(
    rb"different [Pp]ython|none of the wheel's tags|no wheels|no (?:source distribution|usable wheels)"
    rb"|does not satisfy Python|[Pp]ython requirement"
)
"""How they say that there is one, for another Python or another machine."""
_LONGEST_WHY = 200


class Environment:
    """What runs the program."""

    def __init__(self, python: str, folders: list[str], variables: dict[str, str]) -> None:
        self.python = python
        self.folders = folders
        """Have the programs ``python`` and ``python3``, and those of the packages; to be looked in first."""
        self.variables = variables


class Stopped(Exception):
    """The runner was told to end."""


def prepare(place: Place, deps: Deps, stop: program.Stop) -> Environment:
    """The environment of a Job, made if need be. Raises `Broken` and `Stopped`."""
    _check_python(deps.python_requires)
    wanted = _Wanted(place, deps)
    if wanted.texts:
        return _Making(place, wanted, stop).get()
    try:
        return _own(place, [])
    except (OSError, ImportError, ValueError) as problem:
        say.note(f"there is no virtual environment for the program: {problem}")
        return _plain(place)


class _Wanted:
    """What is to be installed."""

    def __init__(self, place: Place, deps: Deps) -> None:
        self.texts: list[tuple[str, str]] = []
        """Everything that says what: name, content."""
        self.private = False
        self.file = ""
        """As pip is given it, from ``code/``."""
        self._code = place.code
        if deps.kind == "requirements":
            self.file = inside(deps.file or "", "deps.file")
            self._read(self.file)
            if not any(_meaning(text) for _, text in self.texts):
                self.texts = []
        elif deps.kind == "pyproject" and deps.packages:
            self.file = place.state("requirements.txt")
            text = "\n".join(deps.packages) + "\n"
            with open(self.file, "w", encoding="utf-8") as file:
                file.write(text)
            self._take("pyproject", text)
        self.name = deps.file or "the dependencies of the project"

    def _read(self, path: str) -> None:
        try:
            with open(os.path.join(self._code, path), encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        except OSError as problem:
            raise Broken(f"{path} cannot be read: {problem.strerror}") from None
        self._take(path, text)

    def _take(self, path: str, text: str) -> None:
        self.texts.append((path, text))
        for line in _meaning(text):
            nested = _NESTED.match(line)
            if nested and "://" not in nested.group(1) and len(self.texts) < _MOST_NESTED:
                other = os.path.normpath(os.path.join(os.path.dirname(path), nested.group(1)))
                if all(other != known for known, _ in self.texts):
                    self._read(other)
            elif (
                _LOCAL.match(line)
                or _ARCHIVE.fullmatch(line)
                or os.path.isdir(os.path.join(self._code, line))
            ):
                self.private = True

    def key(self) -> str:
        """The name of an environment with these packages: 32 hexadecimal digits."""
        decides = {
            "texts": self.texts,
            "python": [sys.version, os.path.realpath(sys.executable), sys.prefix],
            "platform": [sysconfig.get_platform(), platform.machine(), platform.libc_ver()],
            "sources": sorted(item for item in os.environ.items() if _SOURCES.fullmatch(item[0])),
            "here": sorted(name for folder in _site_folders() for name in _distributions(folder)),
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


def _meaning(text: str) -> list[str]:
    """The lines of a requirements file that say something."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.replace("\\\n", "").splitlines())
    return [line for line in lines if line]


class _Making:
    """Finding or making one environment."""

    def __init__(self, place: Place, wanted: _Wanted, stop: program.Stop) -> None:
        self._place = place
        self._wanted = wanted
        self._stop = stop

    def get(self) -> Environment:
        cache = None if self._wanted.private else self._place.cache
        if cache:
            try:
                return _own(self._place, [self._shared(cache)])
            except OSError as problem:
                say.note(f"environments cannot be kept in {cache}: {problem.strerror or problem}")
        return _of(self._make(self._place.state(OWN)))

    def _shared(self, cache: str) -> str:
        """The folder of an environment that Jobs share."""
        key = self._wanted.key()
        os.makedirs(cache, exist_ok=True)
        path = os.path.join(os.path.abspath(cache), key)
        lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)  # ours until we end
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not _complete(path):
            fcntl.flock(lock, fcntl.LOCK_UN)
            self._alone(lock)
        if _complete(path):
            say.note(f"{self._wanted.name} is installed already (environment {key[:12]})")
            os.utime(os.path.join(path, COMPLETE))
        else:
            self._make(path)
            _evict(cache, key)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return path

    def _alone(self, lock: int) -> None:
        """Have the lock to ourselves."""
        if not _try(lock):
            say.note("another Job is installing the same packages; waiting for it")
            while not _try(lock):
                self._rest()

    def _rest(self) -> None:
        if self._stop.asked:
            raise Stopped
        time.sleep(_LOOK_SECONDS)

    def _make(self, path: str) -> str:
        shutil.rmtree(path, ignore_errors=True)
        began = time.monotonic()
        try:
            try:
                _venv(path, [])
            except (ImportError, ValueError) as problem:
                raise Broken(f"there is no virtual environment for the packages: {problem}") from None
            self._install(path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        with open(os.path.join(path, COMPLETE), "wb") as file:
            os.fsync(file.fileno())
        say.note(f"installed {self._wanted.name} in {time.monotonic() - began:.1f} s")
        return path

    def _install(self, path: str) -> None:
        uv = shutil.which("uv")
        has = _pip(path)
        if uv and not (has and any(importlib.util.find_spec(name) for name in _FRAMEWORKS)):
            argv = [uv, "pip", "install", "--python", _python(path), "--no-progress"]
        else:
            if not has:
                self._call([_python(path), "-m", "ensurepip", "--default-pip"])
            argv = [_python(path), "-m", "pip", "install", "--no-input", "--no-user", "--progress-bar", "off"]
            argv += ["--disable-pip-version-check", "--no-warn-script-location"]
        say.note(f"installing {self._wanted.name} with {'uv' if argv[0] == uv else 'pip'}")
        self._call([*argv, "-r", self._wanted.file])

    def _call(self, argv: list[str]) -> None:
        """Run an installer from ``code/``, its output in the log."""
        env = {name: value for name, value in os.environ.items() if not _ELSEWHERE.fullmatch(name)}
        for name in HIDDEN:
            env.pop(name, None)
        env.update(PYTHONUNBUFFERED="1", PIP_NO_COLOR="1", NO_COLOR="1")
        told = _Told()

        def write(data: bytes) -> None:
            told.take(data)
            say.raw(data)

        ended = self._run(argv, env, write)
        if ended.code == 0:
            return
        if told.why and "pip" in argv[1:3]:
            self._look_again(argv[0], env, told)
        what = shlex.join(argv[1:4]) if argv[1:2] == ["-m"] else f"{os.path.basename(argv[0])} {argv[1]}"
        said = f"{what} ended with exit status {ended.code}; its output is above"
        raise Broken(f"{self._wanted.name} could not be installed{told.anywhere}: {told.text}{said}")

    def _look_again(self, python: str, env: dict[str, str], told: _Told) -> None:
        """Have pip say what it passed over: of that, and of an index that refused, it says nothing else."""
        folder = self._place.state("missing")
        os.makedirs(folder, exist_ok=True)
        needs = os.path.join(folder, "requirements.txt")
        lines = [line for _, text in self._wanted.texts for line in _meaning(text) if _OPTION.match(line)]
        with open(needs, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("\n".join([*lines, told.name]) + "\n")
        argv = [python, "-m", "pip", "download", "--no-input", "--no-deps", "--disable-pip-version-check"]
        again = [*argv, "--retries", "1", "-vv", "-d", folder, "-r", needs]
        if self._run(again, env, told.take).code == 0:
            told.why = b""  # it is there now
        shutil.rmtree(folder, ignore_errors=True)

    def _run(self, argv: list[str], env: dict[str, str], write: Callable[[bytes], None]) -> program.Ended:
        try:
            ended = program.run(
                argv,
                cwd=self._place.code,
                env=env,
                relay=Relay(write),
                stop=self._stop,
                grace=self._place.grace,
            )
        except program.CannotStart as problem:
            raise Broken(str(problem)) from None
        if self._stop.asked:
            raise Stopped
        return ended


class _Told:
    """What an installer said of what is missing."""

    def __init__(self) -> None:
        self.why = b""
        self._unanswered = False
        self._other_machine = False

    def take(self, data: bytes) -> None:
        """Some whole lines of its output."""
        found = _MISSING.findall(data)
        self.why = found[-1] if found else self.why
        self._unanswered = self._unanswered or bool(_UNANSWERED.search(data))
        self._other_machine = self._other_machine or bool(_OTHER_MACHINE.search(data))

    @property
    def name(self) -> str:
        """The requirement that pip names."""
        words = self.why.decode(errors="replace").partition(" found for ")[2]
        return words.partition(" (from ")[0].strip()

    @property
    def text(self) -> str:
        """The line that says what is missing; nothing where an index did not answer: it may have it."""
        known = self.why and not self._unanswered
        return self.why.decode(errors="replace")[:_LONGEST_WHY].strip() + "; " if known else ""

    @property
    def anywhere(self) -> str:
        """What the server takes for certain (`trainshed.policy.migration`)."""
        return " anywhere" if self.text and not self._other_machine else ""


def _try(lock: int) -> bool:
    """Have a lock to ourselves, if nobody else has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _plain(place: Place) -> Environment:
    """The interpreter that runs this, under the names by which programs call it."""
    folder = place.state("bin")
    _programs(folder, {name: [sys.executable] for name in ("python", "python3")})
    return Environment(sys.executable, [folder], {})


def _programs(folder: str, programs: dict[str, list[str]]) -> None:
    """Short names for programs."""
    os.makedirs(folder, exist_ok=True)
    for name, argv in programs.items():
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
            os.chmod(path, 0o755)  # noqa: S103 - a program, in the Job's own folder


def _own(place: Place, below: list[str]) -> Environment:
    """The environment that only this Attempt has, on top of others."""
    path = place.state(OWN)
    shutil.rmtree(path, ignore_errors=True)
    _venv(path, [_packages(folder) for folder in below])
    environment = _of(path)
    environment.folders += [os.path.join(folder, "bin") for folder in below]
    return environment


def _venv(path: str, below: list[str]) -> None:
    """A virtual environment that sees these folders of packages, and those of the interpreter that runs this.

    Raises `OSError`, ``ImportError`` and ``ValueError``.
    """
    builder = importlib.import_module("venv")  # some systems have it in a package of its own
    builder.EnvBuilder(system_site_packages=True, symlinks=True).create(path)
    if sys.prefix != sys.base_prefix:  # else they are seen as it is
        below = [*below, *_site_folders()]
    lines = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in below)
    with open(os.path.join(_packages(path), "_below.pth"), "w", encoding="utf-8") as file:
        file.write(lines)


def _packages(path: str) -> str:
    """Where the packages of a virtual environment lie."""
    return sysconfig.get_path("purelib", "posix_prefix", {"base": path, "platbase": path})


def _of(path: str) -> Environment:
    """What an environment gives a program, ``pip`` among it: another's would install elsewhere."""
    _programs(os.path.join(path, "bin"), {name: [_python(path), "-m", "pip"] for name in ("pip", "pip3")})
    return Environment(_python(path), [os.path.join(path, "bin")], {"VIRTUAL_ENV": path})


def _python(path: str) -> str:
    return os.path.join(path, "bin", "python")


def _complete(path: str) -> bool:
    return os.path.exists(os.path.join(path, COMPLETE)) and os.access(_python(path), os.X_OK)


def _pip(path: str) -> bool:
    asked = [_python(path), "-c", "import pip"]
    return _said_by(asked).returncode == 0


def _said_by(argv: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Ask an interpreter of ours something."""
    return subprocess.run(argv, check=False, capture_output=True)  # noqa: S603 - our own words


def _site_folders() -> list[str]:
    """Where the packages of the interpreter lie."""
    try:
        return [folder for folder in site.getsitepackages() if os.path.isdir(folder)]
    except AttributeError:  # an old virtualenv has a site of its own
        return [sysconfig.get_path("purelib")]


def _distributions(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]


def _evict(cache: str, own: str) -> None:
    """Remove environments that nobody used for a month."""
    for name in os.listdir(cache):
        path = os.path.join(cache, name)
        try:
            used = os.stat(os.path.join(path, COMPLETE)).st_mtime
            if name == own or time.time() - used < _UNUSED_SECONDS:
                continue
            lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(os.path.join(path, COMPLETE))
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # in use
        finally:
            os.close(lock)


def _check_python(wanted: str | None) -> None:
    """Say it where the project asks for another Python than there is: that may still work."""
    here = sys.version_info[:3]
    for part in (wanted or "").split(","):
        bound = _BOUND.fullmatch(part)
        if bound is None:
            continue
        sign, version = bound.group(1), tuple(int(number) for number in bound.group(2).split("."))
        mine = here[: len(version)] if bound.group(3) or sign in ("==", "!=") else here
        short = here[: len(version) - 1]
        fits = {
            ">=": mine >= version,
            "<=": mine <= version,
            ">": mine > version,
            "<": mine < version,
            "==": mine == version,
            "!=": mine != version,
            "~=": mine >= version and short == version[:-1],
        }[sign]
        if not fits:
            say.note(f"the project asks for Python {wanted}; this is {platform.python_version()}")
            return
