"""Carried tensors: values that are sent as they are, such as statistics of batch normalisation.

A message holds a section with one byte for each carried tensor of the layout, in the layout's
order, which says how its values follow: not at all, raw, or as float16. Both sides know the values
before the message, so a tensor that did not change takes one byte. ``docs/format.md`` specifies the
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtern.core.dtypes import from_float32, to_float32, to_storage
from fedtern.core.errors import DecodeError, NonFiniteError
from fedtern.core.layout import Carried, Layout
from fedtern.core.wire import Reader

Values = Mapping[str, NDArray[Any]]
"""Values of carried tensors by name, in their storage dtypes."""

NO_VALUES: Values = {}

MAX_MAGNITUDE = 2.0**64
"""Limit of floating-point values, like that of uploads: no mean of them can overflow."""

# How the values of a tensor follow in a message.
UNCHANGED = 0
RAW = 1
FLOAT16 = 2


def check_carried(
    values: Mapping[str, ArrayLike] | None, layout: Layout
) -> dict[str, NDArray[Any]]:
    """Copy the values of all carried tensors of a layout.

    Raises:
        ValueError: a tensor is missing or unknown, or has another shape or dtype.
        NonFiniteError: a value is NaN, infinite or beyond 2**64.

    """
    given = {} if values is None else dict(values)
    names = [tensor.name for tensor in layout.carried]
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        raise ValueError(
            "the carried tensors do not fit the layout:"
            f" missing {missing or 'none'}, unknown {unknown or 'none'}"
        )
    return {
        tensor.name: _check_tensor(tensor, np.asarray(given[tensor.name]))
        for tensor in layout.carried
    }


def _check_tensor(tensor: Carried, array: NDArray[Any]) -> NDArray[Any]:
    accepted = (tensor.dtype, tensor.storage.name)
    if array.shape != tensor.shape or array.dtype.name not in accepted:
        raise ValueError(
            f"carried tensor {tensor.name!r} has shape {array.shape} and dtype {array.dtype},"
            f" expected {tensor.shape} and {tensor.dtype}"
        )
    stored = to_storage(array, tensor.dtype)
    if (bad := _first_unsafe(tensor, stored)) is not None:
        raise NonFiniteError(
            f"value {bad} in carried tensor {tensor.name!r} cannot be sent: it is not finite or is"
            " beyond 2**64; lower the learning rate, or keep such tensors on each client with"
            ' carry="local"'
        )
    return stored


def _first_unsafe(tensor: Carried, stored: NDArray[Any]) -> float | None:
    """Return the first value that must not be sent."""
    if not tensor.is_float:
        return None
    values = to_float32(stored, tensor.dtype) if tensor.dtype == "bfloat16" else stored
    # NaN fails every comparison. Python floats, because float16 cannot hold the limit.
    if (
        not values.size
        or -MAX_MAGNITUDE <= float(values.min()) <= float(values.max()) <= MAX_MAGNITUDE
    ):
        return None
    wide = values.astype(np.float64)
    return float(wide[~(np.abs(wide) <= MAX_MAGNITUDE)].flat[0])


def changed_values(values: Values, before: Values) -> dict[str, NDArray[Any]]:
    """Return the tensors whose bits differ from those before."""
    return {name: array for name, array in values.items() if not same_bits(array, before[name])}


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return whether two arrays of the same shape and dtype have the same bits."""
    bits = f"u{a.dtype.itemsize}"
    return a is b or np.array_equal(a.view(bits), b.view(bits))


def round_to_float16(values: Values, layout: Layout) -> dict[str, NDArray[Any]]:
    """Round float32 and float64 tensors to values that float16 can hold.

    Values beyond 65504, the largest one, become that value.
    """
    rounded = dict(values)
    for tensor in layout.carried:
        if tensor.name in values and tensor.dtype in ("float32", "float64"):
            narrow = from_float32(
                to_float32(values[tensor.name], tensor.dtype), "float16", "saturate", tensor.name
            )
            rounded[tensor.name] = narrow.astype(tensor.storage)
    return rounded


def encode_carried(changed: Values, layout: Layout) -> bytes:
    """Encode the section of carried tensors; tensors that are not in ``changed`` are unchanged."""
    parts = []
    for tensor in layout.carried:
        if tensor.name not in changed:
            parts.append(bytes([UNCHANGED]))
            continue
        values = changed[tensor.name]
        if (narrow := _as_float16(tensor, values)) is not None:
            parts.append(bytes([FLOAT16]) + narrow.tobytes())
        else:
            parts.append(bytes([RAW]) + values.astype(tensor.storage, copy=False).tobytes())
    return b"".join(parts)


def _as_float16(tensor: Carried, values: NDArray[Any]) -> NDArray[np.float16] | None:
    """Return the values as float16 if that loses nothing and is shorter."""
    if tensor.dtype not in ("float32", "float64"):
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # NaN may be a signalling one
        narrow = values.astype("<f2")
    return narrow if same_bits(narrow.astype(tensor.storage), values) else None


