"""Where the server keeps its records of a Ray cluster: a folder for each address.

Records tell what is on a cluster, so they go with its address, not with what the catalogue calls it: one that
is renamed is still known, and another one that takes over a name is not believed to be the former.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from trainshed.jobkit import folder

_ADDRESS = "address.json"


def records_of(root: Path, cluster_id: str, address: str) -> Path:
    """The folder below ``root`` of the cluster at ``address``, made if need be. Raises `OSError`."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in sorted(root.iterdir()):
        if place.is_dir() and _address(place) == address:
            return place
    place = root / cluster_id
    if _address(place) is not None:
        place = root / f"{cluster_id}@{hashlib.sha256(address.encode()).hexdigest()[:12]}"
    # One without an address was made before these were recorded.
    place.mkdir(mode=0o700, exist_ok=True)
    folder.write_durably(place, _ADDRESS, {"address": address})
    return place


def _address(place: Path) -> str | None:
    known = folder.read(place, _ADDRESS)
    return None if known is None else str(known.get("address", ""))
