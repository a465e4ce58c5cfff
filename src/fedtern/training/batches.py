"""Which examples a client trains on in each of its iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

_ORDER, _AUGMENTATION = 0, 1  # two streams of random numbers that never meet


@dataclass(frozen=True, eq=False)
class Batches:
    """A client's endless sequence of batches, each a function of seed, client and position.

    All examples are seen once an epoch, in a new order each time; an epoch's last batch may be
    smaller. A client's state is one integer, the number of batches it has had: nothing else has
    to be kept between rounds, or saved.

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
            raise ValueError(f"client {self.client} has no examples to make batches of")

    @property
    def per_epoch(self) -> int:
        """How many batches an epoch has."""
        return -(-self.indices.size // self.batch_size)

    def take(
        self, position: int, count: int
    ) -> Iterator[tuple[NDArray[np.int64], Callable[[], np.random.Generator]]]:
        """``count`` batches from a position on, each with what makes its augmentation's generator.

        Making one costs about as much as a step of a small model, and few tasks augment.
        """
        for at in range(position, position + count):
            epoch, batch = divmod(at, self.per_epoch)
            if epoch not in self._orders:  # the last one used is kept
                self._orders.clear()
                self._orders[epoch] = self._order(epoch)
            order = self._orders[epoch]
            start = batch * self.batch_size
            yield order[start : start + self.batch_size], partial(self._rng, _AUGMENTATION, at)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return self._rng(_ORDER, epoch).permutation(self.indices)

    def _rng(self, stream: int, number: int) -> np.random.Generator:
        key = (stream, self.client, number)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))