def max_carried_bytes(layout: Layout) -> int:
    """Return the length of the longest section of carried tensors."""
    return sum(1 + tensor.nbytes for tensor in layout.carried)


def read_carried(reader: Reader, layout: Layout) -> dict[str, NDArray[Any]]:
    """Read the section of carried tensors and return those that changed.

    Raises:
        DecodeError: the section is damaged, or a value is not finite or beyond 2**64.

    """
    return {
        tensor.name: values
        for tensor in layout.carried
        if (values := _read_tensor(reader, tensor)) is not None
    }


def _read_tensor(reader: Reader, tensor: Carried) -> NDArray[Any] | None:
    encoding = reader.byte()
    if encoding == UNCHANGED:
        return None
    if encoding == RAW:
        data = reader.take(tensor.nbytes)
        if tensor.dtype == "bool" and data.strip(b"\0\1"):
            raise DecodeError(f"carried tensor {tensor.name!r} has a boolean other than 0 and 1")
        values = np.frombuffer(data, tensor.storage).reshape(tensor.shape).copy()
    elif encoding == FLOAT16 and tensor.dtype in ("float32", "float64"):
        narrow = np.frombuffer(reader.take(2 * tensor.size), "<f2")
        values = narrow.astype(tensor.storage).reshape(tensor.shape)
    else:
        raise DecodeError(
            f"unknown encoding {encoding} of carried tensor {tensor.name!r}, which is"
            f" {tensor.dtype}"
        )
    if (bad := _first_unsafe(tensor, values)) is not None:
        raise DecodeError(
            f"value {bad} in carried tensor {tensor.name!r} is not finite or is beyond 2**64"
        )
    return values


def combine_carried(
    uploads: Sequence[Values],
    shares: Sequence[float],
    latest: int,
    before: Values,
    layout: Layout,
) -> dict[str, NDArray[Any]]:
    """Combine the carried tensors of a cohort, each by its rule.

    Args:
        uploads: the changed tensors in each upload; their order may affect the rounding.
        shares: the weight of each upload; they sum to 1.
        latest: the index of the upload that was accepted last.
        before: the values before the round.
        layout: the model's tensors.

    Returns:
        The values of all carried tensors after the round.

    """
    combined = {}
    for tensor in layout.carried:
        if not any(tensor.name in upload for upload in uploads):
            combined[tensor.name] = before[tensor.name]
            continue
        values = [upload.get(tensor.name, before[tensor.name]) for upload in uploads]
        if tensor.rule == "latest":
            combined[tensor.name] = values[latest]
        else:
            combined[tensor.name] = _average(tensor, values, shares)
    return combined


def measure_changes(values: Values, before: Values, layout: Layout) -> list[float]:
    """Return the Euclidean norm of the change of each carried tensor of a layout.

    Integers and booleans count as unchanged: a part of their change has no meaning.

    Args:
        values: the tensors that have changed.
        before: the values of all carried tensors before.
        layout: the model's tensors.

    """
    return [
        _norm(_to_float64(tensor, values[tensor.name]) - _to_float64(tensor, before[tensor.name]))
        if tensor.name in values and tensor.is_float
        else 0.0
        for tensor in layout.carried
    ]


def _norm(change: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(change).sum()))


def scale_change(
    tensor: Carried, values: NDArray[Any], before: NDArray[Any], scale: float
) -> NDArray[Any]:
    """Return the values of a float tensor after a part of their change, in its storage dtype."""
    start = _to_float64(tensor, before)
    reached = start + scale * (_to_float64(tensor, values) - start)
    if tensor.dtype == "float64":
        return reached
    return from_float32(reached.astype(np.float32), tensor.dtype, "saturate", tensor.name)


def _average(
    tensor: Carried, values: Sequence[NDArray[Any]], shares: Sequence[float]
) -> NDArray[Any]:
    if not tensor.is_float:
        return np.array(np.maximum.reduce(values), tensor.storage)
    total = np.zeros(tensor.shape, np.float64)
    lowest = np.full(tensor.shape, np.inf)
    highest = np.full(tensor.shape, -np.inf)
    for array, share in zip(values, shares, strict=True):
        wide = _to_float64(tensor, array)
        total += share * wide
        np.minimum(lowest, wide, out=lowest)
        np.maximum(highest, wide, out=highest)
    # Rounding must not lead out of the range of the values: the mean of equal values is that value.
    np.clip(total, lowest, highest, out=total)
    if tensor.dtype == "float64":
        return total
    return from_float32(total.astype(np.float32), tensor.dtype, "saturate", tensor.name)


def _to_float64(tensor: Carried, array: NDArray[Any]) -> NDArray[np.float64]:
    if tensor.dtype == "bfloat16":
        array = to_float32(array, tensor.dtype)
    return array.astype(np.float64, copy=False)
