"""Methods that send the few largest values and keep the others for later."""

from __future__ import annotations

from fedtern.core.codecs import BinaryCodec, PowersCodec, SparseCodec, TernaryCodec
from fedtern.core.compressors import SparseBinary, SparseTernary, Threshold, TopK
from fedtern.core.feedback import ErrorFeedback, MomentumCorrection, VarianceThreshold
from fedtern.core.layout import Scope
from fedtern.core.methods import literature as papers
from fedtern.core.methods.aggregation import Mean
from fedtern.core.methods.method import Link, Method, lossless_link
from fedtern.core.methods.recipe import named_method


@named_method("stc", publication=papers.STC)
def stc(
    p_up: float = 1 / 400,
    p_down: float = 1 / 400,
    local_steps: int = 1,
    scope: Scope = "model",
    weighted: bool = False,
) -> Method:
    """Sparse ternary compression in both directions (Algorithm 2; with local steps, Appendix C).

    Args:
        p_up: the share of values in an upload.
        p_down: the share of values in a broadcast.
        local_steps: the number of local steps between uploads.
        scope: whether values are selected from the whole model or from each tensor.
        weighted: whether clients are weighted by their number of examples.

    """
    up = Link(ErrorFeedback(SparseTernary(p_up, scope)), TernaryCodec(scope))
    down = Link(ErrorFeedback(SparseTernary(p_down, scope)), TernaryCodec(scope))
    return Method(up, down, local_steps, Mean(weighted))


@named_method("topk", publication=papers.STC)
def topk(
    p_up: float = 1 / 400,
    p_down: float | None = None,
    local_steps: int = 1,
    scope: Scope = "model",
    weighted: bool = False,
) -> Method:
    """The largest values, with error feedback.

    Args:
        p_up: the share of values in an upload.
        p_down: the share of values in a broadcast; None for exact broadcasts.
        local_steps: the number of local steps between uploads.
        scope: whether values are selected from the whole model or from each tensor.
        weighted: whether clients are weighted by their number of examples.

    """
    up = Link(ErrorFeedback(TopK(p_up, scope)), SparseCodec())
    down = lossless_link()
    if p_down is not None:
        down = Link(ErrorFeedback(TopK(p_down, scope)), SparseCodec())
    return Method(up, down, local_steps, Mean(weighted))


@named_method("gradient_dropping", publication=papers.GRADIENT_DROPPING)
def gradient_dropping(p: float = 0.01) -> Method:
    """The largest values of the whole model, with error feedback; exact broadcasts.

    Args:
        p: the share of values in an upload.

    """
    return topk(p)


@named_method("dgc", publication=papers.DGC)
def dgc(
    p: float = 0.001,
    momentum: float = 0.9,
    clip: float | None = None,
    warmup: int = 30,
    scope: Scope = "tensor",
) -> Method:
    """Deep gradient compression: the largest residuals of velocities, with momentum masking.

    Args:
        p: the share of values in an upload after the warm-up.
        momentum: the momentum, which replaces the momentum of training.
        clip: the maximum norm of a client's change, or None. It corresponds to the publication's
            threshold divided by the root of the number of clients, times the learning rate.
        warmup: the number of uploads in each stage of the warm-up (an epoch in the publication).
            The stages send 1/4, 1/16, … of the values.
        scope: whether values are selected from the whole model or from each tensor.

    """
    up = Link(MomentumCorrection(p, scope, momentum, clip, warmup), SparseCodec())
    return Method(up, lossless_link(), 1, Mean(), momentum="feedback")


@named_method("strom", publication=papers.STROM)
def strom(tau: float = 0.01) -> Method:
    """Plus or minus a threshold for every value whose residual exceeds it.

    Args:
        tau: the threshold.

    """
    up = Link(ErrorFeedback(Threshold(tau)), TernaryCodec())
    return Method(up, lossless_link(), 1, Mean())


@named_method("variance", publication=papers.VARIANCE)
def variance(alpha: float = 1.0, decay: float = 0.999) -> Method:
    """Values whose square exceeds a multiple of their second moments, as powers of two.

    Args:
        alpha: the factor of the second moments.
        decay: the factor by which second moments of values that are not sent shrink in each round.

    """
    up = Link(VarianceThreshold(alpha, decay), PowersCodec())
    return Method(up, lossless_link(), 1, Mean())


@named_method("sbc", publication=papers.SBC)
def sbc(p: float = 0.01, local_steps: int = 10, scope: Scope = "tensor") -> Method:
    """Sparse binary compression: the largest values of the stronger sign, at their mean.

    Args:
        p: the share of values in an upload.
        local_steps: the number of local steps between uploads.
        scope: whether values are selected from the whole model or from each tensor.

    """
    up = Link(ErrorFeedback(SparseBinary(p, scope)), BinaryCodec(scope))
    return Method(up, lossless_link(), local_steps, Mean(), momentum="mask")
