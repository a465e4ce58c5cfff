"""The method ``secure_topk``: shared positions, and values rounded at random to a few levels."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtern.core.codecs import SparseCodec, TernaryCodec
from fedtern.core.compressors import SparseTernary, check_finite
from fedtern.core.compressors.compressor import Loss
from fedtern.core.compressors.sparse import check_rate, count_kept, select_largest
from fedtern.core.errors import LocalProtocolError
from fedtern.core.feedback import ErrorFeedback
from fedtern.core.layout import Layout, Vector
from fedtern.core.methods import Link, Mean, Method, Publication, bibtex, named_method
from fedtern.core.protocol.terms import Terms
from fedtern.core.updates import Sparse
from fedtern.core.wire import u64

Positions = Literal["leader", "random"]
"""Who chooses the positions of a round: one client, or a pseudorandom sequence."""

MAX_LEVELS = 127
FIRST_QUANTUM = 2.0**-10
"""The quantum of the first round; see ``next_quantum``."""

_CLIPPED = 0.05  # share of clipped values that the quantum aims at


@dataclass(frozen=True)
class SharedPositions:
    """Values at positions that all clients of a round share, rounded to a few levels.

    It compresses only through ``at``, once the positions of the round are known. So a transport
    without secure aggregation cannot send the updates of this method by mistake.

    Args:
        p: the share of values in an upload.
        positions: who chooses the positions.
        levels: values are whole multiples of a quantum, from ``-levels`` to ``levels``.

    """

    part_id: ClassVar[str] = "shared_positions"
    loss: ClassVar[Loss] = "biased"
    hides_uploads: ClassVar[bool] = True  # the server sees only their sum
    p: float
    positions: Positions
    levels: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        if self.positions not in ("leader", "random"):
            raise ValueError(f'positions must be "leader" or "random", got {self.positions!r}')
        if not 1 <= self.levels <= MAX_LEVELS:
            raise ValueError(f"levels must be from 1 to {MAX_LEVELS}, got {self.levels}")

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> NoReturn:
        """Refuse to compress, because the positions of the round are not known here.

        Raises:
            LocalProtocolError: always.

        """
        raise LocalProtocolError(
            "a method with secure aggregation cannot make plain uploads; use a transport that"
            " supports it, such as the local simulation"
        )

    def at(self, positions: NDArray[np.int64], quantum: float) -> AtPositions:
        """Return the compressor of one round."""
        return AtPositions(positions, quantum, self.levels)

    def count(self, layout: Layout) -> int:
        """Return the number of positions of a round."""
        return max(math.floor(layout.size * self.p), 1)

    def largest(self, x: Vector, layout: Layout) -> NDArray[np.int64]:
        """Return the positions of the largest values, which a leader chooses."""
        positions, _ = select_largest(x, lambda size: count_kept(size, self.p), "model", layout)
        return positions


@dataclass(frozen=True, eq=False)
class AtPositions:
    """The compressor of one round: rounds values at random, so that their mean is exact.

    Args:
        positions: the positions of the round, ascending.
        quantum: the distance of two levels.
        levels: larger values are clipped to this many quanta.

    """

    part_id: ClassVar[str] = "at_positions"
    loss: ClassVar[Loss] = "biased"
    positions: NDArray[np.int64]
    quantum: float
    levels: int

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Sparse:
        """Return the multiples of the quantum at the positions."""
        check_finite(x, layout)
        scaled = x[self.positions].astype(np.float64) / self.quantum
        whole = np.floor(np.clip(scaled, -self.levels, self.levels))
        up = rng.random(whole.size) < np.clip(scaled, -self.levels, self.levels) - whole
        values = (whole + up) * self.quantum
        return Sparse(x.size, self.positions, values.astype(np.float32))

    def to_levels(self, update: Sparse) -> NDArray[np.int64]:
        """Return the levels of an update that this compressor made."""
        return np.rint(update.values.astype(np.float64) / self.quantum).astype(np.int64)


_PUBLICATION = Publication(
    "Bonawitz et al., 2017",
    bibtex(
        "inproceedings",
        "bonawitz2017practical",
        title="Practical Secure Aggregation for Privacy-Preserving Machine Learning",
        author="Bonawitz, Keith and Ivanov, Vladimir and Kreuter, Ben and Marcedone, Antonio and"
        " McMahan, H. Brendan and Patel, Sarvar and Ramage, Daniel and Segal, Aaron and Seth, Karn",
        booktitle="Proceedings of the 2017 ACM SIGSAC Conference on Computer and Communications"
        " Security",
        year="2017",
    ),
)


@named_method("secure_topk", publication=_PUBLICATION)
def secure_topk(
    p_up: float = 1 / 400,
    p_down: float = 1 / 400,
    positions: Positions = "leader",
    levels: int = 7,
    local_steps: int = 1,
) -> Method:
    """Secure sums of values at shared positions; ternary broadcasts.

    Args:
        p_up: the share of values in an upload.
        p_down: the share of values in a broadcast.
        positions: "leader": one client of each cohort chooses the positions of its largest values,
            which the server and the cohort see. "random": a pseudorandom sequence, which says
            nothing about any data.
        levels: an upload has the values from ``-levels`` to ``levels``, times a quantum that is
            adapted in each round.
        local_steps: the number of local steps between uploads.

    """
    # The update with its values in plain text stays on the client, in case it does not count.
    up = Link(ErrorFeedback(SharedPositions(p_up, positions, levels)), SparseCodec())
    down = Link(ErrorFeedback(SparseTernary(p_down)), TernaryCodec())
    return Method(up, down, local_steps, Mean())


def shared_positions_of(method: Method) -> SharedPositions | None:
    """Return the rule of a method for shared positions; None if it sends plain uploads."""
    compressor = getattr(method.up.feedback, "compressor", None)
    return compressor if isinstance(compressor, SharedPositions) else None


def check_secure_terms(terms: Terms) -> SharedPositions:
    """Return the rule for shared positions of a federation with secure aggregation.

    Raises:
        ValueError: the method has no secure aggregation, or the model has carried tensors.

    """
    rule = shared_positions_of(terms.method)
    if rule is None:
        raise ValueError(f"method {terms.method.name!r} has no secure aggregation; use secure_topk")
    if terms.layout.carried:
        raise ValueError(
            "carried tensors, such as the statistics of batch normalisation, would be sent"
            ' without a mask; use carry="local"'
        )
    return rule


def random_positions(terms: Terms, round: int) -> NDArray[np.int64]:
    """Return the positions of a round that no client has chosen.

    The model's positions are shuffled and cut into rounds. When all have had their turn, they are
    shuffled again.

    Args:
        terms: the model and a method with shared positions.
        round: the round.

    """
    rule = shared_positions_of(terms.method)
    assert rule is not None
    size = terms.layout.size
    count = rule.count(terms.layout)
    rounds = -(-size // count)
    epoch, part = divmod(round, rounds)
    text = b"fedtern secure aggregation positions\0" + terms.digest + u64(epoch)
    stream = hashlib.shake_256(text).digest(8 * size)
    order = np.argsort(np.frombuffer(stream, "<u8"), kind="stable")
    return np.sort(order[part * count : (part + 1) * count]).astype(np.int64)


def next_quantum(quantum: float, clipped: float) -> float:
    """Return the quantum of the next round.

    It grows while many values are clipped and shrinks while few are (Andrew et al., 2021, adapt
    a clipping norm this way).

    Args:
        quantum: the quantum of the last round.
        clipped: the share of values that were clipped in it.

    """
    grown = quantum * math.exp(clipped - _CLIPPED)
    return float(np.float32(min(max(grown, 2.0**-60), 2.0**40)))
