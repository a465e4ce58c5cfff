"""Changes to batches of images before they are standardised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Transform = Callable[[Tensor], Tensor]
"""A deterministic change to every batch, in training and in testing."""


class Augment(Protocol):
    """A random change to training batches. All randomness comes from the given generator."""

    def __call__(self, inputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the changed batch, on the same device."""
        ...


@dataclass(frozen=True)
class CropFlip:
    """Random crop of the zero-padded image, and a horizontal flip with probability 1/2.

    The paper's authors use it for CIFAR-10.

    Args:
        margin: number of pixels to pad on each side.

    """

    margin: int = 4

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise ValueError(f"margin must not be negative, got {self.margin}")

    def __call__(self, inputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the batch (example, channel, row, column), each image cropped and flipped."""
        count, _, height, width = inputs.shape
        top, left = rng.integers(0, 2 * self.margin + 1, (2, count, 1))
        flipped = rng.random((count, 1)) < 0.5
        offsets = np.arange(width)
        columns = np.where(flipped, left + offsets[::-1], left + offsets)
        row_index = torch.as_tensor(top + np.arange(height), device=inputs.device)
        column_index = torch.as_tensor(columns, device=inputs.device)
        example_index = torch.arange(count, device=inputs.device)
        padded = functional.pad(inputs, [self.margin] * 4)
        # This kind of indexing moves the channels to the end.
        cropped = padded[
            example_index[:, None, None], :, row_index[:, :, None], column_index[:, None, :]
        ]
        return cropped.permute(0, 3, 1, 2).contiguous()


def pad(side: int) -> Transform:
    """Return a transform that pads square images with zeros on all sides to ``side`` pixels."""

    def transform(inputs: Tensor) -> Tensor:
        missing = side - inputs.shape[-1]
        return functional.pad(inputs, [missing // 2, missing - missing // 2] * 2)

    return transform
