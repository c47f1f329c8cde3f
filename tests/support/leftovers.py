"""Processes that mention a folder: what a test started in it and has to have ended."""

from __future__ import annotations

from pathlib import Path

from support.processes import all_pids, command_of


def processes_of(folder: Path) -> list[str]:
    """Command lines, of live processes, that name ``folder`` or something below it."""
    return [command for command in map(command_of, all_pids()) if str(folder) in command]
