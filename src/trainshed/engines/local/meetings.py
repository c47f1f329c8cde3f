"""Where the members of a gang meet on this machine: an address of their own each, and one port (rule 18).

A gang has a folder, ``gangs/GANG``; what was decided for it stands in ``meeting.json`` until its members are
forgotten. Its addresses and its port are nobody else's until all members are released.
"""

from __future__ import annotations

import errno
import re
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from ipaddress import IPv4Address
from itertools import count, islice
from pathlib import Path
from typing import Any

from trainshed.engines.contract import EngineError, Host, Meeting
from trainshed.jobkit import folder, tree

MEETING, RELEASED, JOINED = "meeting.json", "released", "joined"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,111}")
_FIRST_NET, _NETS = 64, 64
"""Engines on one machine take different parts of 127.64.0.0/10, so that their gangs rarely try the same."""
_PORTS = range(20_000, 32_000)
"""Below the range from which the kernel takes ports for connections."""
_LABEL_CHARS = 63


class Meetings:
    """The gangs of one engine folder. Thread-safe."""

    def __init__(self, root: Path, instance: str, *, names: bool) -> None:
        self.root = root
        self._names = names
        """Whether host names can be made to resolve; otherwise addresses are the names."""
        number = int(instance, 16)
        self._net = IPv4Address(f"127.{_FIRST_NET + number % _NETS}.0.0")
        self._first_port = number % len(_PORTS)
        self._guard = threading.Lock()

    def meet(self, gang_id: str, nodes: Sequence[str], slots: Sequence[int]) -> Meeting:
        """See `Engine.meet`. Raises `EngineError` where no port is free."""
        if not _ID.fullmatch(gang_id):
            raise EngineError("ATTEMPT_ID_INVALID", f"{gang_id!r} is no attempt id", retryable=False)
        if not nodes or len(nodes) != len(slots):
            message = f"a gang needs a node and slots for each member, not {len(nodes)} and {len(slots)}"
            raise EngineError("LAUNCH_INVALID", message, retryable=False)
        with self._guard:
            path = self.root / gang_id
            if known := folder.read(path, MEETING):
                return _meeting(known)
            decided = self._decide(gang_id, len(nodes), slots)
            try:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.write_durably(path, MEETING, decided)
                folder.sync_directory(self.root)
            except OSError as error:
                message = f"where {gang_id} meets cannot be recorded: {error}"
                raise EngineError("ENGINE_DISK", message, retryable=True) from error
            return _meeting(decided)

    def join(self, gang_id: str, rank: int, slots: int) -> Host:
        """See `Engine.join`."""
        with self._guard:
            path = self.root / gang_id
            met = folder.read(path, MEETING) if _ID.fullmatch(gang_id) else None
            if not met or rank < met["size"]:
                raise EngineError("LAUNCH_INVALID", f"nobody joins {gang_id} as rank {rank}", retryable=False)
            name = f"{JOINED}.{rank}"
            known = folder.read(path, name)
            if not known:
                address = next(self._free_addresses(list(self._held())))
                known = self._host(gang_id, rank, address, slots)
                try:
                    folder.write_durably(path, name, known)
                except OSError as error:
                    message = f"where {gang_id}.{rank} is reached cannot be recorded: {error}"
                    raise EngineError("ENGINE_DISK", message, retryable=True) from error
            return Host(known["name"], known["address"], known["slots"])

    def _decide(self, gang_id: str, size: int, slots: Sequence[int]) -> dict[str, Any]:
        held = list(self._held())
        ports = {each.get(name, 0) for each in held for name in ("port", "check_port", "dashboard_port")}
        chosen = list(islice(self._free_addresses(held), size))
        hosts = [
            self._host(gang_id, rank, address, amount)
            for rank, (address, amount) in enumerate(zip(chosen, slots, strict=True))
        ]
        port = self._free_port(chosen[0], ports)
        check_port = self._free_port(chosen[0], {*ports, port})
        found = {"hosts": hosts, "port": port, "check_port": check_port, "size": size}
        return found | {"dashboard_port": self._free_port(chosen[0], {*ports, port, check_port})}

    def _free_addresses(self, held: Sequence[dict[str, Any]]) -> Iterator[str]:
        taken = {host["address"] for each in held for host in each["hosts"]}
        for number in count(1):
            # Below the last byte 1 to 250: nothing that a program takes for a network or a broadcast.
            address = str(self._net + number)
            if number % 256 not in {0, *range(251, 256)} and address not in taken:
                yield address

    def _host(self, gang_id: str, rank: int, address: str, slots: int) -> dict[str, Any]:
        label, ending = re.sub(r"[^a-z0-9]+", "-", gang_id.lower()).strip("-"), f"-{rank}"
        name = label[: _LABEL_CHARS - len(ending)].rstrip("-") + ending if self._names else address
        return {"name": name, "address": address, "slots": max(1, slots)}

    def check_port(self, gang_id: str, meeting: Meeting) -> int:
        """Where the check before training of a gang meets on its first host.

        Where another engine decided the meeting, that is the port after its own: all members must agree.
        """
        known = folder.read(self.root / gang_id, MEETING)
        return int(known["check_port"]) if known else meeting.port + 1

    def _free_port(self, address: str, taken: Collection[int]) -> int:
        for step in range(len(_PORTS)):
            port = _PORTS[(self._first_port + step) % len(_PORTS)]
            if port not in taken and is_free(port, address):
                self._first_port += step + 1
                return port
        raise EngineError("NO_FREE_PORT", f"no port of {address} is free", retryable=True)

    def _held(self) -> Iterator[dict[str, Any]]:
        """What was decided for gangs that are not released, with those that joined and are there."""
        if not self.root.is_dir():
            return
        for path in self.root.iterdir():
            if not folder.exists(path, RELEASED) and (known := folder.read(path, MEETING)):
                there = [rank for rank in _joined(path) if not folder.exists(path, f"{RELEASED}.{rank}")]
                joined = [folder.read(path, f"{JOINED}.{rank}") for rank in there]
                yield {**known, "hosts": [*known["hosts"], *(each for each in joined if each)]}

    def of(self, attempt_id: str) -> Path | None:
        """The folder of the gang that an attempt is a member of, if there is one."""
        gang_id, _, rank = attempt_id.rpartition(".")
        path = self.root / gang_id
        return path if gang_id and rank.isdecimal() and path.is_dir() else None

    def released(self, attempt_id: str) -> None:
        """Note that a member is released; with the last one the gang's addresses and port are free."""
        path = self.of(attempt_id)
        if path is None:
            return
        (path / f"{RELEASED}.{attempt_id.rpartition('.')[2]}").touch()
        if all(folder.exists(path, f"{RELEASED}.{rank}") for rank in _ranks(path)):
            (path / RELEASED).touch()

    def forgotten(self, attempt_id: str, attempts: Path) -> None:
        """Remove the gang of a member that was forgotten if it was the last one with a folder."""
        path = self.of(attempt_id)
        if path is not None and not _has_members(path, attempts):
            tree.remove(path)

    def sweep(self, known: Collection[str], attempts: Path) -> None:
        """Let go of what is held for gangs without a member in ``known``, and of those without a folder."""
        if not self.root.is_dir():
            return
        gangs = {each.rpartition(".")[0] for each in known} | set(known)
        for path in list(self.root.iterdir()):
            if path.name in gangs:
                continue
            if _has_members(path, attempts):
                (path / RELEASED).touch()
            else:
                tree.remove(path)


