"""Started as ``python3 gpu_runner/__main__.py`` in the work folder of an Attempt."""

from __future__ import annotations

import os
import sys
import types


def _have_package() -> None:
    """Let this package be found under its whole name, where it was shipped without the packages above it."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name, places in (("trainshed", []), ("trainshed.jobkit", [os.path.dirname(here)])):
        package = types.ModuleType(name)
        package.__path__ = places
        sys.modules[name] = package
    if sys.path and os.path.abspath(sys.path[0]) == here:
        del sys.path[0]


def main() -> int:
    """Run the Job of the current folder; its exit status."""
    from trainshed.jobkit.gpu_runner import attempt  # noqa: PLC0415 - not before the package can be found

    return attempt.run(os.getcwd())


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    _have_package()
    sys.exit(main())
