"""Random numbers for the few methods that want any."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any, cast

import numpy as np


class _Later:
    """A generator that is made when it is asked for its first number.

    Seeding one takes as long as compressing a small model's update, and most methods leave nothing
    to chance.
    """

    def __init__(self, key: tuple[int, ...]) -> None:
        self._key = key

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self._key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def check_seed(seed: int) -> int:
    """The seed as a plain number; what cannot seed anything is refused before it has to."""
    if (number := operator.index(seed)) < 0:
        raise ValueError(f"seed must not be negative, got {number}")
    return number


def seeded_rng(*key: int) -> np.random.Generator:
    """Deterministic generator for a key.

    >>> expected = np.random.default_rng([3, 1]).integers(100)
    >>> bool(seeded_rng(3, 1).integers(100) == expected)
    True
    """
    return cast(np.random.Generator, _Later(key))
