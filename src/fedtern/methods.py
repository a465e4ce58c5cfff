"""Famous methods as compositions: what is sent each way, how, and what is remembered.

Adding one is a compressor, a function here and a row of ``METHODS``.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from fedtern.aggregate import Aggregate, MajorityVote, Mean
from fedtern.codecs import Codec, DenseCodec, ExactCodec, SignsCodec, SparseCodec, TernaryCodec
from fedtern.compressors import Identity, Sign, SparseTernary, TopK
from fedtern.layout import Scope
from fedtern.memory import ErrorFeedback, Memory, Memoryless


@dataclass(frozen=True)
class Link:
    """One direction of traffic: what it remembers and how it is written."""

    memory: Memory
    codec: Codec


@dataclass(frozen=True)
class Method:
    """Everything that the two sides of a federation have to agree on but the model.

    >>> stc(p_up=1 / 400).name
    'stc'
    """

    name: str
    up: Link
    down: Link
    local_steps: int
    aggregate: Aggregate

    def __post_init__(self) -> None:
        object.__setattr__(self, "local_steps", operator.index(self.local_steps))
        if self.local_steps < 1:
            raise ValueError(f"local_steps must be at least 1, got {self.local_steps}")

    @cached_property
    def digest(self) -> bytes:
        """Three bytes that tell two methods apart on the wire.

        They are those of the method's ``repr``: its parts must be dataclasses, or have one that
        is the same in every process.
        """
        return hashlib.sha256(repr(self).encode()).digest()[:3]


def sgd() -> Method:
    """Uncompressed distributed SGD: every iteration, every value."""
    return Method("sgd", _everything(), _everything(), 1, Mean())


def fedavg(local_steps: int = 400, weighted: bool = False) -> Method:
    """Federated averaging: uncompressed, but only once in ``local_steps`` iterations.

    McMahan et al. (2017) weight clients by their examples; Sattler et al. (2019) do not.
    """
    return Method("fedavg", _everything(), _everything(), local_steps, Mean(weighted))


def signsgd(delta: float = 0.0002) -> Method:
    """One bit a parameter up, the majority's bit down (Bernstein et al., 2018)."""
    up = Link(Memoryless(Sign()), SignsCodec())
    down = Link(Memoryless(Sign(delta)), SignsCodec())
    return Method("signsgd", up, down, 1, MajorityVote())


def topk(
    p_up: float = 1 / 400,
    p_down: float | None = None,
    local_steps: int = 1,
    scope: Scope = "model",
    weighted: bool = False,
) -> Method:
    """The largest values with error feedback; down uncompressed unless ``p_down`` is given."""
    up = Link(ErrorFeedback(TopK(p_up, scope)), SparseCodec())
    down = Link(ErrorFeedback(Identity()), ExactCodec())
    if p_down is not None:
        down = Link(ErrorFeedback(TopK(p_down, scope)), SparseCodec())
    return Method("topk", up, down, local_steps, Mean(weighted))


def stc(
    p_up: float = 1 / 400,
    p_down: float = 1 / 400,
    local_steps: int = 1,
    scope: Scope = "model",
    weighted: bool = False,
) -> Method:
    """Sparse ternary compression in both directions (Algorithm 2)."""
    up = Link(ErrorFeedback(SparseTernary(p_up, scope)), TernaryCodec(scope))
    down = Link(ErrorFeedback(SparseTernary(p_down, scope)), TernaryCodec(scope))
    return Method("stc", up, down, local_steps, Mean(weighted))


def _everything() -> Link:
    # Error feedback with nothing lost in compression: what it keeps is what got lost on the way.
    return Link(ErrorFeedback(Identity()), DenseCodec())


METHODS: dict[str, Callable[..., Method]] = {
    "sgd": sgd,
    "fedavg": fedavg,
    "signsgd": signsgd,
    "topk": topk,
    "stc": stc,
}
"""Every method by the name it has on the command line."""
