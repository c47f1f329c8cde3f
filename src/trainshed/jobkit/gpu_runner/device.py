"""Which accelerator is really here: asked of the driver, without a framework."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

_SECONDS = 20.0
_QUERY = "--query-gpu=index,uuid,name,memory.total"
_MIB = 1 << 20


def find() -> dict[str, object]:
    """``kind``, ``name``, ``vram_gb`` (decimal GB of the smallest one) and ``count``; never raises."""
    cards = _visible(_nvidia())
    if cards:
        memory = [float(card[3]) for card in cards if card[3].replace(".", "", 1).isdigit()]
        vram = round(min(memory) * _MIB / 1e9, 1) if memory else None
        return {"kind": "cuda", "name": cards[0][2], "vram_gb": vram, "count": len(cards)}
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return {"kind": "mps", "name": "Apple", "vram_gb": None, "count": 1}
    return {"kind": "cpu", "name": None, "vram_gb": None, "count": 0}


def _nvidia() -> list[list[str]]:
    program = shutil.which("nvidia-smi")
    if program:
        try:
            asked = [program, _QUERY, "--format=csv,noheader,nounits"]
            said = subprocess.run(  # noqa: S603 - the driver's own program
                asked, capture_output=True, timeout=_SECONDS, check=True, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.SubprocessError):
            return _driver()
        rows = [
            [cell.strip() for cell in row.split(",")]
            for row in said.stdout.decode("utf-8", "replace").splitlines()
        ]
        return [row for row in rows if len(row) == len(_QUERY.split(","))]
    return _driver()


def _driver(place: str = "/proc/driver/nvidia/gpus") -> list[list[str]]:
    """The cards by the kernel's own list, which does not say how much memory they have."""
    cards = []
    try:
        for number, card in enumerate(sorted(os.listdir(place))):
            with open(os.path.join(place, card, "information"), encoding="utf-8", errors="replace") as file:
                facts = dict(line.split(":", 1) for line in file if ":" in line)
            uuid, model = facts.get("GPU UUID", ""), facts.get("Model", "NVIDIA")
            cards.append([str(number), uuid.strip(), model.strip(), ""])
    except (OSError, ValueError):
        pass
    return cards


def _visible(cards: list[list[str]]) -> list[list[str]]:
    """Those that the program may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return cards
    names = [name.strip() for name in allowed.split(",") if name.strip()]
    by_name = [card for card in cards if any(name == card[0] or _is(card[1], name) for name in names)]
    if not by_name and any(name.startswith("MIG-") for name in names):
        return cards  # a part of one of them; which, only the driver's library says
    return by_name


def _is(uuid: str, name: str) -> bool:
    return name.startswith("GPU-") and uuid.startswith(name)
