"""Values are sent once they are unambiguous: large beside their variance (Tsuzuku et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.compressors import check_finite
from fedtern.core.feedback.error_feedback import return_to_residual, with_residual
from fedtern.core.feedback.interface import State
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Sparse, Update

# A float32 without its sign: eight bits of exponent, 23 of mantissa.
_MAGNITUDE, _EXPONENT = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
_HALF, _SEVEN = np.int32(1 << 22), np.int32(7 << 23)


@dataclass(frozen=True)
class VarianceThreshold:
    """Sends a value once its square exceeds ``alpha`` times the second moments that made it up.

    Algorithm 1 of the publication. The second moments are sums over examples, or over small groups
    of them, of the square of each one's share in the delta. Without them, every delta counts as one
    such group.

    Args:
        alpha: the larger, the later a value is sent.
        decay: what second moments are multiplied by where nothing was sent.

    """

    part_id: ClassVar[str] = "variance_threshold"
    alpha: float = 1.0
    decay: float = 0.999
    observes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"alpha must be positive, got {self.alpha}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {self.decay}")
        for name in ("alpha", "decay"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Send what is unambiguous, as powers of two; both sums start anew where it was sent."""
        residual, sums = self._accumulated(delta, state, moments)
        check_finite(residual, layout)
        # Squared as moments are: rounded in another way, a lone example would often exceed itself.
        clear = np.square(_bounded(residual)) > self.alpha * sums.astype(np.float64)
        update = powers_of_two(residual, np.flatnonzero(clear), layout)
        return update, self._settled(residual, sums, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """The state after a step that is known to have given ``update``."""
        assert isinstance(update, Sparse)  # as ``step`` makes them
        return self._settled(*self._accumulated(delta, state, None), update)

    def give_back(self, state: State, update: Update) -> State:
        """Put the update back into the residual; it will be found unambiguous once more."""
        return return_to_residual(state, update)

    def _accumulated(
        self, delta: Vector, state: State, moments: Vector | None
    ) -> tuple[Vector, Vector]:
        sums = np.square(_bounded(delta)) if moments is None else moments.copy()
        if "moments" in state:
            sums += state["moments"]
        return with_residual(delta, state), sums

    def _settled(self, residual: Vector, moments: Vector, update: Sparse) -> State:
        moments *= np.float32(self.decay)
        residual[update.indices] = 0
        moments[update.indices] = 0
        return {"residual": residual, "moments": moments}


def powers_of_two(x: Vector, indices: NDArray[np.int64], layout: Layout) -> Sparse:
    """The values at ``indices``, rounded to a power of two.

    Section 4.2 of the publication: none is above the largest power within its tensor's largest
    magnitude, and what is more than seven halvings below that is left out.

    >>> x = np.float32([5, -3.1, 0.02, 0, 1.4])
    >>> powers_of_two(x, np.array([0, 1, 2, 4]), Layout.flat(5)).to_dense()
    array([ 4., -4.,  0.,  0.,  1.], dtype=float32)
    """
    values = x[indices]
    bits = values.view(np.int32) & _MAGNITUDE
    # Half of the mantissa's range added, what passes it is carried into the exponent.
    rounded = (bits + _HALF) & _EXPONENT
    cuts = np.searchsorted(indices, layout.ends)
    largest = [bits[a:b].max(initial=0) & _EXPONENT for a, b in pairwise([0, *cuts.tolist()])]
    most = np.repeat(np.array(largest, np.int32), np.diff(cuts, prepend=0))
    rounded = np.minimum(rounded, most)
    kept = (rounded >= most - _SEVEN) & (rounded > 0)
    sent = np.copysign(rounded[kept].view(np.float32), values[kept])
    return Sparse(x.size, indices[kept], sent)


def _bounded(delta: Vector) -> Vector:
    return np.clip(delta, -(2.0**60), 2.0**60)  # whose square is a float32
