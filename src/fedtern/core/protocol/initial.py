"""The initial model in fewer bytes: both sides start from weights that were rounded.

A client without weights downloads the whole model, and in a short federation this is most of its
traffic. A server can round the initial weights to float16, or to eight bits with one scale for each
row of a tensor. It then starts from the rounded weights itself, so that nothing differs later.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fedtern.core.dtypes import from_float32
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout, Vector
from fedtern.core.wire import Reader, check_floats, floats

Precision = Literal["exact", "float16", "int8"]
"""How precisely the initial weights are sent."""

# The first byte of an encoded initial model.
_FLOAT16 = 1
_INT8 = 2
_LEVELS = 127


def encode_initial(weights: Vector, layout: Layout, precision: Precision) -> bytes | None:
    """Encode initial weights; None if they are sent exactly, as any other model.

    Raises:
        NonFiniteError: a weight is too large for float16.
        ValueError: the precision is unknown.

    """
    if precision == "exact":
        return None
    if precision == "float16":
        parts = [
            from_float32(tensor, "float16", "refuse", name).astype("<f2", copy=False).tobytes()
            for name, tensor in layout.unflatten(weights).items()
        ]
        return bytes([_FLOAT16]) + b"".join(parts)
    if precision == "int8":
        return bytes([_INT8]) + _encode_rows(weights, layout)
    raise ValueError(f'initial must be "exact", "float16" or "int8", got {precision!r}')


def read_initial(reader: Reader, layout: Layout) -> Vector:
    """Read encoded initial weights.

    Raises:
        DecodeError: the bytes are not an encoded initial model.

    """
    kind = reader.byte()
    if kind == _FLOAT16:
        narrow = np.frombuffer(reader.take(2 * layout.size), "<f2")
        return check_floats(narrow.astype(np.float32), layout.name_at)
    if kind == _INT8:
        return _read_rows(reader, layout)
    raise DecodeError(f"unknown encoding {kind} of the initial model")


def round_initial(weights: Vector, layout: Layout, precision: Precision) -> Vector:
    """Return the weights that both sides start from.

    A client that has the initial model itself passes it through this function.
    """
    data = encode_initial(weights, layout, precision)
    return weights if data is None else read_initial(Reader(data), layout)


def _rows(layout: Layout) -> list[int]:
    """Return the number of values in each row of each tensor; a vector is a single row."""
    lengths: list[int] = []
    for shape in layout.shapes:
        size = math.prod(shape)
        count = shape[0] if len(shape) > 1 and size else min(size, 1)
        lengths += [size // count] * count if count else []
    return lengths


def _encode_rows(weights: Vector, layout: Layout) -> bytes:
    """Encode one scale per row, then one byte per value."""
    lengths = np.array(_rows(layout), np.int64)
    if not lengths.size:
        return b""
    starts = np.cumsum(lengths) - lengths
    largest = np.maximum.reduceat(np.abs(weights), starts)
    scales = (largest / np.float32(_LEVELS)).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(1))
    levels = np.rint(weights / np.repeat(divisors, lengths))
    values: bytes = np.clip(levels, -_LEVELS, _LEVELS).astype(np.int8).tobytes()
    return floats(scales) + values


def _read_rows(reader: Reader, layout: Layout) -> Vector:
    lengths = np.array(_rows(layout), np.int64)
    scales = reader.floats(lengths.size)
    if not ((scales >= 0) & (scales <= 2.0**100)).all():
        raise DecodeError("the scales of the initial model must be in [0, 2**100]")
    levels = np.frombuffer(reader.take(layout.size), np.int8)
    return np.repeat(scales, lengths) * levels.astype(np.float32)
