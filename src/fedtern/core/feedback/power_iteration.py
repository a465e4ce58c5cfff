"""Low-rank factors found by one power iteration a round (Vogels et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.compressors import check_finite
from fedtern.core.compressors.lowrank import check_rank
from fedtern.core.feedback.error_feedback import return_to_residual, with_residual
from fedtern.core.feedback.interface import State
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import LowRank, Update
from fedtern.core.updates.factors import WHOLE, choose_ranks, matrix_shapes, split_factors


@dataclass(frozen=True)
class PowerIteration:
    """Error feedback whose compressor starts each time from the right factors it found last.

    Algorithm 1 of the publication: P = M Q, made orthogonal; Q = M^T P; the update is P Q^T.
    """

    part_id: ClassVar[str] = "power_iteration"
    rank: int
    observes: ClassVar[bool] = False

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
        """Compress residual + delta; what the factors leave out is the next residual."""
        target = with_residual(delta, state)
        check_finite(target, layout)
        sides = matrix_shapes(layout)
        ranks = choose_ranks(sides, self.rank)
        query = state.get("query")
        if query is None:
            count = sum(r * n for (_, n), r in zip(sides, ranks, strict=True) if r != WHOLE)
            query = rng.standard_normal(count, np.float32)
        parts, at = [np.empty(0, np.float32)], 0
        tensors = layout.unflatten(target).values()
        for (rows, columns), rank, part in zip(sides, ranks, tensors, strict=True):
            if rank == WHOLE:
                parts.append(part.reshape(-1).copy())
                continue
            matrix = part.reshape(rows, columns)
            right = query[at : at + rank * columns].reshape(rank, columns)
            at += rank * columns
            if (lost := ~right.any(axis=1)).any():
                # A product of zeros: what it led to would look at the same few rows for ever.
                right = right.copy()
                right[lost] = rng.standard_normal((int(lost.sum()), columns), np.float32)
            left = np.linalg.qr(_unit(matrix) @ _unit(right).T)[0]
            parts += [left.T.reshape(-1), (left.T @ matrix).reshape(-1)]
        update = LowRank(sides, ranks, np.concatenate(parts))
        return update, _settled(target, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """The state after a step that is known to have given ``update``."""
        assert isinstance(update, LowRank)  # as ``step`` makes them
        return _settled(with_residual(delta, state), update)

    def give_back(self, state: State, update: Update) -> State:
        """Put the whole update back into the residual."""
        return return_to_residual(state, update)


def _unit(matrix: Vector) -> Vector:
    """The same directions at a size that no product of it overflows."""
    unit: Vector = matrix / max(np.abs(matrix).max(initial=0.0), np.float32(1e-30))
    return unit


def _settled(target: Vector, update: LowRank) -> State:
    update.add_to(target, -1.0)
    rights = [
        split_factors(part, rows, rank)[1].reshape(-1)
        for (rows, _), rank, part in update.tensors()
        if rank != WHOLE
    ]
    return {"residual": target, "query": np.concatenate([np.empty(0, np.float32), *rights])}