def _has_members(path: Path, attempts: Path) -> bool:
    return any((attempts / f"{path.name}.{rank}").exists() for rank in _ranks(path))


def _ranks(path: Path) -> list[int]:
    """Every member that a gang ever had."""
    size = (folder.read(path, MEETING) or {}).get("size", 0)
    return [*range(size), *_joined(path)]


def _joined(path: Path) -> list[int]:
    names = (each.name.rpartition(".") for each in path.glob(f"{JOINED}.*"))
    return sorted(int(rank) for name, _, rank in names if name == JOINED and rank.isdecimal())


def free_port(address: str) -> int:
    """A port that is free now. Raises `EngineError`."""
    for port in _PORTS:
        if is_free(port, address):
            return port
    raise EngineError("NO_FREE_PORT", f"no port of {address} is free", retryable=True)


def is_free(port: int, address: str) -> bool:
    """Whether a program could listen on ``port``, at this address as well as at all of them."""
    for family, place in ((socket.AF_INET, address), (socket.AF_INET, ""), (socket.AF_INET6, "::")):
        try:
            with closing(socket.socket(family, socket.SOCK_STREAM)) as trial:
                trial.bind((place, port))
        except OSError as error:
            if family is socket.AF_INET or error.errno not in _NO_IPV6:
                return False
    return True


_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
"""A machine without IPv6."""


def _meeting(known: dict[str, Any]) -> Meeting:
    hosts = tuple(Host(each["name"], each["address"], each["slots"]) for each in known["hosts"])
    return Meeting(hosts, known["port"], known.get("dashboard_port", 0))
