"""Low-rank factors from one power iteration per round (Vogels et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.compressors import check_finite
from fedtern.core.compressors.lowrank import check_rank
from fedtern.core.feedback.error_feedback import add_residual, return_to_residual
from fedtern.core.feedback.interface import State
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import LowRank, Update
from fedtern.core.updates.factors import WHOLE, choose_ranks, matrix_shapes, split_factors
from fedtern.core.updates.limits import RankLimits


@dataclass(frozen=True)
class PowerIteration:
    """Error feedback with low-rank factors; each step starts from the last right factors.

    Algorithm 1 of the publication: P = M Q, orthogonalised; Q = M^T P; the update is P Q^T.

    Args:
        rank: the number of columns of each factor.

    """

    part_id: ClassVar[str] = "power_iteration"
    rank: int
    uses_moments: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check_rank(self.rank))

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Compress residual + delta; the difference to the update is the next residual."""
        target = add_residual(delta, state)
        check_finite(target, layout)
        shapes = matrix_shapes(layout)
        ranks = choose_ranks(shapes, self.rank)
        query = state.get("query")
        if query is None:
            count = sum(r * n for (_, n), r in zip(shapes, ranks, strict=True) if r != WHOLE)
            query = rng.standard_normal(count, np.float32)
        parts = [np.empty(0, np.float32)]
        at = 0
        tensors = layout.unflatten(target).values()
        for (rows, columns), rank, part in zip(shapes, ranks, tensors, strict=True):
            if rank == WHOLE:
                parts.append(part.reshape(-1).copy())
                continue
            matrix = part.reshape(rows, columns)
            right = query[at : at + rank * columns].reshape(rank, columns)
            at += rank * columns
            zero_rows = ~right.any(axis=1)
            if zero_rows.any():
                # A query of zeros would give the same few rows in every round. Draw a new one.
                right = right.copy()
                right[zero_rows] = rng.standard_normal((int(zero_rows.sum()), columns), np.float32)
            left = np.linalg.qr(_normalise(matrix) @ _normalise(right).T)[0]
            parts += [left.T.reshape(-1), (left.T @ matrix).reshape(-1)]
        update = LowRank(shapes, ranks, np.concatenate(parts))
        return update, _next_state(target, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Return the state after a step whose update is already known."""
        assert isinstance(update, LowRank)  # ``step`` returns no other updates
        return _next_state(add_residual(delta, state), update)

    def give_back(self, state: State, update: Update) -> State:
        """Add the whole update to the residual."""
        return return_to_residual(state, update)

    def limits(self, layout: Layout) -> RankLimits:
        """Return the rank of each tensor."""
        shapes = matrix_shapes(layout)
        return RankLimits(shapes, choose_ranks(shapes, self.rank))


def _normalise(matrix: Vector) -> Vector:
    """Scale a matrix to a largest magnitude of 1, so that products do not overflow."""
    scaled: Vector = matrix / max(np.abs(matrix).max(initial=0.0), np.float32(1e-30))
    return scaled


def _next_state(target: Vector, update: LowRank) -> State:
    """Return the residual, and the right factors as the next query."""
    update.add_to(target, -1.0)
    rights = [np.empty(0, np.float32)]
    for (rows, _), rank, values in update.tensors():
        if rank != WHOLE:
            _, right = split_factors(values, rows, rank)
            rights.append(right.reshape(-1))
    return {"residual": target, "query": np.concatenate(rights)}
