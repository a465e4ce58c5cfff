"""The batches that a client trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

# Independent streams of random numbers.
_ORDER_STREAM = 0
_AUGMENTATION_STREAM = 1


@dataclass(frozen=True, eq=False)
class Batches:
    """A client's infinite sequence of batches.

    Each batch depends only on the seed, the client and its position in the sequence. An epoch has
    every example once, in a new random order; its last batch may be smaller. The only state that a
    client keeps between rounds is its position.

    Args:
        indices: the client's training examples.
        batch_size: number of examples in a batch.
        seed: seed of the experiment.
        client: the client's number.

    Raises:
        ValueError: an argument is out of range, or there are no examples.

    >>> batches = Batches(np.array([10, 11, 12]), batch_size=2, seed=0, client=7)
    >>> [batch.tolist() for batch, _ in batches.take(0, 4)]
    [[12, 10], [11], [11, 10], [12]]
    >>> [batch.tolist() for batch, _ in batches.take(1, 1)]
    [[11]]
    """

    indices: NDArray[np.int64]
    batch_size: int
    seed: int
    client: int
    _orders: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.seed < 0 or self.client < 0:
            raise ValueError(
                f"seed and client must not be negative, got {self.seed} and {self.client}"
            )
        if not self.indices.size:
            raise ValueError(f"client {self.client} has no examples")

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return -(-self.indices.size // self.batch_size)

    def take(
        self, position: int, count: int
    ) -> Iterator[tuple[NDArray[np.int64], Callable[[], np.random.Generator]]]:
        """Yield batches, starting at a position.

        Args:
            position: position of the first batch in the sequence.
            count: number of batches.

        Yields:
            The indices of a batch, and a function that makes the generator for its augmentation.
            Making a generator takes about as long as a step of a small model, and few tasks need
            it.

        """
        for current in range(position, position + count):
            epoch, batch = divmod(current, self.per_epoch)
            if epoch not in self._orders:  # only the order of the last epoch is kept
                self._orders.clear()
                self._orders[epoch] = self._order(epoch)
            order = self._orders[epoch]
            start = batch * self.batch_size
            make_rng = partial(self._rng, _AUGMENTATION_STREAM, current)
            yield order[start : start + self.batch_size], make_rng

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return self._rng(_ORDER_STREAM, epoch).permutation(self.indices)

    def _rng(self, stream: int, number: int) -> np.random.Generator:
        key = (stream, self.client, number)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))
