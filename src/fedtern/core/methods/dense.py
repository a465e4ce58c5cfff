"""Methods that send something for every weight."""

from __future__ import annotations

from fedtern.core.codecs import EliasCodec, SignsCodec, TensorSignsCodec, TritsCodec
from fedtern.core.compressors import ScaledSign, Sign, StochasticLevels, StochasticTernary
from fedtern.core.compressors.levels import Norm
from fedtern.core.feedback import ErrorFeedback, Memoryless
from fedtern.core.methods.aggregation import MajorityVote, Mean
from fedtern.core.methods.method import Link, Method, dense_link, lossless_link


def sgd() -> Method:
    """Uncompressed distributed SGD: every iteration, every value."""
    return Method("sgd", dense_link(), dense_link(), 1, Mean())


def fedavg(local_steps: int = 400, weighted: bool = False) -> Method:
    """Federated averaging: uncompressed, but only once in ``local_steps`` iterations.

    McMahan et al. (2017) weight clients by their examples; Sattler et al. (2019) do not.
    """
    return Method("fedavg", dense_link(), dense_link(), local_steps, Mean(weighted))


def signsgd(delta: float = 0.0002) -> Method:
    """One bit a parameter up, the majority's bit down."""
    up = Link(Memoryless(Sign()), SignsCodec())
    down = Link(Memoryless(Sign(delta)), SignsCodec())
    return Method("signsgd", up, down, 1, MajorityVote())


def ef_signsgd(both_ways: bool = False, local_steps: int = 1) -> Method:
    """Signs at the mean magnitude of their tensor, with error feedback.

    Down, the mean of these is sent as it is, or compressed likewise (``both_ways``).
    """
    up = Link(ErrorFeedback(ScaledSign()), TensorSignsCodec())
    return Method("ef_signsgd", up, up if both_ways else lossless_link(), local_steps, Mean())


def terngrad(clip: float | None = 2.5, local_steps: int = 1) -> Method:
    """Minus, zero or plus the largest magnitude of each tensor, unbiased.

    Values are first cut off at ``clip`` standard deviations of their tensor.
    """
    up = Link(Memoryless(StochasticTernary(clip)), TritsCodec())
    return Method("terngrad", up, lossless_link(), local_steps, Mean())


def qsgd(levels: int = 7, bucket: int = 512, norm: Norm = "l2", local_steps: int = 1) -> Method:
    """Randomly rounded to ``levels`` fractions of the norm of each ``bucket`` values, unbiased."""
    up = Link(Memoryless(StochasticLevels(levels, bucket, norm)), EliasCodec())
    return Method("qsgd", up, lossless_link(), local_steps, Mean())
