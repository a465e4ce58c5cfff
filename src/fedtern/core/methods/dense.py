"""Methods that send something for every weight."""

from __future__ import annotations

from fedtern.core.codecs import EliasCodec, SignsCodec, TensorSignsCodec, TritsCodec
from fedtern.core.compressors import ScaledSign, Sign, StochasticLevels, StochasticTernary
from fedtern.core.compressors.levels import Norm
from fedtern.core.feedback import ErrorFeedback, Memoryless
from fedtern.core.methods import literature as papers
from fedtern.core.methods.aggregation import MajorityVote, Mean
from fedtern.core.methods.method import Link, Method, dense_link, lossless_link
from fedtern.core.methods.recipe import named_method


@named_method("sgd", publication=papers.SGD)
def sgd() -> Method:
    """Uncompressed distributed SGD: every iteration, every value."""
    return Method(dense_link(), dense_link(), 1, Mean())


@named_method("fedavg", publication=papers.FEDAVG)
def fedavg(local_steps: int = 400, weighted: bool = False) -> Method:
    """Federated averaging: uncompressed, but only once in ``local_steps`` iterations.

    McMahan et al. (2017) weight clients by their examples; Sattler et al. (2019) do not.
    """
    return Method(dense_link(), dense_link(), local_steps, Mean(weighted))


@named_method("signsgd", publication=papers.SIGNSGD)
def signsgd(delta: float = 0.0002) -> Method:
    """One bit a parameter up, the majority's bit down."""
    up = Link(Memoryless(Sign()), SignsCodec())
    down = Link(Memoryless(Sign(delta)), SignsCodec())
    return Method(up, down, 1, MajorityVote())


@named_method("ef_signsgd", publication=papers.EF_SIGNSGD)
def ef_signsgd(both_ways: bool = False, local_steps: int = 1) -> Method:
    """Signs at the mean magnitude of their tensor, with error feedback.

    Down, the mean of these is sent as it is, or compressed likewise (``both_ways``).
    """
    up = Link(ErrorFeedback(ScaledSign()), TensorSignsCodec())
    return Method(up, up if both_ways else lossless_link(), local_steps, Mean())


@named_method("terngrad", publication=papers.TERNGRAD)
def terngrad(clip: float | None = 2.5, local_steps: int = 1) -> Method:
    """Minus, zero or plus the largest magnitude of each tensor, unbiased.

    Values are first cut off at ``clip`` standard deviations of their tensor.
    """
    up = Link(Memoryless(StochasticTernary(clip)), TritsCodec())
    return Method(up, lossless_link(), local_steps, Mean())


@named_method("qsgd", publication=papers.QSGD)
def qsgd(levels: int = 7, bucket: int = 512, norm: Norm = "l2", local_steps: int = 1) -> Method:
    """Randomly rounded to ``levels`` fractions of the norm of each ``bucket`` values, unbiased."""
    up = Link(Memoryless(StochasticLevels(levels, bucket, norm)), EliasCodec())
    return Method(up, lossless_link(), local_steps, Mean())
