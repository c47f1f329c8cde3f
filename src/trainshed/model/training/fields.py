"""Every field of a training task, once: what it means, its type, limits and default.

`reading` takes the known keys and kinds from here, `schema` makes the JSON Schema, `explain` the help of
`trainshed train explain`. A path is relative to `spec`; `[]` is any entry of a list, `*` any key of a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from trainshed.model.training.field_table import (
    FLAG,
    MAP,
    Field,
    text,
    whole,
)
from trainshed.model.training.fields_advanced import ADVANCED, RAY_ONLY
from trainshed.model.training.fields_common import BASIC, COMPUTE, ENVIRONMENT
from trainshed.model.training.spec import (
    MAX_WORKERS,
)

ROOT_FIELDS: tuple[Field, ...] = (
    Field(
        "request_id",
        "Names this request for ever: sent again with the same input, it answers with the same task.",
        "C56",
        text(128),
        "1 to 128 printable characters.",
        derived="command line and console make one",
        codes=("INVALID_REQUEST_ID",),
    ),
    Field("type", "Always train.", "(b)", {"const": "train"}, default="train", codes=("INVALID_JOB_TYPE",)),
    Field("spec", "The task.", "(b)", MAP, required=True),
    Field(
        "allow_duplicate",
        "Create it although the same was submitted a moment ago.",
        "C56",
        FLAG,
        derived="true with a request_id, which tells by itself; else false",
    ),
    Field("smoke", "`validate` only: judge a small copy of the task.", "C16", MAP),
    Field(
        "smoke.minutes",
        "Its time limit.",
        "C16",
        whole(1, 1440),
        "1 to 1440.",
        required=True,
        codes=("SMOKE_INVALID",),
    ),
    Field("smoke.workers", "Its workers.", "C16", whole(0, MAX_WORKERS), default=0, codes=("SMOKE_INVALID",)),
)
"""What stands beside the spec in a request; paths are relative to the request."""

SPEC_FIELDS: tuple[Field, ...] = (*BASIC, *ENVIRONMENT, *COMPUTE, *ADVANCED, *RAY_ONLY)
"""Every field of section (b), in its order, fields of lists and maps behind them."""


def children(fields: tuple[Field, ...]) -> Mapping[str, Mapping[str, Field]]:
    """By the path of a map (or ``list[]``): the fields it may have, by key."""
    found: dict[str, dict[str, Field]] = {"": {}}
    for each in fields:
        found.setdefault(each.path.rpartition(".")[0], {})[each.name] = each
    return MappingProxyType({key: MappingProxyType(value) for key, value in found.items()})


CHILDREN = children(SPEC_FIELDS)
"""By the path of a map (or ``list[]``): the fields it may have, by key."""
ROOT_CHILDREN = children(ROOT_FIELDS)


def below(path: str) -> Iterator[Field]:
    """Every field of the spec below ``path``, at any depth."""
    return (each for each in SPEC_FIELDS if each.path.startswith((f"{path}.", f"{path}[]")))
