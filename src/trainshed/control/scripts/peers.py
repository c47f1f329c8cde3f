"""Which process of this machine is at the other end of a connection, and who may be behind it (c.7, P13).

A key says whose request it is, not who typed it: an agent on a person's machine can read that person's key.
So where the caller is a process of this machine, it is looked at: whether an agent is among its ancestors,
and which terminal it is controlled from. Only processes of this server's own user can be judged; what cannot
be judged is no person.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

MARKERS = ("CLAUDECODE", "CODEX_SANDBOX", "CODEX_SANDBOX_NETWORK_DISABLED", "TRAINSHED_AGENT")
"""Variables in the environment of what an agent runs (c.6)."""
PROGRAMS = frozenset({"aider", "claude", "codex", "cursor-agent", "gemini", "goose", "opencode"})
"""Agents themselves: what they start is marked, they are not."""
Address = tuple[str, int]
_PROC, _DEV = Path("/proc"), Path("/dev")
_TABLES = ("tcp", "tcp6")
_ESTABLISHED = "01"
_MOST_ANCESTORS = 64
_PTMX, _TTY_INDEX = "ptmx", "tty-index:"
_PTS_FIRST, _PTS_LAST, _PTS_EACH = 136, 143, 256


@dataclass(frozen=True, slots=True)
class Process:
    """What is known of a process. ``env`` is ``None`` where it may not be read."""

    pid: int
    parent: int
    group: int
    terminal: int
    """The device number of its controlling terminal; 0: it has none."""
    foreground: int
    """The process group that this terminal listens to."""
    names: frozenset[str]
    """How it is called: its command, and the base names of its first words."""
    env: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection."""

    here: bool
    """Whether it is a process of this machine."""
    chains: tuple[tuple[Process, ...], ...] = ()
    """Each process that holds the connection, and its ancestors, nearest first."""
    around: tuple[tuple[Process, ...], ...] = ()
    """Of its terminal: what is in the foreground there, and who has the other end; with their ancestors."""

    @property
    def agent(self) -> str | None:
        """What shows that an agent is behind it, in words; ``None`` if nothing does."""
        for chain in (*self.chains, *self.around):
            for process in chain:
                marked = [name for name in MARKERS if (process.env or {}).get(name)]
                if marked:
                    return f"process {process.pid} has {marked[0]} in its environment"
                if called := sorted(process.names & PROGRAMS):
                    return f"process {process.pid} is `{called[0]}`"
        return None

    @property
    def unreadable(self) -> bool:
        """Whether a process that holds the connection could not be looked at, or none was found."""
        return not self.chains or any(chain[0].env is None for chain in self.chains)

    def terminal(self) -> Path | None:
        """The terminal that controls it, if it is in the foreground there; ``None`` otherwise."""
        numbers = {chain[0].terminal for chain in self.chains}
        waits = all(chain[0].group == chain[0].foreground for chain in self.chains)
        if len(numbers) != 1 or 0 in numbers or not waits:
            return None
        return _terminal_path(numbers.pop())


def peer_of(client: Address | None, server: Address | None) -> Peer:
    """The peer of a connection from ``client`` to ``server``, both as the server sees them.

    A client that is not found here is `Peer` ``here=False``; one with a loopback address that is not found
    is here all the same, and unreadable.
    """
    if client is None or server is None:
        return Peer(here=True)
    looking = _ByProc() if _PROC.joinpath("self", "stat").exists() else ByPsutil()
    found = [_chain(looking, pid) for pid in looking.holders(client, server)]
    chains = tuple(chain for chain in found if chain)
    around = tuple(chain for nearest in chains for chain in looking.around(nearest[0]) if chain)
    return Peer(here=bool(found) or _is_loopback(client[0]), chains=chains, around=around)


def show(terminal: Path, text: str) -> None:
    """Write to a terminal of this server's user. Raises `OSError` where it is none, or cannot be written."""
    fd = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if not stat.S_ISCHR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{terminal} is not a terminal of yours")
        os.write(fd, text.replace("\n", "\r\n").encode())
    finally:
        os.close(fd)


