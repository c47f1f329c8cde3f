"""Where attempts run: one contract, one folder an engine; the only room that starts or stops anything."""

from trainshed.engines.contract import (
    EndedBy,
    Engine,
    EngineError,
    Exit,
    Launch,
    Limits,
    Mount,
    Observation,
    Phase,
    Release,
    TreeFile,
)
from trainshed.engines.registry import ENGINES, load
from trainshed.model.logs import LogFiles

__all__ = [
    "ENGINES",
    "EndedBy",
    "Engine",
    "EngineError",
    "Exit",
    "Launch",
    "Limits",
    "LogFiles",
    "Mount",
    "Observation",
    "Phase",
    "Release",
    "TreeFile",
    "load",
]
