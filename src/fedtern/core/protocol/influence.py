"""Bounded influence: how much a single upload can change the model.

A server cannot know whether an upload is honest. It can compare uploads with each other. An upload
that is many times as long as the median of its round is scaled down, and so is a claim of many
times as many examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtern.core.carried import Values, measure_changes, scale_change
from fedtern.core.layout import Layout
from fedtern.core.methods import Aggregate
from fedtern.core.protocol.events import Accepted
from fedtern.core.updates import Scaled

POOL = 9
"""A median is of at least this many uploads: earlier ones complete a small round."""

LEAST = 3
"""Without this many uploads there is no majority to compare with, and no cap."""

# Columns of measurements; those of carried tensors follow.
_NORM = 0
_PEAK = 1
_EXAMPLES = 2
_CARRIED = 3


@dataclass(frozen=True)
class NormCap:
    """Caps the influence of an upload at a multiple of the typical influence.

    The influence of an upload is the Euclidean norm of its update, times its weight in the mean.
    The typical influence is the lower median of the round. Rounds with fewer than nine uploads are
    completed with the newest earlier uploads, so that a round of one upload is bounded, too. The
    largest magnitude of an update, claimed numbers of examples and changes of carried tensors are
    capped in the same way. An upload above a cap counts, scaled down to it.

    The first two uploads of a federation are not capped: there is no majority to compare with.

    Methods whose uploads all have one magnitude (signSGD, Strom's threshold) need no cap of
    updates: the server refuses any other magnitude.

    Args:
        factor: the multiple, at least 1. With m uploads in a round, one of them can push the mean
            by at most factor / m times the typical norm.

    Raises:
        ValueError: the factor is below 1 or not finite.

    """

    factor: float = 4.0

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be at least 1, got {self.factor}")
        object.__setattr__(self, "factor", float(self.factor))

    def scales(self, values: Sequence[float], past: Sequence[float] = ()) -> list[float]:
        """Return the factor, at most 1, of each upload of a round.

        Args:
            values: the norm, or another measure, of each upload of a round.
            past: values of earlier uploads, newest last.

        >>> NormCap(4).scales([1, 2, 1, 100])
        [1.0, 1.0, 1.0, 0.04]
        >>> NormCap(4).scales([100], past=[1, 2, 1])
        [0.04]
        """
        limit = self.factor * typical_value(values, past)
        if max(values, default=0.0) <= limit:
            return [1.0] * len(values)
        return [limit / value if value > limit > 0 else 1.0 for value in values]


DEFAULT_CAP = NormCap()
"""The cap of a server that is given no other one."""


def typical_value(values: Sequence[float], past: Sequence[float] = ()) -> float:
    """Return the lower median of a round's values; 0 if too few are known.

    Zeros are left out: where only a few clients have something to send, the median would be zero.
    Earlier values complete the round to nine.

    Args:
        values: the norm, or another measure, of each upload of a round.
        past: values of earlier uploads, newest last.

    """
    pool = [value for value in values if value > 0]
    if (missing := POOL - len(pool)) > 0:
        pool += [value for value in past if value > 0][-missing:]
    return sorted(pool)[(len(pool) - 1) // 2] if len(pool) >= LEAST else 0.0


@dataclass(frozen=True, eq=False)
class Bounded:
    """A round's uploads after the cap.

    Attributes:
        uploads: the uploads; those above a cap are scaled down.
        capped: for each client above a cap, the share of its influence that counts.

    """

    uploads: Sequence[Accepted]
    capped: Mapping[int, float]


class NormHistory:
    """Measurements of the newest counted uploads, as part of the server's state.

    Args:
        layout: the model's tensors.
        rows: one row for each upload, newest last: the norm and the largest magnitude of the
            update, the number of examples, and the norm of the change of each carried tensor.

    """

    def __init__(self, layout: Layout, rows: NDArray[np.float64] | None = None) -> None:
        self.layout = layout
        width = _CARRIED + len(layout.carried)
        self.rows = np.empty((0, width)) if rows is None else rows.reshape(-1, width)

    def append(self, uploads: Sequence[Accepted], before: Values) -> None:
        """Add the measurements of counted uploads, in the order of their clients.

        Args:
            uploads: the uploads.
            before: the carried tensors before the round.

        """
        if uploads:
            rows = np.concatenate([self.rows, self._measure(uploads[-POOL:], before)])
            self.rows = rows[-POOL:]

    def _measure(self, uploads: Sequence[Accepted], before: Values) -> NDArray[np.float64]:
        rows = [
            [u.norm, u.peak, u.num_examples, *measure_changes(u.carried, before, self.layout)]
            for u in uploads
        ]
        return np.array(rows, np.float64).reshape(len(rows), self.rows.shape[1])

    def typical_norm(self, uploads: Sequence[Accepted]) -> float:
        """Return the typical norm of updates, given the uploads of the open round."""
        return typical_value([upload.norm for upload in uploads], self.rows[:, _NORM].tolist())

    def bound(
        self,
        uploads: Sequence[Accepted],
        cap: NormCap,
        aggregate: Aggregate,
        before: Values,
        *,
        updates: bool = True,
    ) -> Bounded:
        """Apply a cap to a round's uploads.

        Args:
            uploads: the uploads that count.
            cap: the cap.
            aggregate: how the uploads are combined; it says whether examples are weights.
            before: the carried tensors before the round.
            updates: whether updates are capped, or only examples and carried tensors.

        """
        count = len(uploads)
        values = self._measure(uploads, before)
        scales = np.ones_like(values)

        def cap_column(column: int) -> None:
            past = self.rows[:, column].tolist()
            scales[:, column] = cap.scales(values[:, column].tolist(), past)

        claimed = [upload.num_examples for upload in uploads]
        weights = np.array(aggregate.shares(claimed)) * count
        if not np.allclose(weights, 1):
            cap_column(_EXAMPLES)
            examples = values[:, _EXAMPLES] * scales[:, _EXAMPLES]
            weights = np.array(aggregate.shares(examples.tolist()))
            values[:, :_EXAMPLES] *= weights[:, None] * count
            values[:, _CARRIED:] *= weights[:, None] * count
        for column in (*([_NORM, _PEAK] if updates else []), *range(_CARRIED, values.shape[1])):
            cap_column(column)
        bounded = list(uploads)
        capped = {}
        for i in np.flatnonzero((scales < 1).any(axis=1)).tolist():
            shares = np.delete(scales[i], _EXAMPLES).min() * scales[i, _EXAMPLES]
            capped[uploads[i].client_id] = float(shares)
            bounded[i] = self._scale(uploads[i], scales[i], before)
        return Bounded(bounded, capped)

    def _scale(self, upload: Accepted, scales: NDArray[np.float64], before: Values) -> Accepted:
        carried = dict(upload.carried)
        for tensor, scale in zip(self.layout.carried, scales[_CARRIED:].tolist(), strict=True):
            if scale < 1 and tensor.name in carried:
                carried[tensor.name] = scale_change(
                    tensor, carried[tensor.name], before[tensor.name], scale
                )
        factor = float(min(scales[_NORM], scales[_PEAK]))
        update = Scaled(upload.update, factor) if factor < 1 else upload.update
        share = float(scales[_EXAMPLES])
        examples = upload.num_examples * share if share < 1 else upload.num_examples
        return replace(upload, num_examples=examples, update=update, carried=carried)
