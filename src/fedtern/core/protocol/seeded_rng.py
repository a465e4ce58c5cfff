"""Deterministic random generators for the methods that need one."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any, cast

import numpy as np


class _LazyGenerator:
    """A generator that is seeded on first use.

    Seeding takes as long as compressing the update of a small model, and most methods use no random
    numbers.
    """

    def __init__(self, key: tuple[int, ...]) -> None:
        self._key = key

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self._key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def check_seed(seed: int) -> int:
    """Return a seed as a Python int.

    Raises:
        ValueError: the seed is negative.

    """
    if (number := operator.index(seed)) < 0:
        raise ValueError(f"seed must not be negative, got {number}")
    return number


def seeded_rng(*key: int) -> np.random.Generator:
    """Return a deterministic generator for a key.

    >>> expected = np.random.default_rng([3, 1]).integers(100)
    >>> bool(seeded_rng(3, 1).integers(100) == expected)
    True
    """
    return cast(np.random.Generator, _LazyGenerator(key))
