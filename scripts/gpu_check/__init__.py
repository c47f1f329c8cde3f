"""The parts of ``scripts/gpu-check``. Standard library only."""
