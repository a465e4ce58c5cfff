"""Conversion between Flower's records of arrays and the named arrays of a template."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedtern.core.dtypes import from_float32, to_float32
from fedtern.core.errors import NonFiniteError
from fedtern.core.layout import Vector
from fedtern.core.template import Template

Arrays = Mapping[str, NDArray[Any]]


def to_numpy(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Return read-only views of the arrays in a record.

    Raises:
        ValueError: An array is not one of NumPy, or has an unknown dtype.

    """
    return {name: _view(name, array) for name, array in record.items()}


def _view(name: str, array: Array) -> NDArray[Any]:
    """Return an array without a copy, unlike ``Array.numpy``: models may be large."""
    if array.stype != "numpy.ndarray":
        raise ValueError(f"array {name!r} is encoded as {array.stype!r}, expected 'numpy.ndarray'")
    # A BytesIO shares the memory of the bytes that it is made from.
    buffer = BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(buffer)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read_header(buffer)
        flat = np.frombuffer(array.data, dtype, offset=buffer.tell())
        values = flat.reshape(shape, order="F" if is_fortran else "C")
    except ValueError as error:
        raise ValueError(f"array {name!r} cannot be read: {error}") from error
    # NumPy's files have no name for this dtype; the record has.
    return values.view(_bfloat16(name)) if array.dtype == "bfloat16" else values


def to_record(template: Template, weights: Vector, carried: Arrays) -> ArrayRecord:
    """Return a model as a record, with the names, order and dtypes of a template.

    Args:
        template: The tensors of the model.
        weights: The trained tensors as one vector.
        carried: The carried tensors.

    Raises:
        NonFiniteError: A weight is too large for the dtype of its tensor.

    """
    trained = template.layout.unflatten(weights)
    record = ArrayRecord()
    for tensor in template.tensors:
        if tensor.kind == "tied":
            record[tensor.name] = record[tensor.twin]
            continue
        values: NDArray[Any] = (
            trained[tensor.name] if tensor.name in trained else carried[tensor.name]
        )
        if tensor.kind == "trained" and tensor.dtype != "float32":
            values = from_float32(values, tensor.dtype, template.overflow, tensor.name)
        record[tensor.name] = _encode(tensor.name, values, tensor.dtype)
    return record


def _encode(name: str, values: NDArray[Any], dtype: str) -> Array:
    """Encode an array like ``Array(values)``, but with a single copy."""
    if dtype == "bfloat16":
        return Array(values.view(_bfloat16(name)))
    values = np.ascontiguousarray(values).reshape(values.shape)
    header = BytesIO()
    description = np.lib.format.header_data_from_array_1_0(values)
    np.lib.format.write_array_header_1_0(header, description)
    # A view of an array with a zero in its shape has no bytes to cast.
    data = b"".join((header.getvalue(), values.data.cast("B") if values.size else b""))
    return Array(dtype, tuple(values.shape), "numpy.ndarray", data)


def _bfloat16(name: str) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise ValueError(
            f"array {name!r} is bfloat16, which needs the package ml_dtypes: pip install ml_dtypes"
        ) from None
    return found


def nbytes_of(record: ArrayRecord) -> int:
    """Return the size of a record's arrays in bytes."""
    return sum(len(array.data) for array in record.values())


def are_equal(first: ArrayRecord, second: ArrayRecord) -> bool:
    """Return whether two records have the same arrays; fast if they share them."""
    return first is second or (
        list(first) == list(second) and all(first[name].data == second[name].data for name in first)
    )


def change_to(
    returned: Arrays, template: Template, weights: Vector
) -> tuple[Vector, dict[str, NDArray[Any]]]:
    """Return the change that leads from weights to arrays that a strategy has computed.

    Strategies compute in other dtypes: FedAvg returns the average of integers as float64, and
    FedAdam returns float64 for float32. Carried integers are rounded to the nearest one.

    Args:
        returned: The arrays of the strategy.
        template: The tensors of the model.
        weights: The current weights.

    Returns:
        The change of the weights, and the values of all carried tensors.

    Raises:
        NonFiniteError: A value of a carried tensor cannot be sent.
        ValueError: A tensor is missing, unknown, or has another shape.

    """
    shapes = {tensor.name: tensor.shape for tensor in template.tensors}
    for name in {**shapes, **returned}:
        found = tuple(returned[name].shape) if name in returned else "missing"
        if found != shapes.get(name):
            raise ValueError(
                f"array {name!r} is {found}, expected {shapes.get(name, 'no such array')}"
            )
    out = np.empty(template.layout.size, np.float32)
    views = template.layout.unflatten(out)
    before = template.layout.unflatten(weights)
    carried: dict[str, NDArray[Any]] = {}
    for tensor in template.tensors:
        values = returned[tensor.name]
        if values.dtype.name == "bfloat16":
            values = to_float32(values, "bfloat16")
        if tensor.kind == "trained":
            start: NDArray[Any] = before[tensor.name]
            if tensor.dtype in ("float16", "bfloat16"):
                # The strategy has computed from these rounded values.
                rounded = from_float32(start, tensor.dtype, template.overflow, tensor.name)
                start = to_float32(rounded, tensor.dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                views[tensor.name][...] = np.subtract(values, start)
        elif tensor.kind == "carried":
            carried[tensor.name] = _cast(values, tensor.dtype, template, tensor.name)
    return out, carried


def _cast(values: NDArray[Any], dtype: str, template: Template, name: str) -> NDArray[Any]:
    """Return the values of a carried tensor in its dtype; too large integers are clipped.

    Raises:
        NonFiniteError: A value is NaN, which integers and booleans do not have, or a float is too
            large for its dtype.

    """
    if dtype == "bfloat16":
        with np.errstate(over="ignore"):
            return from_float32(values.astype(np.float32), dtype, template.overflow, name)
    target = np.dtype(dtype)
    if target.kind not in "biu":
        with np.errstate(over="ignore"):
            return values.astype(target)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise NonFiniteError(f"array {name!r} has the value nan, which {dtype} cannot hold")
    if target.kind == "b":
        return np.asarray(values >= 0.5)
    whole = np.rint(values.astype(np.float64)) if values.dtype.kind == "f" else values
    return _clip(whole, target)


def _clip(values: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """Convert whole numbers to an integer dtype; those beyond its limits become the limit.

    ``np.clip`` cannot do this: as a float, the largest 64-bit integer is rounded up to a value that
    the dtype does not have.
    """
    limits = np.iinfo(target)
    low = values <= limits.min
    high = values >= limits.max
    clipped: NDArray[Any] = np.where(low | high, 0, values).astype(target)
    clipped[low] = limits.min
    clipped[high] = limits.max
    return clipped
