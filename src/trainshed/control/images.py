"""Freezing images: a name becomes a digest before anything is allocated (E41-E44)."""

from __future__ import annotations

from trainshed.control.frozen import FrozenImage
from trainshed.model.errors import Refusal


class ImageFreezer:
    """Resolves image names. Asks registries, so it is never called inside a transaction. Thread-safe."""

    def freeze(self, reference: str, path: str) -> FrozenImage:
        """The digest that ``reference`` names now. Raises `Refusal`; ``path`` says where it stands."""
        raise Refusal.of(
            "EXECUTOR_UNAVAILABLE",
            f"the image `{reference}` was asked for, and this version runs no images",
            path=path,
        )
