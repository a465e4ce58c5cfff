"""What is left of each class while a training set is dealt out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.data.dataset import Labels

Counts = NDArray[np.int64]
"""How many examples to take of each class."""


class Pools:
    """Shuffled examples of each class, taken from the front."""

    def __init__(self, examples: list[NDArray[np.int64]]) -> None:
        self._examples = examples
        self._taken = np.zeros(len(examples), np.int64)
        self._sizes = np.array([pool.size for pool in examples], np.int64)

    @classmethod
    def shuffled(cls, labels: Labels, rng: np.random.Generator) -> Pools:
        """A pool for each class there is, with its examples in random order."""
        if not labels.size:
            raise ValueError("there are no examples to split")
        return cls([rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)])

    @property
    def num_classes(self) -> int:
        """How many classes there are, empty pools included."""
        return len(self._examples)

    @property
    def left(self) -> Counts:
        """How many examples of each class nobody has taken."""
        return self._sizes - self._taken

    def take(self, counts: Counts) -> NDArray[np.int64]:
        """Remove and return that many examples of each class."""
        ends = self._taken + counts
        parts = [
            pool[start:end]
            for pool, start, end in zip(self._examples, self._taken, ends, strict=True)
        ]
        self._taken = ends
        return np.concatenate(parts)

    def plan(self, budget: int, num_classes: int, rng: np.random.Generator) -> Counts:
        """What Algorithm 5 takes for one client.

        Unlike the paper: the first class is drawn among those whose neighbours have enough, where
        the paper draws among all and goes on to further classes when one runs dry; as pools
        empty, that leaves the last clients with scraps of many classes. And a budget that is no
        multiple of ``num_classes`` is spread over them, where the authors' code takes the
        remainder from one class more.
        """
        size = self.num_classes
        parts = _even_parts(budget, num_classes)
        windows = (np.arange(size)[:, None] + np.arange(num_classes)) % size
        starts = np.flatnonzero((self.left[windows] >= parts).all(axis=1))
        if not starts.size:
            return self._fewest(budget, num_classes)
        counts = np.zeros(size, np.int64)
        counts[windows[rng.choice(starts)]] = parts
        return counts

    def draw(self, budget: int, mixture: NDArray[np.float64], rng: np.random.Generator) -> Counts:
        """A random number of each class in proportion to a mixture, as far as there are any."""
        counts = np.zeros(self.num_classes, np.int64)
        while missing := budget - int(counts.sum()):
            left = self.left - counts
            weights = np.where(left > 0, mixture, 0)
            # A mixture of classes that have all run out says nothing about the others.
            weights = weights if weights.sum() > 0 else left.astype(np.float64)
            counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
        return counts

    def even(self, budget: int) -> Counts:
        """The same number of every class, or all there is of one that has fewer."""
        return self._fill(budget, np.arange(self.num_classes))

    def _fewest(self, budget: int, num_classes: int) -> Counts:
        """The budget from ``num_classes`` classes if that can be, else from as few as can be."""
        order = np.argsort(-self.left, kind="stable")
        needed = int(np.searchsorted(np.cumsum(self.left[order]), budget)) + 1
        if needed <= num_classes:
            nonempty = np.count_nonzero(self.left)
            return self._fill(budget, order[: min(num_classes, nonempty, budget)])
        whole = order[: needed - 1]
        counts = np.zeros(self.num_classes, np.int64)
        counts[whole] = self.left[whole]
        rest = budget - int(counts.sum())
        others = order[needed - 1 :]
        # The smallest pool that has it: large ones stay whole for the clients to come.
        counts[others[self.left[others] >= rest][-1]] = rest
        return counts

    def _fill(self, budget: int, classes: NDArray[np.int64]) -> Counts:
        """The budget from these classes, as evenly as what is left of them allows."""
        counts = np.zeros(self.num_classes, np.int64)
        ascending = classes[np.argsort(self.left[classes], kind="stable")]
        for done, number in enumerate(ascending):
            # What a small pool lacks is shared by all those larger than it.
            counts[number] = min(self.left[number], budget // (classes.size - done))
            budget -= int(counts[number])
        return counts


def _even_parts(total: int, num_parts: int) -> Counts:
    """Whole numbers of this sum that differ by one at most, the larger ones first."""
    share, larger = divmod(total, num_parts)
    return share + (np.arange(num_parts) < larger).astype(np.int64)
