"""Compressors that depend on a seed: random parts of a vector, and random rotations."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedtern.core.compressors.compressor import MAX_MAGNITUDE, Loss, check_finite
from fedtern.core.compressors.lowrank import draw_seed
from fedtern.core.compressors.sparse import check_rate, count_kept
from fedtern.core.kernels import rotate
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Masked, Rotated, Sketched
from fedtern.core.updates.limits import SeededLimits
from fedtern.core.updates.seeded import (
    CENTROIDS,
    block_lengths,
    centroids_of,
    mask_positions,
    sketch_signs,
)

_SMALL_SPAN = 2.0**-100  # below, the inverse of a span may overflow float32


@dataclass(frozen=True)
class RandomMask:
    """The values at a random share of all positions.

    All other values are lost. A client that trains only the weights of the mask (see ``restrict``)
    loses nothing.

    Args:
        p: the share of positions.

    """

    part_id: ClassVar[str] = "random_mask"
    p: float
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Masked:
        """Return the values of a new mask; its seed is the generator's first number."""
        check_finite(x, layout)
        seed = draw_seed(rng)
        count = min(count_kept(x.size, self.p), x.size)
        return Masked(x.size, seed, x[mask_positions(seed, x.size, count)])

    def limits(self, layout: Layout) -> SeededLimits:
        """Return the number of values."""
        return SeededLimits(min(count_kept(layout.size, self.p), layout.size))

    def restrict(self, gradient: Vector, layout: Layout, rng: np.random.Generator) -> None:
        """Set a gradient to zero, in place, outside the mask."""
        count = min(count_kept(gradient.size, self.p), gradient.size)
        kept = mask_positions(draw_seed(rng), gradient.size, count)
        values = gradient[kept]
        gradient[...] = 0
        gradient[kept] = values


@dataclass(frozen=True)
class Sketch:
    """A random share of all values, rotated at random and rounded to few bits.

    Subsampling and rounding are unbiased. The rotation makes the values similar in magnitude, which
    keeps rounding errors small.

    Args:
        p: the share of values.
        bits: the number of bits per value.

    """

    part_id: ClassVar[str] = "sketch"
    p: float
    bits: int = 1
    loss: ClassVar[Loss] = "unbiased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        if not 1 <= operator.index(self.bits) <= 16:
            raise ValueError(f"bits must be from 1 to 16, got {self.bits}")
        object.__setattr__(self, "bits", operator.index(self.bits))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Sketched:
        """Sample, rotate and round, with a new mask and a new rotation."""
        check_finite(x, layout)
        seed = draw_seed(rng)
        kept = min(count_kept(x.size, self.p), x.size)
        lengths = block_lengths(kept)
        values = np.zeros(sum(lengths), np.float32)
        values[:kept] = x[mask_positions(seed, x.size, kept)] * np.float32(x.size / max(kept, 1))
        values *= sketch_signs(seed, x.size, values.size)
        levels = np.empty(values.size, np.int32)
        uniforms = rng.random(values.size, np.float32)
        max_level = np.float32((1 << self.bits) - 1)
        lows = []
        highs = []
        at = 0
        for length in lengths:
            part = slice(at, at + length)
            block = values[part]
            rotate(block)
            low = block.min()
            high = block.max()
            exact = (block - low) * _levels_per_unit(low, high, max_level) + uniforms[part]
            levels[part] = np.clip(exact, 0, max_level)
            lows.append(low)
            highs.append(high)
            at += length
        return Sketched(
            x.size,
            seed,
            kept,
            self.bits,
            levels,
            np.array(lows, np.float32),
            np.array(highs, np.float32),
        )

    def limits(self, layout: Layout) -> SeededLimits:
        """Return the number of values and of bits."""
        return SeededLimits(min(count_kept(layout.size, self.p), layout.size), self.bits)


@dataclass(frozen=True)
class RotatedCentroids:
    """All values, rotated at random and rounded to few centroids (Vargaftik et al., 2022).

    After the rotation, the values of a block are nearly normally distributed. They are rounded to
    the centroids that are best for a normal distribution, and scaled so that the update has the
    inner product of the vector with itself: an unbiased estimate for uniformly random rotations.
    With the random Hadamard rotation of the publication, the bias is small for large blocks.

    Args:
        bits: the number of bits per value, from 1 (DRIVE) to 4.

    """

    part_id: ClassVar[str] = "rotated_centroids"
    bits: int = 1
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        if operator.index(self.bits) not in CENTROIDS:
            raise ValueError(f"bits must be from 1 to {max(CENTROIDS)}, got {self.bits}")
        object.__setattr__(self, "bits", operator.index(self.bits))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Rotated:
        """Rotate and round all values, with a new rotation."""
        check_finite(x, layout)
        seed = draw_seed(rng)
        lengths = block_lengths(x.size)
        values = np.zeros(sum(lengths), np.float32)
        values[: x.size] = x
        values *= sketch_signs(seed, x.size, values.size)
        centroids = centroids_of(self.bits)
        cuts = (centroids[1:] + centroids[:-1]) / 2
        levels = np.zeros(values.size, np.int32)
        scales = []
        at = 0
        for length in lengths:
            block = values[at : at + length]
            rotate(block)
            energy = float(np.square(block, dtype=np.float64).sum())
            deviation = math.sqrt(energy / length)
            part = levels[at : at + length]
            for cut in cuts:
                part += block > np.float32(cut * deviation)
            inner = float(np.multiply(block, centroids[part], dtype=np.float64).sum())
            scales.append(min(energy / inner, MAX_MAGNITUDE) if inner else 0.0)
            at += length
        return Rotated(x.size, seed, self.bits, levels, np.array(scales, np.float32))

    def limits(self, layout: Layout) -> SeededLimits:
        """Return the number of values and of bits."""
        return SeededLimits(layout.size, self.bits)


def _levels_per_unit(low: np.float32, high: np.float32, max_level: np.float32) -> Any:
    """Return the inverse of the distance between two levels; 0 if the block is constant."""
    span = np.float64(high) - np.float64(low)
    if span > _SMALL_SPAN:
        return max_level / (high - low)
    return max_level / span if span else 0.0
