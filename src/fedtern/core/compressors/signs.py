"""Compressors that send one bit per weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.compressors.compressor import MAX_MAGNITUDE, Loss, check_finite, float64_mean
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Levels, Signs
from fedtern.core.updates.limits import LevelLimits, SignLimits


@dataclass(frozen=True)
class Sign:
    """The sign of each value, with a fixed step (Bernstein et al., 2018).

    Unlike the paper: a zero, such as a tied vote, gets a random sign, because one bit cannot
    express it. A fixed sign would push such weights in one direction.

    Args:
        step: the magnitude of the update.

    """

    part_id: ClassVar[str] = "sign"
    step: float = 1.0
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        if not 0 < np.float32(self.step) <= MAX_MAGNITUDE:
            raise ValueError(f"step must be a positive float32 up to 2**100, got {self.step}")
        object.__setattr__(self, "step", float(self.step))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Signs:
        """Return the signs of ``x``; its magnitudes are not used."""
        check_finite(x, layout)
        positive = x > 0
        ties = np.flatnonzero(x == 0)
        positive[ties] = rng.integers(0, 2, ties.size, dtype=np.uint8).view(np.bool_)
        return Signs.pack(positive, float(np.float32(self.step)))

    def limits(self, layout: Layout) -> SignLimits:
        """Return the only magnitude."""
        return SignLimits(float(np.float32(self.step)))


@dataclass(frozen=True)
class ScaledSign:
    """The signs of each tensor times its mean magnitude (Karimireddy et al., 2019, Algorithm 1).

    >>> x = np.float32([3, -1, 2, 0])
    >>> ScaledSign().compress(x, Layout.flat(4), np.random.default_rng(0)).to_dense()
    array([ 1.5, -1.5,  1.5,  1.5], dtype=float32)
    """

    part_id: ClassVar[str] = "scaled_sign"
    loss: ClassVar[Loss] = "biased"

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Levels:
        """Return signs and scales; zeros count as positive, which error feedback corrects."""
        check_finite(x, layout)
        parts = layout.unflatten(np.abs(x)).values()
        scales = np.array([float64_mean(part) for part in parts], np.float32)
        levels = np.where(x < 0, np.int32(-1), np.int32(1))
        return Levels(x.size, levels, scales, layout.ends, 1)

    def limits(self, layout: Layout) -> LevelLimits:
        """Return one level per tensor."""
        return LevelLimits(1, layout.ends)
