"""A dataset in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Inputs = NDArray[Any]
"""Examples along the first axis, in the dtype in which they are stored."""

Labels = NDArray[np.int64]
"""One class number for each example; in a dataset without classes, targets of any shape."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and labels for training and testing, with the constants that standardise inputs.

    Args:
        name: the dataset's name.
        train_inputs: training examples along the first axis, channels (if any) along the second.
        train_labels: class number of each training example. Without classes, a target of any shape
            for each example, such as a real number or the next characters of a text.
        test_inputs: test examples, of the same shape as training examples.
        test_labels: class number of each test example.
        num_classes: number of classes; labels are smaller than this. None for targets that are not
            classes.
        scale: models receive ``(inputs / scale - mean) / std``.
        mean: one value, or one for each channel.
        std: one value, or one for each channel.
        groups: number of the source of each training example, such as its speaker; None if
            unknown.
        standardise: whether models receive standardised float32 inputs. Without, they receive
            inputs as they are; integers stay integers, such as the characters of a text.

    Raises:
        ValueError: the arrays or constants do not fit together.

    >>> pixels = np.array([[[0, 255]]], np.uint8)
    >>> two = Dataset("two", pixels, [1], pixels, [0], num_classes=2, scale=255, mean=(0.5,))
    >>> two.normalise(two.train_inputs)
    array([[[-0.5,  0.5]]], dtype=float32)
    """

    name: str
    train_inputs: Inputs
    train_labels: Labels
    test_inputs: Inputs
    test_labels: Labels
    num_classes: int | None
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    groups: NDArray[np.int64] | None = None
    standardise: bool = True

    def __post_init__(self) -> None:
        if self.num_classes is not None and self.num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {self.num_classes}")
        for part in ("train", "test"):
            self._set(
                f"{part}_inputs", _torch_compatible(np.asarray(getattr(self, f"{part}_inputs")))
            )
            values = getattr(self, f"{part}_labels")
            if self.num_classes is None:
                labels = _targets(values, part)
            else:
                labels = _class_numbers(values, self.num_classes, part)
            self._set(f"{part}_labels", labels)
            self._check_length(f"{part}_inputs", len(labels))
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise ValueError(
                "train_inputs and test_inputs must have examples of the same shape, got"
                f" {self.train_inputs.shape[1:]} and {self.test_inputs.shape[1:]}"
            )
        if self.train_labels.shape[1:] != self.test_labels.shape[1:]:
            raise ValueError(
                "train_labels and test_labels must have targets of the same shape, got"
                f" {self.train_labels.shape[1:]} and {self.test_labels.shape[1:]}"
            )
        if self.groups is not None:
            self._set("groups", np.asarray(self.groups))
            self._check_length("groups", len(self.train_labels))
        self._check_constants()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train_inputs.shape[1:]

    @property
    def classes(self) -> Labels:
        """The class of each training example; 0 for all of them in a dataset without classes."""
        if self.num_classes is None:
            return np.zeros(len(self.train_labels), np.int64)
        return self.train_labels

    def constants(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return factor and offset: models receive ``inputs * factor + offset``."""
        mean = np.array(self.mean, np.float64)
        std = np.array(self.std, np.float64)
        # Constants of channels must broadcast along the second axis of a batch.
        shape = (-1, *[1] * (len(self.shape) - 1)) if max(mean.size, std.size) > 1 else ()
        factor = (1 / (self.scale * std)).astype(np.float32)
        offset = (-mean / std).astype(np.float32)
        return factor.reshape(shape), offset.reshape(shape)

    def normalise(self, inputs: Inputs) -> NDArray[np.float32]:
        """Standardise inputs as models receive them."""
        factor, offset = self.constants()
        return inputs.astype(np.float32) * factor + offset

    def _set(self, field: str, value: NDArray[Any]) -> None:
        object.__setattr__(self, field, value)  # the dataclass is frozen

    def _check_length(self, field: str, length: int) -> None:
        rows = getattr(self, field).shape[:1]
        if rows != (length,):
            raise ValueError(f"{field} has {rows[0] if rows else 0} rows for {length} labels")

    def _check_constants(self) -> None:
        if not self.standardise and (self.scale, self.mean, self.std) != (1.0, (0.0,), (1.0,)):
            raise ValueError(
                f"scale {self.scale}, mean {self.mean} and std {self.std} have no effect with"
                " standardise=False; leave them out"
            )
        channels = self.shape[0] if self.shape else 1
        for field in ("mean", "std"):
            if len(getattr(self, field)) not in (1, channels):
                raise ValueError(
                    f"{field} must have 1 value or one for each of {channels} channels, got"
                    f" {getattr(self, field)}"
                )
        if self.scale <= 0 or min(self.std) <= 0:
            raise ValueError(f"scale and std must be positive, got {self.scale} and {self.std}")


def _torch_compatible(array: Inputs) -> Inputs:
    """Return the values in native byte order and with strides that torch supports."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    # Copied only if necessary: the memory layout of images affects the speed of training.
    supported = all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    return array if supported else np.ascontiguousarray(array)


def _targets(values: ArrayLike, part: str) -> NDArray[Any]:
    targets = _torch_compatible(np.asarray(values))
    if not targets.ndim or targets.dtype.kind not in "iufb":
        raise ValueError(
            f"{part}_labels must be an array of numbers with a row for each example, got shape"
            f" {targets.shape} of {targets.dtype}"
        )
    return targets


def _class_numbers(values: ArrayLike, num_classes: int, part: str) -> Labels:
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{part}_labels must be a flat array of class numbers, got shape {labels.shape} of"
            f" {labels.dtype}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"{part}_labels must lie between 0 and {num_classes - 1}, got"
            f" {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int64)
