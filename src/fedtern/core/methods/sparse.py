"""Methods that send the few largest values and keep the others for later."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeVar

from fedtern.core.codecs import (
    AdaptiveCodec,
    BinaryCodec,
    Codec,
    PowersCodec,
    SparseCodec,
    StepsCodec,
    TernaryCodec,
)
from fedtern.core.codecs.positions import PositionCodec
from fedtern.core.compressors import SparseBinary, SparseSteps, SparseTernary, Threshold, TopK
from fedtern.core.feedback import ErrorFeedback, MomentumCorrection, VarianceThreshold
from fedtern.core.layout import Scope
from fedtern.core.methods import literature as papers
from fedtern.core.methods.aggregation import Mean
from fedtern.core.methods.method import Link, Method, lossless_link
from fedtern.core.methods.recipe import named_method
from fedtern.core.methods.server_optimizers import (
    SERVER_PARAMETERS,
    ServerOptimizer,
    ServerOptimizerName,
    make_server_optimizer,
)

PositionCoding = Literal["golomb", "adaptive"]
"""How the positions of non-zeros are coded."""

Magnitudes = Literal["mean", "powers"]
"""The magnitude of a broadcast: the mean of the values, or a power of two."""


_Ternary = TypeVar("_Ternary", SparseTernary, SparseSteps)

Share = float | Literal["auto"]
"""A share of values, or "auto" to let the method choose it."""

_LEAST_DOWN = 4  # values of a broadcast with p_down="auto"


def _with_coding(plain: PositionCodec, codec: PositionCoding) -> Codec:
    return AdaptiveCodec(plain) if codec == "adaptive" else plain


@named_method(
    "stc",
    publication=papers.STC,
    later=("codec", "magnitudes", "participation", *SERVER_PARAMETERS),
)
def stc(
    p_up: float = 1 / 400,
    p_down: Share = 1 / 400,
    local_steps: int = 1,
    scope: Scope = "model",
    weighted: bool = False,
    codec: PositionCoding = "golomb",
    magnitudes: Magnitudes = "mean",
    participation: float | None = None,
    server_optimizer: ServerOptimizerName | None = None,
    server_lr: float | None = None,
    server_momentum: float = 0.9,
    server_beta2: float = 0.99,
    server_epsilon: float = 1e-3,
) -> Method:
    """Sparse ternary compression in both directions (Algorithm 2; with local steps, Appendix C).

    Args:
        p_up: the share of values in an upload.
        p_down: the share of values in a broadcast. "auto" is ``p_up`` times ``participation``, so
            that a client downloads about as many values as it uploads. With the scope "model", a
            broadcast has at least 4 values. If more than half of the clients take part, the share
            is ``p_up``.
        local_steps: the number of local steps between uploads.
        scope: whether values are selected from the whole model or from each tensor.
        weighted: whether clients are weighted by their number of examples.
        codec: how positions are coded: "golomb" as in the paper, or "adaptive", which learns where
            the non-zeros are and needs a third fewer bytes.
        magnitudes: the magnitude of a broadcast: the "mean" of the paper, or the nearest of the
            "powers" of two. Several broadcasts then add up to small integers, so that clients that
            missed rounds download much less.
        participation: the share of the clients that take part in a round, for ``p_down="auto"``;
            None for all clients, or for that of the experiment.
        server_optimizer: the server's optimiser, applied to the mean before it is compressed; None
            for the mean itself. See ``make_server_optimizer`` for it and the next parameters.
        server_lr: the factor of a change; None for 1, or 0.01 with Adam and Yogi.
        server_momentum: the decay of the server's velocity.
        server_beta2: the decay of the squares, for Adam and Yogi.
        server_epsilon: the degree of adaptivity of Adam and Yogi.

    """
    up = _Rate(p_up)
    down = _rate_down(up, p_down, participation)
    optimizer = make_server_optimizer(
        server_optimizer, server_lr, server_momentum, server_beta2, server_epsilon
    )
    return _ternary_method(up, down, local_steps, scope, weighted, codec, magnitudes, optimizer)


@dataclass(frozen=True)
class _Rate:
    """The values of a message; see ``SparseTernary``."""

    share: float
    least: int = 1

    def compressor(self, make: type[_Ternary], scope: Scope) -> _Ternary:
        """Return a compressor with this rate."""
        if scope == "tensor":  # the least number is of the whole model
            return make(self.share, scope)
        return make(self.share, scope, self.least)


def _rate_down(up: _Rate, p_down: Share, participation: float | None) -> _Rate:
    """Return the rate of broadcasts."""
    if participation is not None and not 0 < participation <= 1:
        raise ValueError(f"participation must be in (0, 1], got {participation}")
    if p_down != "auto":
        return _Rate(p_down)
    if participation is None or participation > 0.5:
        return up
    # In small models the least number decides. There, 1.5 times as many values need fewer bytes on
    # most splits (docs/results/beyond-the-paper.md).
    least = max(math.ceil(1.5 * up.least * participation * (1 - 1e-12)), _LEAST_DOWN)
    return _Rate(up.share * participation, least)


def _ternary_method(
    up: _Rate,
    down: _Rate,
    local_steps: int,
    scope: Scope,
    weighted: bool,
    codec: PositionCoding,
    magnitudes: Magnitudes,
    optimizer: ServerOptimizer | None = None,
) -> Method:
    """Return a method that sends ternary updates in both directions."""
    ternary = _with_coding(TernaryCodec(scope), codec)
    uplink = Link(ErrorFeedback(up.compressor(SparseTernary, scope)), ternary)
    if magnitudes == "powers":
        steps = StepsCodec(scope, adaptive=codec == "adaptive")
        downlink = Link(ErrorFeedback(down.compressor(SparseSteps, scope)), steps)
    else:
        downlink = Link(ErrorFeedback(down.compressor(SparseTernary, scope)), ternary)
    return Method(uplink, downlink, local_steps, Mean(weighted), server_optimizer=optimizer)


@named_method("stc_plus", publication=papers.STC_PLUS)
def stc_plus(
    p_up: Share = "auto",
    p_down: Share = "auto",
    local_steps: int = 1,
    scope: Scope = "model",
    weighted: bool = False,
    codec: PositionCoding = "adaptive",
    magnitudes: Magnitudes = "powers",
    participation: float | None = None,
) -> Method:
    """Sparse ternary compression with fewer bytes: smaller broadcasts, adaptive codes, sums.

    The options of ``stc`` that need the fewest bytes to an accuracy on most tasks; see there for
    the parameters that are not described here.

    Args:
        p_up: the share of values in an upload. "auto" is 1/400 for each local step, up to 1/8, and
            with the scope "model" at least 400 values for each local step, up to 1,000, or all
            values of a smaller model.
        p_down: the share of values in a broadcast. "auto" is that of an upload times
            ``participation``. With the scope "model", a broadcast has at least 4 values, and at
            least 1.5 times the least number of an upload times ``participation``. If more than half
            of the clients take part, a broadcast has as many values as an upload.
        local_steps: the number of local steps between uploads. If the clients have similar data, 25
            steps need the fewest bytes. If each client has a few classes only, one step does.
        scope: whether values are selected from the whole model or from each tensor.
        weighted: whether clients are weighted by their number of examples.
        codec: how positions are coded.
        magnitudes: the magnitude of a broadcast.
        participation: the share of the clients that take part in a round; None for all clients, or
            for that of the experiment.

    """
    up = _choose_rate_up(local_steps) if p_up == "auto" else _Rate(p_up)
    down = _rate_down(up, p_down, participation)
    return _ternary_method(up, down, local_steps, scope, weighted, codec, magnitudes)


def _choose_rate_up(local_steps: int) -> _Rate:
    """Return the rate of uploads that needs the fewest bytes (docs/results/beyond-the-paper.md).

    An update of several local steps carries more information. Too few values leave most of it in
    the residual, where it becomes stale. In a small model, fewer values than the least number need
    more iterations, and rarely fewer bytes in total.
    """
    return _Rate(min(local_steps / 400, 1 / 8), min(400 * local_steps, 1_000))


@named_method("topk", publication=papers.STC, later=("codec",))
def topk(
    p_up: float = 1 / 400,
    p_down: float | None = None,
    local_steps: int = 1,
    scope: Scope = "model",
    weighted: bool = False,
    codec: PositionCoding = "golomb",
) -> Method:
    """The largest values, with error feedback.

    Args:
        p_up: the share of values in an upload.
        p_down: the share of values in a broadcast; None for exact broadcasts.
        local_steps: the number of local steps between uploads.
        scope: whether values are selected from the whole model or from each tensor.
        weighted: whether clients are weighted by their number of examples.
        codec: how positions are coded, "golomb" or "adaptive"; see ``stc``.

    """
    sparse = _with_coding(SparseCodec(), codec)
    up = Link(ErrorFeedback(TopK(p_up, scope)), sparse)
    down = lossless_link()
    if p_down is not None:
        down = Link(ErrorFeedback(TopK(p_down, scope)), sparse)
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


@named_method("sbc", publication=papers.SBC, later=("codec",))
def sbc(
    p: float = 0.01,
    local_steps: int = 10,
    scope: Scope = "tensor",
    codec: PositionCoding = "golomb",
) -> Method:
    """Sparse binary compression: the largest values of the stronger sign, at their mean.

    Args:
        p: the share of values in an upload.
        local_steps: the number of local steps between uploads.
        scope: whether values are selected from the whole model or from each tensor.
        codec: how positions are coded, "golomb" or "adaptive"; see ``stc``.

    """
    binary = _with_coding(BinaryCodec(scope), codec)
    up = Link(ErrorFeedback(SparseBinary(p, scope)), binary)
    return Method(up, lossless_link(), local_steps, Mean(), momentum="mask")
