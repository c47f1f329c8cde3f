"""The variables of a program: a short list taken over from the server, then the program's, then ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from trainshed.model.resources import Gpu

_INSIDE = {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "trainshed", "LOGNAME": "trainshed"}  # noqa: S108 - its own
"""In a sandbox nothing else can be written, and no user database knows the user's id."""
_TAKEN_OVER = frozenset(
    {
        "CUDA_HOME",
        "CUDA_PATH",
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "SHELL",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TMPDIR",
        "TZ",
        "USER",
    }
)


def base_environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a program may see of the server's own environment: never its settings, keys or proxies."""
    source = os.environ if source is None else source
    taken = {name: value for name, value in source.items() if name in _TAKEN_OVER or name.startswith("LC_")}
    taken.setdefault("PATH", os.defpath)
    taken.setdefault("HOME", "/")
    return taken


def program_environment(
    own: Mapping[str, str],
    gpus: Sequence[Gpu],
    *,
    attempt_id: str,
    instance: str,
    real_gpus_present: bool,
    isolated: bool,
    image: bool = False,
) -> dict[str, str]:
    """The whole environment of one program; with an image, what is added to the image's own.

    ``CUDA_VISIBLE_DEVICES`` holds the assigned indices; in a sandbox or an image the GPUs' own ids, as
    those that are there have other indices when others are not. It is empty for a program without GPUs, and
    for simulated ones on a machine with real GPUs: nobody reaches a device that was not handed out.
    """
    simulated = any(gpu.simulated for gpu in gpus)
    indices = ",".join(str(gpu.index) for gpu in gpus)
    visible = ",".join(gpu.uuid for gpu in gpus) if (isolated or image) and not simulated else indices
    ours = {
        "TRAINSHED_ATTEMPT_ID": attempt_id,
        "TRAINSHED_INSTANCE": instance,
        "TRAINSHED_GPUS": indices,
        "CUDA_VISIBLE_DEVICES": "" if simulated and real_gpus_present else visible,
        # NVML counts by PCI bus; CUDA's own default order is by speed and would mean other devices.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if gpus:
        ours["TRAINSHED_GPU_MODEL"] = gpus[0].model
    if simulated:
        ours["TRAINSHED_GPUS_SIMULATED"] = "1"
    # Output goes to a pipe, where Python would hold back kilobytes of progress that a person waits for.
    defaults = {"PYTHONUNBUFFERED": "1"} | (_INSIDE if isolated else {})
    return ({} if image else base_environment()) | defaults | dict(own) | ours
