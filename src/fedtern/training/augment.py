"""What is done to pictures before a model sees them, in the values they are stored in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Transform = Callable[[Tensor], Tensor]
"""The same change for every batch, in training and in testing."""


class Augment(Protocol):
    """A random change to training batches; the random numbers come from the generator alone."""

    def __call__(self, inputs: Tensor, rng: np.random.Generator) -> Tensor:
        """The changed batch, on the same device."""
        ...


@dataclass(frozen=True)
class CropFlip:
    """Shifts each picture by up to ``margin`` pixels each way, zeros coming in, and mirrors half.

    The same as a random crop of the picture padded by ``margin``, as the authors do on CIFAR-10.
    """

    margin: int = 4

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise ValueError(f"margin must not be negative, got {self.margin}")

    def __call__(self, inputs: Tensor, rng: np.random.Generator) -> Tensor:
        """The batch (example, channel, row, column) with each picture changed by itself."""
        count, _, height, width = inputs.shape
        down, right = rng.integers(0, 2 * self.margin + 1, (2, count, 1))
        mirrored = rng.random((count, 1)) < 0.5
        across = np.arange(width)
        rows = torch.as_tensor(down + np.arange(height), device=inputs.device)
        columns = np.where(mirrored, right + across[::-1], right + across)
        columns_ = torch.as_tensor(columns, device=inputs.device)
        padded = functional.pad(inputs, [self.margin] * 4)
        example = torch.arange(count, device=inputs.device)[:, None, None]
        # Indexing around the channels puts them last.
        picked = padded[example, :, rows[:, :, None], columns_[:, None, :]]
        return picked.permute(0, 3, 1, 2).contiguous()


def pad(side: int) -> Transform:
    """Zeros around square pictures, as many on each side, to make them ``side`` pixels wide."""

    def transform(inputs: Tensor) -> Tensor:
        missing = side - inputs.shape[-1]
        return functional.pad(inputs, [missing // 2, missing - missing // 2] * 2)

    return transform
