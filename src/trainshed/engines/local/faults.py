"""What broke on this machine (C34): GPUs by NVML and the kernel's messages, network devices by their link.

A simulated GPU breaks when an administrator, or a test, says so: each line ``gpu:INDEX reason`` or ``node
reason`` of the file ``faults`` in the engine's folder is a fault for as long as it stands there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainshed.engines.local import gpus
from trainshed.model.resources import Gpu

HOOK = "faults"
"""File of the engine's folder in which faults are made up."""
XIDS = {
    48: "double-bit memory error",
    62: "internal micro-controller halt",
    63: "memory page or row retired",
    64: "memory page or row could not be retired",
    74: "NVLink error",
    79: "fell off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
}
"""Errors of the driver after which a GPU is not to be trusted."""
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")
_READ_BYTES = 1 << 13
_INTERFACES = Path("/sys/class/net")
_INFINIBAND = Path("/sys/class/infiniband")


class Faults:
    """Remembers what broke since it was made. Not thread-safe."""

    def __init__(self, root: Path, node: str) -> None:
        self._hook = root / HOOK
        self._node = node
        self._found: dict[str, str] = {}
        self._known: dict[str, Gpu] = {}
        """Real GPUs that were there once, by id: one that is gone is missing from later lists."""
        self._links = _links()
        self._messages = _open_messages()

    def found(self, known: Sequence[Gpu]) -> Mapping[str, str]:
        """``NODE`` or ``NODE/gpu:INDEX`` -> the evidence in a sentence, of these GPUs."""
        self._known |= {gpu.uuid: gpu for gpu in known if not gpu.simulated}
        real = list(self._known.values())
        if real:
            self._look_at_devices(real)
        self._read_messages(real)
        made_up = self._made_up({gpu.index for gpu in known if gpu.simulated})
        return {**self._found, **self._look_at_links(), **made_up}

    def _made_up(self, simulated: set[int]) -> dict[str, str]:
        found = {}
        with suppress(OSError, UnicodeDecodeError):
            for line in self._hook.read_text(encoding="utf-8").splitlines():
                what, _, why = line.strip().partition(" ")
                reason = why.strip() or "made up for a test"
                index = what.removeprefix("gpu:")
                if what == "node":
                    found[self._node] = reason
                elif what != index and index.isdecimal() and int(index) in simulated:
                    found[f"{self._node}/gpu:{int(index)}"] = reason
        return found

    def _look_at_devices(self, real: Sequence[Gpu]) -> None:
        answering = {gpu.uuid for gpu in gpus.inventory()}
        for gpu in real:
            place = f"{self._node}/gpu:{gpu.index}"
            if gpu.uuid not in answering:
                self._found.setdefault(place, f"GPU {gpu.index} ({gpu.uuid}) does not answer any more.")

    def _look_at_links(self) -> dict[str, str]:
        """Links that were up when we began and are not now: they may come back."""
        now = _links()
        down = sorted(name for name, up in self._links.items() if up and not now.get(name, False))
        self._links |= {name: up for name, up in now.items() if up}
        return {self._node: f"The link of {' and '.join(down)} is down."} if down else {}

    def _read_messages(self, real: Sequence[Gpu]) -> None:
        """The kernel's messages since we began, where they can be read."""
        if self._messages < 0:
            return
        while True:
            try:
                message = os.read(self._messages, _READ_BYTES)
            except BrokenPipeError:
                continue  # some were overwritten before we read them
            except OSError:
                return
            for bus, number in _XID.findall(message):
                if int(number) in XIDS:
                    self._note(bus.decode(), int(number), real)

    def _note(self, bus: str, number: int, real: Sequence[Gpu]) -> None:
        uuid = gpus.at_bus(bus)
        for gpu in real:
            if gpu.uuid == uuid:
                sentence = f"GPU {gpu.index} reported XID {number}: {XIDS[number]}."
                self._found.setdefault(f"{self._node}/gpu:{gpu.index}", sentence)
                return
        if real:  # a lost device has no address any more
            self._found.setdefault(self._node, f"The GPU at {bus} reported XID {number}: {XIDS[number]}.")

    def close(self) -> None:
        """Let go of the kernel's messages."""
        if self._messages >= 0:
            os.close(self._messages)
            self._messages = -1


def _links() -> dict[str, bool]:
    """Whether the link is up, by device: network cards with hardware behind them, and InfiniBand ports."""
    found = {}
    with suppress(OSError):
        for place in _INTERFACES.iterdir():
            if (place / "device").exists():
                found[place.name] = _read(place / "carrier") == "1"
    with suppress(OSError):
        for place in _INFINIBAND.glob("*/ports/*"):
            found[f"{place.parent.parent.name}/{place.name}"] = _read(place / "state").startswith("4")
    return found


def _read(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""  # the carrier of an interface that is down cannot be read


def _open_messages() -> int:
    """The kernel's messages from now on; -1 where nobody may read them."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        os.close(fd)
        return -1
    return fd
