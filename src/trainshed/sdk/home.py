"""Where this user's files lie, and reading and writing them so that nobody else can.

``TRAINSHED_HOME`` moves all of it. Without it the platform's folders are used (``~/.config/trainshed``
and ``~/.local/share/trainshed`` on Linux).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainshed.sdk.errors import ConfigurationError

HOME_VARIABLE = "TRAINSHED_HOME"
MAX_FILE_BYTES = 64 * 1024
_OTHER_HOME = "Set TRAINSHED_HOME to a folder of yours."
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Home:
    """This user's folders. Nothing is created until something is written."""

    config: Path
    data: Path

    @property
    def login(self) -> Path:
        """The saved login."""
        return self.config / "login.json"

    @property
    def server_data(self) -> Path:
        """The data folder of this user's embedded server."""
        return self.data / "server"

    @property
    def server_log(self) -> Path:
        """What the embedded server printed when it was started."""
        return self.data / "server.log"

    @property
    def start_lock(self) -> Path:
        """Held while an embedded server is being started or stopped."""
        return self.data / "server.lock"


def find_home(environ: Mapping[str, str] | None = None) -> Home:
    """The folders for this environment (the process's own by default). Raises `ConfigurationError`."""
    environ = os.environ if environ is None else environ
    if named := environ.get(HOME_VARIABLE):
        try:
            folder = Path(named).expanduser()
        except RuntimeError:
            raise ConfigurationError(
                f"{HOME_VARIABLE} is {named}, the home of a user that this machine does not know",
                hint=_OTHER_HOME,
            ) from None
        # Whoever names a link means the folder; what it leads to is checked like any other.
        root = Path(os.path.realpath(folder))
        return Home(config=root, data=root)
    import platformdirs  # noqa: PLC0415 - most commands run with TRAINSHED_HOME or an address and skip it

    return Home(
        config=Path(platformdirs.user_config_path("trainshed")),
        data=Path(platformdirs.user_data_path("trainshed")),
    )


def private_folder(path: Path) -> Path:
    """Create ``path`` for its owner only; refuses one that others may enter or that is not ours.

    Folders above it that are not there yet are made alike, for the next one may be of ours.
    """
    try:
        for folder in [*reversed(path.parents), path]:
            if not folder.exists():
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
        info = path.stat(follow_symlinks=False)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the folder {path}: {error.strerror}",
            hint=_OTHER_HOME,
        ) from None
    _check_owner(path, info, stat.S_ISDIR, "a folder")
    return path


def read_private(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; ``None`` if there is no such file.

    Raises `ConfigurationError` for a file that others can read, that is a link, or that is no object.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ConfigurationError(f"{path.parent} is not a folder", hint=_OTHER_HOME) from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", hint=_OTHER_HOME) from None
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        _check_owner(path, info, stat.S_ISREG, "a regular file")
        if info.st_nlink != 1 or info.st_size > MAX_FILE_BYTES:
            raise ConfigurationError(f"{path} has other names or is too large; remove it")
        text = file.read()
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} does not hold a JSON object", hint=f"Remove {path}.")
    return document


def write_private(path: Path, document: Mapping[str, Any]) -> None:
    """Replace ``path`` in one step by a file of mode 0600 in a folder of mode 0700."""
    private_folder(path.parent)
    write_file(path, document)


def write_file(path: Path, document: Mapping[str, Any]) -> None:
    """Replace ``path`` in one step by a file of mode 0600, whatever the folder it lies in."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _check_owner(path: Path, info: os.stat_result, kind: Any, noun: str) -> None:
    if not kind(info.st_mode):
        raise ConfigurationError(f"{path} is not {noun}", hint=f"Move {path} out of the way.")
    if info.st_uid != os.geteuid():
        raise ConfigurationError(f"{path} belongs to another user", hint=_OTHER_HOME)
    if info.st_mode & _OTHERS:
        raise ConfigurationError(
            f"{path} is open to other users (mode {stat.S_IMODE(info.st_mode):04o}) and may hold a key",
            hint=f"Run `chmod go= {shlex.quote(str(path))}`.",
        )
