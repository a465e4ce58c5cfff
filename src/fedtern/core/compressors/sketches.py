"""Random parts of a vector, which both sides derive from a seed (Konecny et al., 2016)."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.compressors.compressor import Loss, check_finite
from fedtern.core.compressors.lowrank import draw_seed
from fedtern.core.compressors.sparse import check_rate, count_kept
from fedtern.core.kernels import rotate
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Masked, Sketched
from fedtern.core.updates.seeded import block_lengths, mask_positions, sketch_signs

_SMALL = 2.0**-100


@dataclass(frozen=True)
class RandomMask:
    """The values at a share ``p`` of all positions, chosen anew each time.

    What lies elsewhere is not sent; a client that trains these weights only (``restrict``) loses
    nothing by it.
    """

    part_id: ClassVar[str] = "random_mask"
    p: float
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Masked:
        """A new mask each time, by the generator's first number."""
        check_finite(x, layout)
        seed, count = draw_seed(rng), min(count_kept(x.size, self.p), x.size)
        return Masked(x.size, seed, x[mask_positions(seed, x.size, count)])

    def restrict(self, gradient: Vector, layout: Layout, rng: np.random.Generator) -> None:
        """Set a gradient to zero outside of the mask, in place."""
        count = min(count_kept(gradient.size, self.p), gradient.size)
        kept = mask_positions(draw_seed(rng), gradient.size, count)
        values = gradient[kept]
        gradient[...] = 0
        gradient[kept] = values


@dataclass(frozen=True)
class Sketch:
    """A share ``p`` of all values, rotated at random, at ``bits`` bits each.

    Subsampling and rounding are both unbiased; the rotation makes values alike in size, so that
    rounding costs little.
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
        """A new mask and rotation each time."""
        check_finite(x, layout)
        seed, kept = draw_seed(rng), min(count_kept(x.size, self.p), x.size)
        lengths = block_lengths(kept)
        values = np.zeros(sum(lengths), np.float32)
        values[:kept] = x[mask_positions(seed, x.size, kept)] * np.float32(x.size / max(kept, 1))
        values *= sketch_signs(seed, x.size, values.size)
        levels = np.empty(values.size, np.int32)
        chances = rng.random(values.size, np.float32)
        most, lows, highs, at = np.float32((1 << self.bits) - 1), [], [], 0
        for length in lengths:
            place = slice(at, at + length)
            block = values[place]
            rotate(block)
            low, high = block.min(), block.max()
            span = np.float64(high) - np.float64(low)  # whose inverse may be beyond float32
            unit = most / (high - low) if span > _SMALL else most / span if span else 0.0
            exact = (block - low) * unit + chances[place]
            levels[place] = np.clip(exact, 0, most)
            lows.append(low)
            highs.append(high)
            at += length
        both = np.array(lows, np.float32), np.array(highs, np.float32)
        return Sketched(x.size, seed, kept, self.bits, levels, *both)
