"""Dependencies from a folder of wheels: collected beforehand, unpacked without pip on the spot."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
MOST_BYTES = 60_000_000
UNNEEDED = {"psycopg", "uvloop", "httptools"}
"""PostgreSQL, and what only makes HTTP faster: large, compiled once per Python."""


class WheelError(Exception):
    """The folder of wheels cannot be made or used."""


def prepare(folder: Path) -> int:
    """Download the wheels for every supported Python and build our own; returns their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    _pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(REPOSITORY))
    wanted = _dependencies()
    for version in PYTHONS:
        tag = f"cp{version.replace('.', '')}"
        targets = [f"--platform={platform}" for platform in PLATFORMS]
        targets += [
            f"--python-version={version}",
            "--implementation=cp",
            f"--abi={tag}",
            "--abi=abi3",
            "--abi=none",
        ]
        _pip("download", "--quiet", "--only-binary=:all:", "--dest", str(folder), *targets, *wanted)
    total = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if total > MOST_BYTES:
        raise WheelError(f"the wheels take {total:,} bytes, more than {MOST_BYTES:,}")
    return total


def unpack(folder: Path, target: Path) -> list[str]:
    """Unpack the wheels that fit this interpreter into ``target``; returns their file names."""
    chosen: dict[str, tuple[int, Path]] = {}
    for wheel in sorted(folder.glob("*.whl")):
        name, rank = wheel.name.split("-")[0].lower(), _rank(wheel.name)
        if rank and rank > chosen.get(name, (0, wheel))[0]:
            chosen[name] = (rank, wheel)
    if "trainshed" not in chosen:
        raise WheelError(
            f"{folder} holds no wheel of trainshed: run `scripts/gpu-check --prepare {folder}` first"
        )
    for _, wheel in chosen.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return [wheel.name for _, wheel in chosen.values()]


def _rank(name: str) -> int:
    """0 if the wheel does not fit this interpreter, else the more the better it fits."""
    *_, python, abi, _ = name.removesuffix(".whl").split("-")
    current = sys.version_info.minor
    if f"cp3{current}" in python.split("."):
        return 1000
    if abi == "abi3":
        least = min(int(found) for found in re.findall(r"cp3(\d+)", python))
        return 100 + least if least <= current else 0
    return 1 if "py3" in python.split(".") and abi == "none" else 0


def _dependencies() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = []
    for requirement in project["dependencies"]:
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        if name and name.group().lower() not in UNNEEDED:
            wanted.append(requirement)
    return wanted


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise WheelError(f"this did not work: {' '.join(command)}")
