"""What a replica of a Ray task runs: head, worker or submitter, by its configuration.

Started in the program's place with the Python on its PATH, from a folder of ours in its work directory.
Exit code 0 is a member that did its part; the submitter's is the driver's own.
"""

from __future__ import annotations

import json
import os
import sys

from trainshed.jobkit import ray_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.ray_wire import Json


def main(place: str = ray_wire.FOLDER) -> None:
    """Play the part that the configuration in ``place`` gives; exits."""
    place = os.path.abspath(place)
    with open(os.path.join(place, ray_wire.CONFIG), encoding="utf-8") as file:
        config: Json = json.load(file)
    config["place"] = place
    try:
        with open(os.path.join(place, ray_wire.CLUSTER), encoding="utf-8") as file:
            config["cluster"] = json.load(file)
    except FileNotFoundError:
        config["cluster"] = None
    code = _part(config)
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: the others see our connection end, and may then end the gang, only when the code is certain.
    os._exit(code)


def _part(config: Json) -> int:
    # Each member loads its own part only.
    if config["role"] == "head":
        from trainshed.jobkit.ray_head import Head  # noqa: PLC0415 - see above

        return Head(config).run()
    if config["role"] == "worker":
        from trainshed.jobkit.ray_worker import run  # noqa: PLC0415 - see above

        return run(config)
    from trainshed.jobkit.ray_submitter import Submitter  # noqa: PLC0415 - see above

    return Submitter(config).run()
