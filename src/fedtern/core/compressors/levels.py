"""Compressors that round every value to a grid, at random or to the nearest level."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtern.core.compressors.compressor import MAX_MAGNITUDE, Loss, check_finite
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Levels
from fedtern.core.updates.levels import bucket_ends
from fedtern.core.updates.limits import LevelLimits

Norm = Literal["l2", "max"]


@dataclass(frozen=True)
class StochasticTernary:
    """Zero, or the tensor's largest magnitude with the value's sign (Wen et al., 2017).

    A value is kept with probability |x| / max |x|.

    Args:
        clip: clip values at this many standard deviations of their tensor, or None. The update is
            an unbiased estimate of the clipped values.

    >>> x = np.float32([0, 4, -1, 0.5])
    >>> rng = np.random.default_rng(0)
    >>> many = [StochasticTernary().compress(x, Layout.flat(4), rng) for _ in range(1000)]
    >>> sum(update.to_dense() for update in many) / 1000
    array([ 0.   ,  4.   , -1.028,  0.52 ], dtype=float32)
    """

    part_id: ClassVar[str] = "stochastic_ternary"
    clip: float | None = None
    loss: ClassVar[Loss] = "unbiased"

    def __post_init__(self) -> None:
        if self.clip is not None:
            if not 0 < self.clip < np.inf:
                raise ValueError(f"clip must be positive or None, got {self.clip}")
            object.__setattr__(self, "clip", float(self.clip))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Levels:
        """Compress each tensor by Eqs. 1-3 of the publication; clipping is its Eq. 7."""
        check_finite(x, layout)
        uniforms = rng.random(x.size, np.float32)
        levels = np.empty(x.size, np.int32)
        scales = []
        start = 0
        for end in layout.ends.tolist():
            part = x[start:end]
            magnitudes = np.abs(part)
            if self.clip is not None and part.size:
                limit = np.float32(self.clip * part.std(dtype=np.float64))
                if limit > 0:  # zero if all values are equal, such as a single value
                    np.minimum(magnitudes, limit, out=magnitudes)
            scale = magnitudes.max(initial=0.0)
            scales.append(scale)
            # The random numbers are below 1, so the largest value is always kept.
            kept = uniforms[start:end] * scale < magnitudes
            levels[start:end] = np.where(kept, np.sign(part), 0)
            start = end
        return Levels(x.size, levels, np.array(scales, np.float32), layout.ends, 1)

    def limits(self, layout: Layout) -> LevelLimits:
        """Return one level per tensor."""
        return LevelLimits(1, layout.ends)


@dataclass(frozen=True)
class StochasticLevels:
    """Fractions of the norm of each bucket (Alistarh et al., 2017).

    Args:
        steps: the number of levels between zero and the norm.
        bucket: the number of values per bucket.
        norm: "l2", as in the publication's analysis, or "max", as in its experiments.

    """

    part_id: ClassVar[str] = "stochastic_levels"
    steps: int
    bucket: int
    norm: Norm = "l2"
    loss: ClassVar[Loss] = "unbiased"

    def __post_init__(self) -> None:
        for name, most in (("steps", 1 << 20), ("bucket", 1 << 40)):
            value = operator.index(getattr(self, name))
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most}, got {value}")
            object.__setattr__(self, name, value)
        if self.norm not in ("l2", "max"):
            raise ValueError(f'norm must be "l2" or "max", got {self.norm!r}')

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Levels:
        """Compress each bucket of the flat vector by Eq. 4.3 of the publication."""
        check_finite(x, layout)
        ends = self._segments(layout)
        lengths = np.diff(ends, prepend=0)
        starts = ends - lengths
        magnitudes = np.abs(x)
        scales = np.zeros(ends.size, np.float32)
        if x.size and self.norm == "max":
            scales = np.maximum.reduceat(magnitudes, starts)
        elif x.size:
            squares = np.add.reduceat(np.square(x, dtype=np.float64), starts)
            scales = np.sqrt(squares).astype(np.float32)
        if scales.max(initial=0) > MAX_MAGNITUDE:
            raise layout.non_finite_error(int(magnitudes.argmax()), float(magnitudes.max()))
        # A bucket of zeros has a scale of zero. Its values are zero for any other divisor.
        divisors = np.where(scales > 0, scales, np.float32(1))
        exact = magnitudes / np.repeat(divisors, lengths)
        exact *= np.float32(self.steps)
        exact += rng.random(x.size, np.float32)
        levels = np.minimum(exact, np.float32(self.steps)).astype(np.int32)
        levels[x < 0] *= -1
        return Levels(x.size, levels, scales, ends, self.steps)

    def limits(self, layout: Layout) -> LevelLimits:
        """Return the number of levels and the buckets."""
        return LevelLimits(self.steps, self._segments(layout))

    def _segments(self, layout: Layout) -> NDArray[np.int64]:
        return bucket_ends(layout.size, self.bucket) if layout.size else layout.ends


@dataclass(frozen=True)
class NearestLevels:
    """The nearest multiples of a step that is relative to the root mean square of each tensor.

    With a step s of up to about 1, most of a vector's energy is kept: the relative error of a
    tensor is at most e = s**2 / 4, and s**2 / 12 on average over values that are spread evenly. A
    larger step leaves more values at zero. When the levels are known, their distance is chosen
    anew, so that the update is as long as the tensor in the tensor's direction: values that became
    zero do not make updates shorter on average, and a tensor of one value, or of equal magnitudes,
    is sent exactly. The relative error is then at most e / (1 - e).

    Args:
        step: the distance between two levels, relative to the root mean square of a tensor; from
            0.01 to 1.4.

    >>> x = np.float32([0.1, 3, -1, 0.5])
    >>> NearestLevels(1.0).compress(x, Layout.flat(4), np.random.default_rng(0)).to_dense()
    array([ 0.       ,  2.9314287, -1.4657143,  0.       ], dtype=float32)
    """

    part_id: ClassVar[str] = "nearest_levels"
    step: float
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        # The error must be smaller than the values: e / (1 - e) < 1.
        if not 0.01 <= self.step <= 1.4:
            raise ValueError(f"step must be from 0.01 to 1.4, got {self.step}")
        object.__setattr__(self, "step", float(self.step))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Levels:
        """Round each tensor; a tensor of zeros stays zero."""
        check_finite(x, layout)
        levels = np.zeros(x.size, np.int32)
        units = np.zeros(layout.ends.size, np.float32)
        start = 0
        for number, end in enumerate(layout.ends.tolist()):
            part = x[start:end]
            energy = _dot(part, part)
            unit = np.float32(self.step * math.sqrt(energy / max(part.size, 1)))
            # Below the normal numbers, the quotients would lose all precision.
            if unit >= np.finfo(np.float32).tiny:
                rounded = part / unit
                np.rint(rounded, out=rounded)
                np.clip(rounded, -_MAX_LEVEL, _MAX_LEVEL, out=rounded)
                levels[start:end] = rounded
                # At least one level is not zero, because the largest value exceeds half a step.
                units[number] = energy / _dot(part, rounded)
            start = end
        steps = max(int(levels.max(initial=0)), -int(levels.min(initial=0)), 1)
        # A scale belongs to the highest level of all tensors, and must be a number that is sent.
        scales = np.minimum(units * np.float64(steps), MAX_MAGNITUDE).astype(np.float32)
        return Levels(x.size, levels, scales, layout.ends, steps)

    def limits(self, layout: Layout) -> LevelLimits:
        """Return the largest number of levels: of a tensor with a single large value."""
        largest = int(np.diff(layout.ends, prepend=0).max(initial=1))
        # No value exceeds the root mean square times the root of the size. The rest is rounding.
        most = math.floor(math.sqrt(largest) / self.step * (1 + 1e-6)) + 1
        return LevelLimits(min(most, _MAX_LEVEL), layout.ends, exact=False)


_MAX_LEVEL = 1 << 20  # of the codec; a tensor would need 10**8 values to reach it
_CHUNK = 1 << 20


def _dot(a: Vector, b: Vector) -> float:
    """Return the scalar product, in chunks, so that no float64 copy of a large tensor is made."""
    return sum(
        float(np.dot(a[start : start + _CHUNK].astype(np.float64), b[start : start + _CHUNK]))
        for start in range(0, a.size, _CHUNK)
    )
