"""The environment in which tests train with PyTorch; made by scripts/install-torch."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

_VENV = Path(__file__).resolve().parents[2] / ".venv-torch"


@functools.cache
def why_no_torch() -> str | None:
    """Why tests with PyTorch cannot run; ``None`` if they can."""
    if os.environ.get("TRAINSHED_TEST_TORCH") == "no":
        return "TRAINSHED_TEST_TORCH=no"
    # Not imported, which takes seconds: where it cannot be, the test itself says so.
    if not any(_VENV.glob("lib/python3*/site-packages/torch/__init__.py")):
        return "PyTorch is not there; run scripts/install-torch"
    return None


def torch_path() -> str:
    """A ``PATH`` on which ``python3`` and ``torchrun`` are PyTorch's; skips the test where it is missing."""
    if reason := why_no_torch():
        pytest.skip(reason)
    return f"{_VENV / 'bin'}:{os.environ['PATH']}"
