"""What is shipped with a packed project besides the project: the runner and the module `gpu`."""

from __future__ import annotations

import os

FOLDER = "gpu_runner"
"""Where it lies beside ``code/``."""
MODULE = "gpu_runner/lib/gpu.py"
ENTRY = (FOLDER + "/__main__.py",)
"""What the provider gives to ``python3``, in the work folder."""


def files() -> dict[str, bytes]:
    """Content by path, relative to the work folder, sorted: the same bytes each time."""
    here = os.path.dirname(os.path.abspath(__file__))
    sources = {MODULE: os.path.join(here, "gpu_module.py")}
    package = os.path.join(here, FOLDER)
    for name in os.listdir(package):
        if name.endswith(".py"):
            sources[f"{FOLDER}/{name}"] = os.path.join(package, name)
    found = {}
    for path in sorted(sources):
        with open(sources[path], "rb") as file:
            found[path] = file.read()
    return found
