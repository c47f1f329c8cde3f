"""Making a spec out of a folder: what happens before a script Job is submitted (contract G, section e)."""

from trainshed.sdk.packing.bundle import Packed, pack
from trainshed.sdk.packing.errors import InvalidSpec
from trainshed.sdk.packing.prepare import Prepared, prepare

__all__ = ["InvalidSpec", "Packed", "Prepared", "pack", "prepare"]
