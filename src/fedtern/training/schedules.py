"""Schedules of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InverseDecay:
    """The learning rate falls to a half at ``iterations``, to a third at twice as many, and so on.

    It does not depend on the length of a run, so a shorter run is the beginning of a longer one.

    Args:
        iterations: number of iterations until the learning rate is a half of the first one.

    Raises:
        ValueError: ``iterations`` is not positive.

    >>> schedule = InverseDecay(1_000)
    >>> [schedule(0), schedule(1_000), schedule(3_000)]
    [1.0, 0.5, 0.25]
    """

    iterations: int

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")

    def __call__(self, iteration: int) -> float:
        """Return the factor of the learning rate at an iteration."""
        return 1 / (1 + iteration / self.iterations)
