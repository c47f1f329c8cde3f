"""The header of a safetensors file, parsed and proved against the file's size; tensor data is never read.

A file is 8 bytes with the header's length (little-endian), the header (a JSON object: tensor name -> dtype,
shape, byte range), then the data. The file comes from a program that may be hostile, so everything is bounded
before it is decoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.model.errors import Refusal
from trainshed.model.strict_json import decode_json

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 32 << 20
"""Room for a low-rank adapter of every expert of the largest models there are."""
MAX_TENSORS = 200_000
MAX_DIMENSIONS = 64
MAX_NUMBER = 2**63 - 1
_COMMAS_PER_TENSOR = 8
_BITS: Mapping[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits an element."""
_METADATA = "__metadata__"
_ONE_AT_A_TIME = threading.Lock()
"""A large header takes some hundred MiB while it is decoded."""

Read = Callable[[int, int], bytes]
"""``read(start, length)`` answers these bytes of the file."""


class NotSafetensors(Exception):
    """The file is no valid safetensors file; the reason is a sentence about it."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the header describes it."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    """Its bytes, counted from the end of the header."""

    @property
    def elements(self) -> int:
        return _product(self.shape)


def read_header(read: Read, size: int) -> dict[str, Tensor]:
    """The tensors of a file of ``size`` bytes, by name. Raises `NotSafetensors`, and what ``read`` raises."""
    if size < LENGTH_BYTES:
        raise NotSafetensors(f"it has {size} bytes; the length of its header alone takes {LENGTH_BYTES}")
    length = int.from_bytes(read(0, LENGTH_BYTES), "little")
    if length > size - LENGTH_BYTES:
        raise NotSafetensors(f"its header is said to have {length} bytes, the whole file has {size}")
    if length > MAX_HEADER_BYTES:
        raise NotSafetensors(f"its header has {length} bytes; at most {MAX_HEADER_BYTES} are read")
    with _ONE_AT_A_TIME:
        return _tensors(_decoded(read(LENGTH_BYTES, length)), size - LENGTH_BYTES - length)


def _decoded(header: bytes) -> dict[str, Any]:
    if not header.startswith(b"{"):
        raise NotSafetensors("its header is no JSON object")
    many = header.count(b"{") + header.count(b"[") > 3 * MAX_TENSORS + 2
    if many or header.count(b",") > _COMMAS_PER_TENSOR * MAX_TENSORS:
        raise NotSafetensors(f"its header describes more than {MAX_TENSORS} tensors")
    try:
        document = decode_json(header)
    except Refusal as refusal:
        raise NotSafetensors(f"its header {refusal.message.removeprefix('the body ')}") from None
    assert isinstance(document, dict)  # noqa: S101 - it starts with a brace and is one JSON value
    return document


def _tensors(header: dict[str, Any], data_bytes: int) -> dict[str, Tensor]:
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise NotSafetensors(f"`{_METADATA}` of its header must be an object of strings")
    found = {name: _tensor(name, entry) for name, entry in header.items()}
    # The data is exactly the tensors, one behind the other: no gap, no overlap, nothing before or after.
    end = 0
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start != end:
            how = "overlap other data" if tensor.start < end else "leave a gap before them"
            raise NotSafetensors(
                f"the bytes {tensor.start} to {tensor.end} of tensor {_show(name)} {how}: "
                f"what lies before ends at {end}"
            )
        end = tensor.end
    if end != data_bytes:
        raise NotSafetensors(f"its tensors take {end} bytes, the file holds {data_bytes} behind its header")
    return found


def _tensor(name: str, entry: Any) -> Tensor:
    said = f"tensor {_show(name)} of its header"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise NotSafetensors(f"{said} must have dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise NotSafetensors(f"{said} has the unknown dtype {_show(dtype)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_number, shape)):
        raise NotSafetensors(f"{said} has no shape of at most {MAX_DIMENSIONS} whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_number, offsets)):  # noqa: PLR2004 - begin and end
        raise NotSafetensors(f"{said} has no begin and end as data_offsets")
    start, end = offsets
    if end < start:
        raise NotSafetensors(f"{said} ends at byte {end}, before its begin {start}")
    bits = _product(shape) * _BITS[dtype]
    if bits != (end - start) * 8:
        raise NotSafetensors(
            f"{said} has {end - start} bytes by its data_offsets, which its shape and dtype do not make"
        )
    return Tensor(dtype, tuple(shape), start, end)


def _product(shape: tuple[int, ...] | list[int]) -> int:
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_NUMBER


def _show(value: Any) -> str:
    return ascii(value)[:120]
