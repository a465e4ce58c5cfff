"""A difference between two methods, and how much of one may be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedtern_paper.comparison_groups import Scene
from fedtern_paper.scores import spread

TEST_EXAMPLES = {
    **dict.fromkeys(("vgg11s-cifar10", "lstm-fashion", "logistic-mnist"), 10_000),
    **dict.fromkeys(("logistic-digits", "mlp-digits"), 297),
    "cnn-kws": 2_567,
}
"""How many there are; of a task of one's own that is not known."""


def noise_of(task: str, *accuracies: float) -> float:
    """The standard error of sums and differences of accuracies on a task's test examples.

    It is that of accuracies on examples of their own: on shared ones, as here, it is less.

    >>> round(noise_of("logistic-mnist", 0.9), 4), round(noise_of("cnn-kws", 0.9, 0.9), 4)
    (0.003, 0.0084)
    """
    examples = TEST_EXAMPLES.get(task, math.inf)
    return math.sqrt(sum(p * (1 - p) for p in accuracies) / examples)


class Comparison(NamedTuple):
    """One ordering in one scene; ``ours`` should win over ``other`` if the paper is right.

    ``spread`` is the standard deviation of the margin over seeds, where there are several;
    ``noise`` what tells nothing even if all seeds agree.
    """

    scene: Scene
    what: str
    ours: str
    other: str
    margin: float
    holds: bool
    spread: float | None = None
    noise: float = 0.0

    @property
    def close(self) -> bool:
        """Whether other seeds, or other test examples, might well have decided otherwise."""
        return abs(self.margin) < max(self.spread or 0.0, self.noise)


def judged(
    scene: Scene, what: str, ours: str, other: str, margins: Sequence[float], noise: float = 0.0
) -> Comparison:
    """Who wins by how much, on average over seeds."""
    margin = fmean(margins)
    return Comparison(scene, what, ours, other, margin, margin > 0, spread(margins), noise)
