"""Whether the NVIDIA driver of this machine is what an image's CUDA libraries ask for (E45)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

import pynvml  # type: ignore[import-untyped] # nvidia-ml-py ships no types

from trainshed.engines.local.gpus import nvml

_TERM = re.compile(r"(cuda|driver|brand|arch)(=|!=|>=|<=|>|<)([A-Za-z0-9.]+)")
_COMPARE: Mapping[str, Callable[[list[int], list[int]], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def fault(requires: str) -> str | None:
    """Why an image with this ``NVIDIA_REQUIRE_CUDA`` cannot use the driver here, or ``None``.

    Nothing is asked of a machine without a driver: what runs there uses no GPU.
    """
    with nvml() as there:
        if not there or not requires:
            return None
        try:
            number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
            driver = pynvml.nvmlSystemGetDriverVersion()
        except pynvml.NVMLError:
            return None
    text = driver.decode() if isinstance(driver, bytes) else str(driver)
    facts = {"cuda": f"{number // 1000}.{number % 1000 // 10}", "driver": text}
    if satisfied(requires, facts):
        return None
    asked = requires.split(maxsplit=1)[0]
    return f"the image asks for {asked}, and the driver here ({text}) offers CUDA {facts['cuda']}"


def satisfied(requires: str, facts: Mapping[str, str]) -> bool:
    """Whether one of the alternatives (between spaces) holds in all its terms (between commas).

    Terms about what is not in ``facts`` (a GPU's brand or architecture) hold. The alternatives with a
    brand are how images allow older drivers with their own compatibility libraries.
    """
    alternatives = requires.split()
    return not alternatives or any(
        all(_holds(term, facts) for term in alternative.split(",")) for alternative in alternatives
    )


def _holds(term: str, facts: Mapping[str, str]) -> bool:
    match = _TERM.fullmatch(term)
    if match is None or match[1] not in facts:
        return True
    return _COMPARE[match[2]](_parts(facts[match[1]], match[3]), _parts(match[3], match[3]))


def _parts(version: str, like: str) -> list[int]:
    """A version's numbers, as many as the term has."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    return numbers[: len(re.findall(r"\d+", like))]
