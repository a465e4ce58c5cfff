"""The initial model in fewer bytes: both sides start from weights that were rounded.

A client without weights downloads the whole model, and in a short federation this is most of its
traffic. A server can round the initial weights to float16, or to eight bits with one scale for each
row of a tensor. It then starts from the rounded weights itself, so that nothing differs later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtern.core.dtypes import from_float32
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates.factors import matrix_shapes
from fedtern.core.wire import Reader, check_floats, floats_view

Precision = Literal["exact", "float16", "int8"]
"""How precisely the initial weights are sent."""

# The first byte of an encoded initial model.
_FLOAT16 = 1
_INT8 = 2
_PRECISIONS: dict[int, Precision] = {_FLOAT16: "float16", _INT8: "int8"}
_LEVELS = 127
_MAX_SCALE = 2.0**93  # so that every weight stays below 2**100


def encode_initial(weights: Vector, layout: Layout, precision: Precision) -> bytes | None:
    """Encode initial weights; None if they are sent exactly, as any other model.

    Raises:
        NonFiniteError: a weight is too large for the precision.
        ValueError: the precision is unknown.

    """
    if precision == "exact":
        return None
    if precision == "float16":
        narrow = np.empty(layout.size, "<f2")
        end = 0
        for name, tensor in layout.unflatten(weights).items():
            start, end = end, end + tensor.size
            narrow[start:end] = from_float32(tensor, "float16", "refuse", name).reshape(-1)
        return b"".join((bytes([_FLOAT16]), narrow.data))
    if precision == "int8":
        scales, levels = _to_rows(weights, layout)
        return b"".join((bytes([_INT8]), floats_view(scales), levels.data))
    raise ValueError(f'initial must be "exact", "float16" or "int8", got {precision!r}')


def read_initial(reader: Reader, layout: Layout) -> Vector:
    """Read encoded initial weights.

    Raises:
        DecodeError: the bytes are not an encoded initial model.

    """
    kind = reader.byte()
    if kind == _FLOAT16:
        narrow = reader.array("<f2", layout.size)
        return check_floats(narrow.astype(np.float32), layout.name_at)
    if kind == _INT8:
        return _read_rows(reader, layout)
    raise DecodeError(f"unknown encoding {kind} of the initial model")


def initial_precision(data: bytes) -> Precision:
    """Return the precision of an encoded initial model.

    Raises:
        DecodeError: the bytes are not an encoded initial model.

    """
    kind = Reader(data).byte()
    if kind not in _PRECISIONS:
        raise DecodeError(f"unknown encoding {kind} of the initial model")
    return _PRECISIONS[kind]


def round_initial(weights: Vector, layout: Layout, precision: Precision) -> Vector:
    """Return the weights that both sides start from.

    A client that has the initial model itself passes it through this function.
    """
    data = encode_initial(weights, layout, precision)
    return weights if data is None else read_initial(Reader(data), layout)


def _matrices(vector: NDArray[Any], layout: Layout) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield the rows of each tensor that has values: their numbers, and a view of the values."""
    row = at = 0
    for rows, columns in matrix_shapes(layout):
        if rows * columns:
            yield slice(row, row + rows), vector[at : at + rows * columns].reshape(rows, columns)
            row += rows
            at += rows * columns


def _count_rows(layout: Layout) -> int:
    return sum(rows for rows, columns in matrix_shapes(layout) if columns)


def _to_rows(weights: Vector, layout: Layout) -> tuple[Vector, NDArray[np.int8]]:
    """Return one scale per row, and one level per value."""
    scales = np.empty(_count_rows(layout), np.float32)
    levels = np.empty(layout.size, np.int8)
    # Tensor by tensor, so that no temporary array is as large as the model.
    for (rows, values), (_, out) in zip(
        _matrices(weights, layout), _matrices(levels, layout), strict=True
    ):
        largest = np.maximum(np.abs(values.max(axis=1)), np.abs(values.min(axis=1)))
        scale = (largest / np.float32(_LEVELS)).astype(np.float32)
        scales[rows] = scale
        quotients = values / np.where(scale > 0, scale, np.float32(1))[:, None]
        np.rint(quotients, out=quotients)
        out[...] = np.clip(quotients, -_LEVELS, _LEVELS, out=quotients)
    if (scales > _MAX_SCALE).any():
        index = int(np.argmax(np.abs(weights)))
        raise layout.non_finite_error(index, float(weights[index]))
    return scales, levels


def _read_rows(reader: Reader, layout: Layout) -> Vector:
    scales = reader.floats(_count_rows(layout))
    levels = reader.array("i1", layout.size)
    if not ((scales >= 0) & (scales <= _MAX_SCALE)).all():
        raise DecodeError("the scales of the initial model must be in [0, 2**93]")
    if levels.min(initial=0) < -_LEVELS:
        raise DecodeError("the levels of the initial model must be in [-127, 127]")
    weights = levels.astype(np.float32)
    for rows, values in _matrices(weights, layout):
        np.multiply(values, scales[rows, None], out=values)
    return weights
