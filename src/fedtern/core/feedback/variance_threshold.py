"""Sends values once they are large compared with their variance (Tsuzuku et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.compressors import check_finite
from fedtern.core.feedback.error_feedback import add_residual, return_to_residual
from fedtern.core.feedback.interface import State
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import NoLimits, Sparse, Update

# Bits of a float32: one of sign, eight of exponent, 23 of mantissa.
_MAGNITUDE = np.int32(0x7FFFFFFF)
_EXPONENT = np.int32(0x7F800000)
_HALF_MANTISSA = np.int32(1 << 22)
_SEVEN_HALVINGS = np.int32(7 << 23)


@dataclass(frozen=True)
class VarianceThreshold:
    """Sends a value once its square exceeds ``alpha`` times the sum of its second moments.

    Algorithm 1 of the publication. The second moments of a delta are sums, over examples or small
    groups of examples, of the squared contribution of each one. Without moments, a delta counts as
    a single group.

    Args:
        alpha: the larger it is, the later a value is sent.
        decay: the factor by which second moments of values that are not sent shrink in each step.

    """

    part_id: ClassVar[str] = "variance_threshold"
    alpha: float = 1.0
    decay: float = 0.999
    uses_moments: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"alpha must be positive, got {self.alpha}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {self.decay}")
        object.__setattr__(self, "alpha", float(self.alpha))
        object.__setattr__(self, "decay", float(self.decay))

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Send the values that pass the threshold, as powers of two, and reset both sums."""
        residual, sums = self._accumulate(delta, state, moments)
        check_finite(residual, layout)
        # The residual is squared in float32, like the moments. With another rounding, a single
        # example would often exceed its own second moment.
        passed = np.square(_bounded(residual)) > self.alpha * sums.astype(np.float64)
        update = powers_of_two(residual, np.flatnonzero(passed), layout)
        return update, self._next_state(residual, sums, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Return the state after a step whose update is already known."""
        assert isinstance(update, Sparse)  # ``step`` returns no other updates
        residual, sums = self._accumulate(delta, state, None)
        return self._next_state(residual, sums, update)

    def give_back(self, state: State, update: Update) -> State:
        """Add the update to the residual; it passes the threshold again in the next step."""
        return return_to_residual(state, update)

    def limits(self, layout: Layout) -> NoLimits:
        """Return no limits: any number of values can pass the threshold."""
        return NoLimits()

    def _accumulate(
        self, delta: Vector, state: State, moments: Vector | None
    ) -> tuple[Vector, Vector]:
        """Return the new residual and the new sum of second moments."""
        sums = np.square(_bounded(delta)) if moments is None else moments.copy()
        if "moments" in state:
            sums += state["moments"]
        return add_residual(delta, state), sums

    def _next_state(self, residual: Vector, moments: Vector, update: Sparse) -> State:
        moments *= np.float32(self.decay)
        residual[update.indices] = 0
        moments[update.indices] = 0
        return {"residual": residual, "moments": moments}


def powers_of_two(x: Vector, indices: NDArray[np.int64], layout: Layout) -> Sparse:
    """Round the values at ``indices`` to powers of two.

    Section 4.2 of the publication: a value is rounded to at most the largest power of two that does
    not exceed its tensor's largest magnitude. Values below 2**-7 times that power are left out.

    >>> x = np.float32([5, -3.1, 0.02, 0, 1.4])
    >>> powers_of_two(x, np.array([0, 1, 2, 4]), Layout.flat(5)).to_dense()
    array([ 4., -4.,  0.,  0.,  1.], dtype=float32)
    """
    values = x[indices]
    bits = values.view(np.int32) & _MAGNITUDE
    # Adding half of the mantissa's range rounds to nearest: an overflow increments the exponent.
    rounded = (bits + _HALF_MANTISSA) & _EXPONENT
    cuts = np.searchsorted(indices, layout.ends)
    largest = [bits[a:b].max(initial=0) & _EXPONENT for a, b in pairwise([0, *cuts.tolist()])]
    limit = np.repeat(np.array(largest, np.int32), np.diff(cuts, prepend=0))
    rounded = np.minimum(rounded, limit)
    kept = (rounded >= limit - _SEVEN_HALVINGS) & (rounded > 0)
    powers = np.copysign(rounded[kept].view(np.float32), values[kept])
    return Sparse(x.size, indices[kept], powers)


def _bounded(delta: Vector) -> Vector:
    """Clip values, so that their squares do not overflow float32."""
    return np.clip(delta, -(2.0**60), 2.0**60)
