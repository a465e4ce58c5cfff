"""Pools of the examples of each class that no client has taken yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.data.dataset import Labels

Counts = NDArray[np.int64]
"""Number of examples of each class."""


class Pools:
    """The examples of each class in random order; clients take them from the front.

    Methods named ``*_counts`` choose how many examples to take; ``take`` takes them.
    """

    def __init__(self, examples: list[NDArray[np.int64]]) -> None:
        self._examples = examples
        self._taken = np.zeros(len(examples), np.int64)
        self._sizes = np.array([pool.size for pool in examples], np.int64)

    @classmethod
    def shuffled(cls, labels: Labels, rng: np.random.Generator) -> Pools:
        """Make a shuffled pool for each class among the labels."""
        if not labels.size:
            raise ValueError("cannot split a training set without examples")
        return cls([rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)])

    @property
    def num_classes(self) -> int:
        """The number of classes, including those with empty pools."""
        return len(self._examples)

    @property
    def left(self) -> Counts:
        """The number of examples left in each class."""
        return self._sizes - self._taken

    def take(self, counts: Counts) -> NDArray[np.int64]:
        """Remove and return the given number of examples of each class."""
        ends = self._taken + counts
        parts = [
            pool[start:end]
            for pool, start, end in zip(self._examples, self._taken, ends, strict=True)
        ]
        self._taken = ends
        return np.concatenate(parts)

    def neighbour_counts(self, budget: int, num_classes: int, rng: np.random.Generator) -> Counts:
        """Choose equal parts of neighbouring classes for one client (Algorithm 5).

        Args:
            budget: number of examples.
            num_classes: number of neighbouring classes.
            rng: draws the first class.

        """
        # Unlike the paper: the first class is drawn among those that start ``num_classes`` classes
        # with enough examples. The paper draws among all classes and moves on when a class is
        # empty, which gives the last clients the rests of many classes.
        # Unlike the paper: a budget that is not a multiple of ``num_classes`` is distributed over
        # these classes. The authors' code takes the remainder from one more class.
        size = self.num_classes
        parts = _even_parts(budget, num_classes)
        windows = (np.arange(size)[:, None] + np.arange(num_classes)) % size
        starts = np.flatnonzero((self.left[windows] >= parts).all(axis=1))
        if not starts.size:
            return self._fewest(budget, num_classes)
        counts = np.zeros(size, np.int64)
        counts[windows[rng.choice(starts)]] = parts
        return counts

    def mixture_counts(
        self, budget: int, mixture: NDArray[np.float64], rng: np.random.Generator
    ) -> Counts:
        """Draw a number of examples of each class, in proportion to a mixture of classes."""
        counts = np.zeros(self.num_classes, np.int64)
        while missing := budget - int(counts.sum()):
            left = self.left - counts
            weights = np.where(left > 0, mixture, 0)
            # All classes of the mixture may be empty; then draw from the others.
            weights = weights if weights.sum() > 0 else left.astype(np.float64)
            counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
        return counts

    def even_counts(self, budget: int) -> Counts:
        """Choose the same number of every class, or all of a class that has fewer."""
        return self._fill(budget, np.arange(self.num_classes))

    def _fewest(self, budget: int, num_classes: int) -> Counts:
        """Choose the budget from ``num_classes`` classes, or else from as few more as possible."""
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
        # The smallest pool that is large enough, to keep large pools for the next clients.
        counts[others[self.left[others] >= rest][-1]] = rest
        return counts

    def _fill(self, budget: int, classes: NDArray[np.int64]) -> Counts:
        """Choose the budget from the given classes, as evenly as their pools allow."""
        counts = np.zeros(self.num_classes, np.int64)
        ascending = classes[np.argsort(self.left[classes], kind="stable")]
        for done, number in enumerate(ascending):
            # The larger pools share what a small pool lacks.
            counts[number] = min(self.left[number], budget // (classes.size - done))
            budget -= int(counts[number])
        return counts


def _even_parts(total: int, num_parts: int) -> Counts:
    """Split a total into integers that differ by at most one, the larger ones first."""
    share, larger = divmod(total, num_parts)
    return share + (np.arange(num_parts) < larger).astype(np.int64)
