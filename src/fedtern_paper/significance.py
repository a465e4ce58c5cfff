"""Differences between methods, and whether they may be due to chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedtern_paper.comparison_groups import ComparisonGroup
from fedtern_paper.published import CNN, LOGISTIC, LSTM, VGG
from fedtern_paper.results import spread

TEST_EXAMPLES = {
    VGG: 10_000,
    LSTM: 10_000,
    LOGISTIC: 10_000,
    CNN: 2_567,
    "logistic-digits": 297,
    "mlp-digits": 297,
}
"""Number of test examples of each task; unknown for other tasks."""


def standard_error(task: str, *accuracies: float) -> float:
    """Return the standard error of a sum or difference of accuracies on a task's test examples.

    It is that of accuracies on independent test examples. On shared examples, as here, the error
    is smaller. For tasks with an unknown number of test examples it is 0.

    >>> one, two = standard_error("logistic-mnist", 0.9), standard_error("cnn-kws", 0.9, 0.9)
    >>> round(one, 4), round(two, 4)
    (0.003, 0.0084)
    """
    examples = TEST_EXAMPLES.get(task, math.inf)
    return math.sqrt(sum(p * (1 - p) for p in accuracies) / examples)


class Comparison(NamedTuple):
    """A comparison of two methods in one group; if the paper is right, the first is better.

    Attributes:
        group: The runs that are compared.
        what: What is compared.
        first: Value of the first method, formatted.
        second: Value of the second method, formatted.
        margin: How much better the first is, averaged over seeds; nan if there is no number.
        holds: Whether the first is better.
        spread: Standard deviation of the margin over seeds, if there are several.
        error: Standard error of the margin due to the limited number of test examples.

    """

    group: ComparisonGroup
    what: str
    first: str
    second: str
    margin: float
    holds: bool
    spread: float | None = None
    error: float = 0.0

    @property
    def close(self) -> bool:
        """Whether other seeds or other test examples might have decided otherwise."""
        return abs(self.margin) < max(self.spread or 0.0, self.error)


def compare_margins(
    group: ComparisonGroup,
    what: str,
    first: str,
    second: str,
    margins: Sequence[float],
    error: float = 0.0,
) -> Comparison:
    """Return the comparison that follows from the margins of all seeds."""
    margin = fmean(margins)
    return Comparison(group, what, first, second, margin, margin > 0, spread(margins), error)
