"""GPU names, for the rooms that decide: the rules are the model's, see `trainshed.model.gpus`."""

from __future__ import annotations

from trainshed.model.gpus import matching_models, nearest_models

__all__ = ["matching_models", "nearest_models"]
