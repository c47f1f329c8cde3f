"""Puts what a driver starts on a shared Ray cluster into the placement group that its task holds (X8).

Shipped as ``sitecustomize.py`` on the driver's PYTHONPATH. Ray captures the children of a task that runs in a
placement group, but knows no group for a driver; so its driver side is told of one when it is loaded. What a
driver places explicitly elsewhere is not held: this keeps programs in their place, it does not lock them in.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

VARIABLE = "TRAINSHED_RAY_GROUP"
"""The placement group's id in hexadecimal digits."""
_MODULE = "ray._private.worker"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def capture(module: ModuleType, group: str) -> None:
    """Have drivers see themselves as members of ``group``; tasks and actors stay what they are."""
    worker = module.Worker
    own_id = worker.placement_group_id.fget
    own_capture = worker.should_capture_child_tasks_in_placement_group.fget

    def group_id(self: Any) -> Any:
        if self.mode != module.SCRIPT_MODE:
            return own_id(self)
        from ray import PlacementGroupID  # noqa: PLC0415 - it is there once this is called

        return PlacementGroupID(bytes.fromhex(group))

    def captures(self: Any) -> Any:
        return True if self.mode == module.SCRIPT_MODE else own_capture(self)

    worker.placement_group_id = property(group_id)
    worker.should_capture_child_tasks_in_placement_group = property(captures)


class _Finder:
    """Lets others find the module, and changes it when it was executed."""

    def __init__(self, group: str) -> None:
        self._group = group

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader, execute, group = spec.loader, spec.loader.exec_module, self._group

        def exec_module(module: ModuleType) -> None:
            execute(module)
            capture(module, group)

        loader.exec_module = exec_module  # type: ignore[method-assign] # of this one loader
        return spec


def _chain(here: str) -> None:
    """Run the ``sitecustomize`` that ours stands in front of, if there is one."""
    if here in sys.path:
        sys.path.remove(here)
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")  # another one, by now
    except ImportError:
        pass


if __name__ == "sitecustomize":
    if os.environ.get(VARIABLE):
        sys.meta_path.insert(0, _Finder(os.environ[VARIABLE]))
    _chain(os.path.dirname(os.path.abspath(__file__)))
