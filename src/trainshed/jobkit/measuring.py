"""What a replica uses, and what its program says of itself in Prometheus text (C37).

One thread of the shim measures every few seconds and appends a line for each source to ``samples.jsonl``.
"""

from __future__ import annotations

import _thread
import ctypes
import json
import math
import os
import re
import socket
import time

from trainshed.jobkit import folder, linux, reports, tree

_FILE_BYTES = 8 << 20
"""Above this the file makes way for a new one; the one before is kept."""
_BODY_BYTES = 1 << 20
_SCRAPE_SECONDS = 5.0
_MOST_SERIES = 500
_SERIES_CHARS = 300
_PATIENCE = 4
"""How many measurements a program may take to open its endpoint."""
_MISSES = 3
_DISK_SECONDS = 60.0
_LISTENS = "0A"
_SERIES = re.compile(r'([A-Za-z_:][\w:]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?)[ \t]+(\S+)')
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.jobkit.folder import Json


class Sampler:
    """Measures until it is stopped. ``members`` says which processes are the program's now."""

    def __init__(
        self,
        path: str,
        settings: Json,
        say: reports.Reports,
        members: Callable[[], set[int]],
        main: int,
        hide: Callable[[str], str],
    ) -> None:
        self._path = path
        self._every = max(0.05, float(settings["sample_seconds"]))
        self._say = say
        self._members = members
        self._main = main
        self._hide = hide
        self._endpoints = [_Endpoint(int(port), str(where)) for port, where in settings["endpoints"]]
        self._gpus = _Gpus(settings["gpus"])
        self._cpu: dict[int, int] = {}
        self._cpu_at = time.monotonic()
        self._disk = 0
        self._disk_at = 0.0
        self._stop = _thread.allocate_lock()
        self._stop.acquire()
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def start(self) -> None:
        """Begin to measure, in a thread of its own."""
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """Measure no more; returns when the thread is through with what it is at, within bounds."""
        self._stop.release()
        self._done.acquire(timeout=_SCRAPE_SECONDS)

    def _run(self) -> None:
        try:
            self._enter_network()
            self._use()  # what was used until now is nothing that happens from now on
            while not self._stop.acquire(timeout=self._every):
                self._measure()
        finally:
            self._done.release()

    def _enter_network(self) -> None:
        """Be where the program's own 127.0.0.1 is; a network namespace belongs to a thread."""
        try:
            theirs = os.stat(f"/proc/{self._main}/ns/net").st_ino
            if theirs != os.stat("/proc/thread-self/ns/net").st_ino:
                fd = os.open(f"/proc/{self._main}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    linux.enter_namespace(fd)
                finally:
                    os.close(fd)
        except OSError:
            return  # its endpoints will not be found, and that is reported

    def _measure(self) -> None:
        now = time.time()
        lines = [{"at": now, "values": self._use() | self._gpus.measure()}]
        for endpoint in self._endpoints:
            values = self._scrape(endpoint)
            if values:
                lines.append({"at": now, "endpoint": endpoint.name, "values": values})
        self._append(b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def _append(self, data: bytes) -> None:
        name = os.path.join(self._path, folder.SAMPLES)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600)
            try:
                size = os.fstat(fd).st_size
                if os.write(fd, data) != len(data):
                    os.ftruncate(fd, size)
                elif size + len(data) > _FILE_BYTES:
                    os.rename(name, os.path.join(self._path, folder.OLDER_SAMPLES))
            finally:
                os.close(fd)
        except OSError:
            return  # a full disk

    # What it uses

    def _use(self) -> dict[str, float]:
        now = time.monotonic()
        cpu: dict[int, int] = {}
        memory = shared = 0
        for pid in self._members():
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                with open(f"/proc/{pid}/statm", "rb") as file:
                    _, resident, with_others, *_ = map(int, file.read().split())
            except (OSError, ValueError):
                continue
            cpu[pid] = int(fields[11]) + int(fields[12])
            memory += resident - with_others
            shared = max(shared, with_others)  # libraries are counted once
        before, self._cpu = self._cpu, cpu
        ticks = sum(max(0, used - before.get(pid, 0)) for pid, used in cpu.items())
        seconds, self._cpu_at = max(now - self._cpu_at, 1e-3), now
        if now >= self._disk_at:
            places = (folder.WORK, folder.TEMPORARY)
            self._disk = sum(tree.used_bytes(os.path.join(self._path, name)) for name in places)
            self._disk_at = now + _DISK_SECONDS
        return {
            "cpu_percent": round(100 * ticks / _TICK / seconds, 2),
            "memory_bytes": (memory + shared) * _PAGE,
            "disk_bytes": self._disk,
            "processes": len(cpu),
        }

    # What it says of itself

    def _scrape(self, endpoint: _Endpoint) -> dict[str, float]:
        if self._is_taken(endpoint):
            return {}
        try:
            body = _get(endpoint.port, endpoint.path)
        except (OSError, ValueError) as error:
            self._miss(endpoint, str(error))
            return {}
        if self._is_taken(endpoint):  # since we looked
            return {}
        endpoint.misses, endpoint.seen = 0, True
        return parse(self._hide(body.decode("utf-8", "replace")))

    def _is_taken(self, endpoint: _Endpoint) -> bool:
        """Whether somebody else serves the port, which is reported once."""
        listening = _listener(self._main, endpoint.port)
        if not listening or _is_ours(listening, self._members()):
            return False
        if not endpoint.taken:
            endpoint.taken = True
            words = (
                f"Port {endpoint.port} of this machine is served by another program: its metrics are not"
                f" those of this replica, and are left out."
            )
            self._say.say("METRICS_PORT_TAKEN", words, reports.WARNING, port=endpoint.port)
        return True

    def _miss(self, endpoint: _Endpoint, why: str) -> None:
        endpoint.misses += 1
        if not endpoint.down and endpoint.misses >= (_MISSES if endpoint.seen else _PATIENCE):
            endpoint.down = True
            words = f"Nothing answers at 127.0.0.1:{endpoint.name}: {why}."
            self._say.say("METRICS_DOWN", words, reports.WARNING, port=endpoint.port, path=endpoint.path)


class _Endpoint:
    __slots__ = ("down", "misses", "name", "path", "port", "seen", "taken")

    def __init__(self, port: int, path: str) -> None:
        self.port = port
        self.path = path
        self.name = f"{port}{path}"
        self.seen = self.down = self.taken = False
        self.misses = 0


def parse(text: str) -> dict[str, float]:
    """The series of Prometheus text with their finite values, up to a bound."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#") or not (match := _SERIES.match(line.strip())):
            continue
        name, written = match.groups()
        try:
            value = float(written)
        except ValueError:
            continue
        if math.isfinite(value) and len(name) <= _SERIES_CHARS:
            found[name] = value
            if len(found) == _MOST_SERIES:
                break
    return found


def _get(port: int, path: str) -> bytes:
    """The body of an answer, as an HTTP/1.0 client gets it: until the other end closes."""
    deadline = time.monotonic() + _SCRAPE_SECONDS
    with socket.create_connection(("127.0.0.1", port), timeout=_SCRAPE_SECONDS) as connection:
        ask = (f"GET {path} HTTP/1.0", f"Host: 127.0.0.1:{port}", "Accept: text/plain", "Connection: close")
        connection.sendall("\r\n".join((*ask, "", "")).encode())
        data = b""
        while len(data) <= _BODY_BYTES:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("it took too long")
            connection.settimeout(left)
            piece = connection.recv(1 << 16)
            if not piece:
                break
            data += piece
        else:
            raise ValueError("it says more than a megabyte")
    head, _, body = data.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise ValueError(f"it answers with status {b''.join(status).decode('ascii', 'replace') or 'none'}")
    return body


def _listener(pid: int, port: int) -> str:
    """The socket, in the network of ``pid``, that a connection to 127.0.0.1 at this port reaches."""
    wild = ""
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="utf-8") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        for row in rows:
            address, _, number = row[1].rpartition(":")
            if row[3] != _LISTENS or int(number, 16) != port:
                continue
            if address in _LOOPBACK:
                return row[9]
            if not address.strip("0"):
                wild = row[9]
    return wild


def _is_ours(inode: str, members: set[int]) -> bool:
    wanted = f"socket:[{inode}]"
    for pid in members:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{name}") == wanted:
                    return True
        except OSError:
            continue
    return False


_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "7F000001"}
"""127.0.0.1 as the kernel writes it, also in IPv6 and on machines of the other byte order."""


class _Gpus:
    """Real GPUs through the driver's own library, where there are any."""

    class _Rates(ctypes.Structure):
        _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))

    class _Memory(ctypes.Structure):
        _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))

    def __init__(self, assigned: list[tuple[int, str, bool]]) -> None:
        self._handles: list[tuple[int, ctypes.c_void_p]] = []
        real = [(index, uuid) for index, uuid, simulated in assigned if not simulated]
        if not real:
            return
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self._library.nvmlInit_v2() != 0:
            return
        for index, uuid in real:
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == 0:
                self._handles.append((index, handle))

    def measure(self) -> dict[str, float]:
        """Utilisation and memory of each, by its index on the machine."""
        found: dict[str, float] = {}
        for index, handle in self._handles:
            rates, memory = self._Rates(), self._Memory()
            if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                found[f"gpu{index}_utilization_percent"] = float(rates.gpu)
            if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                found[f"gpu{index}_memory_bytes"] = float(memory.used)
        return found
