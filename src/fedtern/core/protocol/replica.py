"""Replicas: weights that result from applying broadcasts in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.kernels import apply_sign_counts
from fedtern.core.layout import Vector
from fedtern.core.updates import Signs, Sparse, Steps, Update, is_empty
from fedtern.core.updates.sums import MAX_UPDATES, SignCounts

_CARRIED = "carried."  # prefix of the arrays of carried tensors


@dataclass
class _CountedSigns:
    """The sign updates since the last update of another kind."""

    base: Vector  # the weights before these updates
    num_updates: int
    counts: NDArray[np.int32]
    step: float


class Replica:
    """Weights that have the same bits wherever the same updates are applied.

    Sign updates are counted, and the weights are computed from the counts. So a sum of signs gives
    the same bits as the signs one by one. Steps are added exactly: the replica keeps the part of a
    weight that float32 cannot hold, so that a sum of steps gives the same bits, too.

    Args:
        weights: the weights, which the replica changes in place.
        stamp: the stamp of the history up to here.
        carried: the values of the carried tensors.

    """

    def __init__(
        self, weights: Vector, stamp: bytes = bytes(3), carried: Values = NO_VALUES
    ) -> None:
        self.weights = weights
        self.stamp = stamp
        self.carried = dict(carried)
        self._signs: _CountedSigns | None = None
        self._low: Vector | None = None  # exact weight - weight; None if all are zero

    def apply(self, update: Update) -> None:
        """Apply an update, or a sum of updates."""
        if isinstance(update, Signs):
            counts = np.where(update.positive, np.int32(1), np.int32(-1))
            self._add_signs(SignCounts(update.size, 1, counts, update.step))
        elif isinstance(update, SignCounts):
            self._add_signs(update)
        elif isinstance(update, Steps):
            self._add_steps(update)
        elif not is_empty(update):
            self._signs = None
            update.add_to(self.weights)

    def advance(self, update: Update, stamp: bytes, carried: Values = NO_VALUES) -> None:
        """Apply an update and the changed carried tensors; ``stamp`` is of the history after it."""
        self.apply(update)
        self.carried.update(carried)
        self.stamp = stamp

    def _add_steps(self, update: Steps) -> None:
        at = update.indices
        exact = self.exact_weights(at) + update.exact_values
        self.weights[at] = exact
        low = (exact - self.weights[at]).astype(np.float32)
        if self._low is None and low.any():
            self._low = np.zeros_like(self.weights)
        if self._low is not None:
            self._low[at] = low

    def exact_weights(self, at: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return the exact weights at some positions, or all of them."""
        where = slice(None) if at is None else at
        exact = self.weights[where].astype(np.float64)
        if self._low is not None:
            exact += self._low[where]
        return exact

    @property
    def low_parts(self) -> Sparse | None:
        """The parts of exact weights that float32 cannot hold; None if there are none."""
        if self._low is None:
            return None
        indices = np.flatnonzero(self._low)
        return Sparse(self._low.size, indices, self._low[indices]) if indices.size else None

    def restore_low_parts(self, low: Sparse) -> None:
        """Set the parts of exact weights that float32 cannot hold."""
        self._low = low.to_dense()

    def base_and_signs(self) -> tuple[Vector, SignCounts | None]:
        """Return weights and counted signs from which an equal replica can be built.

        A new replica with these weights, after applying the signs, stays equal to this one.
        """
        if self._signs is None:
            return self.weights, None
        signs = self._signs
        return signs.base, SignCounts(signs.base.size, signs.num_updates, signs.counts, signs.step)

    @property
    def num_sign_updates(self) -> int:
        """The number of sign updates counted since the last update of another kind."""
        return 0 if self._signs is None else self._signs.num_updates

    def to_arrays(self, *, copy: bool = True) -> dict[str, NDArray[Any]]:
        """Return the state as named arrays, for a snapshot.

        Args:
            copy: whether the arrays are copies, which later changes do not affect.

        """
        weights, signs = self.base_and_signs()
        arrays: dict[str, NDArray[Any]] = {
            "weights": weights.copy() if copy else weights,
            "stamp": np.frombuffer(self.stamp, np.uint8),
            **{f"{_CARRIED}{name}": values.copy() for name, values in self.carried.items()},
        }
        if signs is not None:
            arrays["votes.counts"] = signs.counts.copy() if copy else signs.counts
            arrays["votes.turns"] = np.array([signs.num_updates], np.int64)
            arrays["votes.step"] = np.array([signs.step], np.float32)
        if (low := self.low_parts) is not None:
            arrays["low.indices"] = low.indices
            arrays["low.values"] = low.values
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, copy: bool = True) -> Replica:
        """Undo ``to_arrays``.

        Args:
            arrays: the arrays.
            copy: whether to copy the weights; if not, the replica changes them in place.

        """
        carried = {
            name.removeprefix(_CARRIED): array.copy()
            for name, array in arrays.items()
            if name.startswith(_CARRIED)
        }
        weights = arrays["weights"].copy() if copy else arrays["weights"]
        replica = cls(weights, arrays["stamp"].tobytes(), carried)
        if "votes.counts" in arrays:
            counts = arrays["votes.counts"]
            num_updates = int(arrays["votes.turns"][0])
            step = float(arrays["votes.step"][0])
            replica.apply(SignCounts(counts.size, num_updates, counts, step))
        if "low.indices" in arrays:
            low = Sparse(weights.size, arrays["low.indices"], arrays["low.values"])
            replica.restore_low_parts(low)
        return replica

    def _add_signs(self, change: SignCounts) -> None:
        signs = self._signs
        is_full = self.num_sign_updates + change.num_updates > MAX_UPDATES
        if signs is None or signs.step != change.step or is_full:
            signs = _CountedSigns(self.weights.copy(), 0, np.zeros_like(change.counts), change.step)
        signs.num_updates += change.num_updates
        signs.counts += change.counts
        self._signs = signs
        apply_sign_counts(self.weights, signs.base, signs.counts, np.float64(signs.step))