def _is_loopback(host: str) -> bool:
    try:
        return _plain(ipaddress.ip_address(host)).is_loopback
    except ValueError:
        return True  # no address at all: a socket of this machine


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _inode(client: Address, server: Address) -> int | None:
    """The inode of the client's end, where that is a socket of this machine and of this server's user."""
    try:
        wanted = [(_plain(ipaddress.ip_address(host)), port) for host, port in (client, server)]
    except ValueError:
        return None
    for table in _TABLES:
        try:
            lines = (_PROC / "net" / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _ESTABLISHED and [_address(words[1]), _address(words[2])] == wanted:
                return int(words[9])
    return None


def _address(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """An address as /proc/net writes it: words in the machine's order, in hex."""
    host, _, port = text.partition(":")
    raw = b"".join(
        int(host[at : at + 8], 16).to_bytes(4, "little" if _LITTLE else "big")
        for at in range(0, len(host), 8)
    )
    return _plain(ipaddress.ip_address(raw)), int(port, 16)


_LITTLE = socket.ntohl(1) != 1


def _links(pid: int) -> Iterable[str]:
    try:
        places = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return
    for place in places:
        with contextlib.suppress(OSError):
            yield str(place.readlink())


class _Looking(Protocol):
    def holders(self, client: Address, server: Address) -> list[int]: ...

    def look(self, pid: int) -> Process | None: ...

    def around(self, process: Process) -> list[tuple[Process, ...]]: ...


def _chain(looking: _Looking, pid: int) -> tuple[Process, ...]:
    """A process and its ancestors; empty where it is gone."""
    found: list[Process] = []
    while pid > 0 and len(found) < _MOST_ANCESTORS:
        process = looking.look(pid)
        if process is None:
            break
        found.append(process)
        pid = process.parent
    return tuple(found)


class _ByProc:
    """Looks at processes by /proc."""

    def holders(self, client: Address, server: Address) -> list[int]:
        """Every process that has the client's end open, as far as we may see."""
        inode = _inode(client, server)
        if inode is None:
            return []
        wanted = f"socket:[{inode}]"
        pids = _pids()
        # One that may not be looked at is somewhere all the same: no process has the number 0.
        return [pid for pid in pids if any(link == wanted for link in _links(pid))] or [0]

    def look(self, pid: int) -> Process | None:
        place = _PROC / str(pid)
        try:
            head, _, rest = (place / "stat").read_text("utf-8", "replace").rpartition(")")
            words = rest.split()
            argv = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return None
        called = (Path(word.decode("utf-8", "replace")).name for word in argv[:2])
        return Process(
            pid,
            parent=int(words[1]),
            group=int(words[2]),
            terminal=int(words[4]),
            foreground=int(words[5]),
            names=frozenset({head.partition("(")[2], *called}),
            env=_environment(place),
        )

    def around(self, process: Process) -> list[tuple[Process, ...]]:
        """A pseudo-terminal shows what it shows to whoever has its other end, and that may be an agent's."""
        if not process.terminal:
            return []
        index = _index(process.terminal)
        found = []
        for pid in _pids():
            if pid == process.pid:
                continue
            each = self.look(pid)
            if each is None:
                continue
            waits = each.terminal == process.terminal and each.group == each.foreground
            if waits or (index is not None and _has_other_end(pid, index)):
                found.append(_chain(self, pid))
        return found


class ByPsutil:
    """The same where there is no /proc. Which group a terminal listens to cannot be told there."""

    def holders(self, client: Address, server: Address) -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.uids().effective == os.geteuid():
                    ends = {(each.laddr, each.raddr) for each in process.net_connections("tcp")}
                    found += [process.pid] if (client, server) in ends else []
        return found

    def look(self, pid: int) -> Process | None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                argv, parent, terminal = process.cmdline(), process.ppid(), process.terminal()
                names = {process.name(), *(Path(word).name for word in argv[:2])}
        except psutil.Error:
            return None
        env = None
        with contextlib.suppress(psutil.Error):
            env = process.environ()
        group = _group(pid) if terminal else 0
        number = os.stat(terminal).st_rdev if terminal else 0  # noqa: PTH116 - a text of psutil's
        return Process(pid, parent, group, number, group, frozenset(names), env)

    def around(self, process: Process) -> list[tuple[Process, ...]]:  # noqa: ARG002 - nobody tells it here
        return []


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _pids() -> list[int]:
    return [int(place.name) for place in _PROC.iterdir() if place.name.isdigit()]


def _index(terminal: int) -> int | None:
    """Which pseudo-terminal this is, by its device number; ``None`` for another kind of terminal."""
    major, minor = os.major(terminal), os.minor(terminal)
    return (major - _PTS_FIRST) * _PTS_EACH + minor if _PTS_FIRST <= major <= _PTS_LAST else None


def _has_other_end(pid: int, index: int) -> bool:
    """Whether a process has the other end of a pseudo-terminal open, as far as we may see."""
    folder = _PROC / str(pid)
    try:
        numbers = [place.name for place in (folder / "fd").iterdir()]
    except OSError:
        return False
    for number in numbers:
        with contextlib.suppress(OSError):
            if (folder / "fd" / number).readlink().name == _PTMX:
                lines = (folder / "fdinfo" / number).read_text("ascii").splitlines()
                if [_TTY_INDEX, str(index)] in [line.split() for line in lines]:
                    return True
    return False


def _environment(place: Path) -> Mapping[str, str] | None:
    try:
        entries: Sequence[bytes] = (place / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if name}


def _terminal_path(number: int) -> Path | None:
    """The device file of a terminal, where it is the one with this number."""
    for path in _DEV.glob("ttys*") if not _PROC.exists() else ():
        if path.stat().st_rdev == number:
            return path
    index = _index(number)
    path = Path(f"/dev/tty{os.minor(number)}" if index is None else f"/dev/pts/{index}")
    try:
        found = path.stat()
    except OSError:
        return None
    return path if stat.S_ISCHR(found.st_mode) and found.st_rdev == number else None
