"""Trainshed: freezes a training program, runs it on GPUs, and proves what it released."""

__version__ = "0.1.0"
