"""A dataset's examples as tensors on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtern.data import Dataset
from fedtern.data.dataset import Inputs, Labels
from fedtern.training.augment import Augment, Transform


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs as they are stored and labels, with what turns them into what a model sees.

    A batch is augmented where a generator is given, then transformed, then standardised.
    """

    inputs: Tensor
    labels: Tensor
    factor: Tensor
    offset: Tensor
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
        """The examples to train on."""
        inputs, labels = dataset.train_inputs, dataset.train_labels
        return cls(*_tensors(dataset, inputs, labels, device), augment, transform)

    @classmethod
    def test(
        cls,
        dataset: Dataset,
        transform: Transform | None = None,
        device: torch.device | str = "cpu",
    ) -> Examples:
        """The examples to test on, which are never augmented."""
        inputs, labels = dataset.test_inputs, dataset.test_labels
        return cls(*_tensors(dataset, inputs, labels, device), None, transform)

    def __len__(self) -> int:
        return self.labels.shape[0]

    def batch(
        self, indices: NDArray[np.int64], rng: Callable[[], np.random.Generator] | None = None
    ) -> tuple[Tensor, Tensor]:
        """What a model sees of these examples, and their labels."""
        at = torch.as_tensor(indices, device=self.inputs.device)
        inputs = self.inputs.index_select(0, at)  # in a fraction of the time that inputs[at] takes
        if self.augment is not None and rng is not None:
            inputs = self.augment(inputs, rng())
        seen = self._seen(inputs)
        if seen.dim() == 4 and self.inputs.is_contiguous(memory_format=torch.channels_last):
            # That of a single channel can be told by its strides only, and convolutions go by them.
            seen = seen.to(memory_format=torch.channels_last)
        return seen, self.labels.index_select(0, at)

    def chunks(self, size: int, number: int = 0, of: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All examples in order, ``size`` at a time, without augmentation.

        With ``of``, only chunk ``number`` of every so many.
        """
        for start in range(number * size, len(self), of * size):
            part = slice(start, start + size)
            yield self._seen(self.inputs[part]), self.labels[part]

    def _seen(self, inputs: Tensor) -> Tensor:
        if self.transform is not None:
            inputs = self.transform(inputs)
        factor, offset = self._spread(inputs.shape[1:])
        return torch.addcmul(offset, inputs.to(torch.float32), factor)

    def _spread(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """A factor and an offset for every number of an example: torch is slow to broadcast one."""
        if shape not in self._constants:
            both = (self.factor.expand(shape), self.offset.expand(shape))
            self._constants[shape] = both[0].contiguous(), both[1].contiguous()
        return self._constants[shape]


def _tensors(
    dataset: Dataset, inputs: Inputs, labels: Labels, device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # torch refuses to share memory that it must not write to, which files read at once are.
    arrays = (np.require(a, requirements="W") for a in (inputs, labels, *dataset.constants()))
    one, two, three, four = (torch.as_tensor(array, device=device) for array in arrays)
    return one, two, three, four
