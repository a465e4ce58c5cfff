"""A dataset's examples as tensors on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtern.data import Dataset
from fedtern.data.dataset import Inputs, Labels
from fedtern.training.augment import Augment, Transform

_SMALL_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)


@dataclass(frozen=True, eq=False)
class Examples:
    """Stored inputs and labels, which become batches for a model.

    A batch is augmented (if a generator is given), then transformed, then standardised with
    ``inputs * factor + offset``. Without factor and offset, inputs are not standardised.
    """

    inputs: Tensor
    labels: Tensor
    factor: Tensor | None
    offset: Tensor | None
    augment: Augment | None = None
    transform: Transform | None = None
    _constants: dict[torch.Size, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @classmethod
    def train(
        cls,
        dataset: Dataset,
        augment: Augment | None = None,
        transform: Transform | None = None,
        device: torch.device | str = "cpu",
    ) -> Examples:
        """Return the training examples of a dataset."""
        tensors = _tensors(dataset, dataset.train_inputs, dataset.train_labels, device)
        return cls(*tensors, augment, transform)

    @classmethod
    def test(
        cls,
        dataset: Dataset,
        transform: Transform | None = None,
        device: torch.device | str = "cpu",
    ) -> Examples:
        """Return the test examples of a dataset, without augmentation."""
        tensors = _tensors(dataset, dataset.test_inputs, dataset.test_labels, device)
        return cls(*tensors, None, transform)

    def __len__(self) -> int:
        return self.labels.shape[0]

    def batch(
        self, indices: NDArray[np.int64], rng: Callable[[], np.random.Generator] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs, as a model receives them, and the labels of some examples.

        Args:
            indices: the examples.
            rng: makes the generator for augmentation; None disables augmentation.

        """
        positions = torch.as_tensor(indices, device=self.inputs.device)
        inputs = self.inputs.index_select(0, positions)  # much faster than inputs[positions]
        if self.augment is not None and rng is not None:
            inputs = self.augment(inputs, rng())
        inputs = self._standardised(inputs)
        if inputs.dim() == 4 and self.inputs.is_contiguous(memory_format=torch.channels_last):
            # Single-channel images show it only in their strides, and convolutions depend on those.
            inputs = inputs.to(memory_format=torch.channels_last)
        return inputs, self.labels.index_select(0, positions)

    def chunks(self, size: int, number: int = 0, of: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all examples in order, in chunks, without augmentation.

        Args:
            size: number of examples in a chunk.
            number: the first chunk to yield.
            of: yield every ``of``-th chunk from the first one on.

        """
        for start in range(number * size, len(self), of * size):
            part = slice(start, start + size)
            yield self._standardised(self.inputs[part]), self.labels[part]

    def _standardised(self, inputs: Tensor) -> Tensor:
        if self.transform is not None:
            inputs = self.transform(inputs)
        if self.factor is None or self.offset is None:
            # Embeddings take no other integers.
            return inputs.to(torch.int64) if inputs.dtype in _SMALL_INTEGERS else inputs
        shape = inputs.shape[1:]
        factor, offset = self._expanded_constants(shape, self.factor, self.offset)
        return torch.addcmul(offset, inputs.to(torch.float32), factor)

    def _expanded_constants(
        self, shape: torch.Size, factor: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return factor and offset in the shape of an example: broadcasting them is slow."""
        if shape not in self._constants:
            factor = factor.expand(shape).contiguous()
            offset = offset.expand(shape).contiguous()
            self._constants[shape] = factor, offset
        return self._constants[shape]


def _tensors(
    dataset: Dataset, inputs: Inputs, labels: Labels, device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return inputs, labels, factor and offset as tensors."""
    targets = _tensor(labels, device)
    if targets.dtype in _SMALL_INTEGERS:
        targets = targets.to(torch.int64)  # losses take no other class numbers
    if not dataset.standardise:
        return _tensor(inputs, device), targets, None, None
    factor, offset = dataset.constants()
    return _tensor(inputs, device), targets, _tensor(factor, device), _tensor(offset, device)


def _tensor(array: NDArray[Any], device: torch.device | str) -> Tensor:
    # torch does not share the memory of read-only arrays, such as those read from files.
    return torch.as_tensor(np.require(array, requirements="W"), device=device)
