"""Methods that send a value, or a few bits, for every weight."""

from __future__ import annotations

from fedtern.core.codecs import (
    EliasCodec,
    RotatedCodec,
    SignsCodec,
    TensorSignsCodec,
    TritsCodec,
)
from fedtern.core.compressors import (
    NearestLevels,
    RotatedCentroids,
    ScaledSign,
    Sign,
    StochasticLevels,
    StochasticTernary,
)
from fedtern.core.compressors.levels import Norm
from fedtern.core.feedback import ErrorFeedback, Memoryless
from fedtern.core.methods import literature as papers
from fedtern.core.methods.aggregation import MajorityVote, Mean
from fedtern.core.methods.method import Link, Method, dense_link, lossless_link
from fedtern.core.methods.recipe import named_method
from fedtern.core.methods.server_optimizers import (
    SERVER_PARAMETERS,
    ServerOptimizerName,
    make_server_optimizer,
)


@named_method("sgd", publication=papers.SGD)
def sgd() -> Method:
    """Uncompressed distributed SGD: full updates after every step."""
    return Method(dense_link(), dense_link(), 1, Mean())


@named_method("fedavg", publication=papers.FEDAVG, later=SERVER_PARAMETERS)
def fedavg(
    local_steps: int = 400,
    weighted: bool = False,
    server_optimizer: ServerOptimizerName | None = None,
    server_lr: float | None = None,
    server_momentum: float = 0.9,
    server_beta2: float = 0.99,
    server_epsilon: float = 1e-3,
) -> Method:
    """Federated averaging: full updates after every ``local_steps`` steps.

    Args:
        local_steps: the number of local steps between uploads.
        weighted: whether clients are weighted by their number of examples, as by McMahan et al.
            (2017), or equally, as by Sattler et al. (2019).
        server_optimizer: the server's optimiser (FedOpt): "momentum" (FedAvgM), "nesterov", "adam"
            (FedAdam) or "yogi" (FedYogi); None for the mean itself.
        server_lr: the factor of a change; None for 1, or 0.01 with Adam and Yogi.
        server_momentum: the decay of the server's velocity.
        server_beta2: the decay of the squares, for Adam and Yogi.
        server_epsilon: the degree of adaptivity of Adam and Yogi.

    """
    optimizer = make_server_optimizer(
        server_optimizer, server_lr, server_momentum, server_beta2, server_epsilon
    )
    link = dense_link()
    return Method(link, link, local_steps, Mean(weighted), server_optimizer=optimizer)


@named_method("signsgd", publication=papers.SIGNSGD)
def signsgd(delta: float = 0.0002) -> Method:
    """One bit per parameter up, the majority's bit down.

    Args:
        delta: the step size of a broadcast.

    """
    up = Link(Memoryless(Sign()), SignsCodec())
    down = Link(Memoryless(Sign(delta)), SignsCodec())
    return Method(up, down, 1, MajorityVote())


@named_method("ef_signsgd", publication=papers.EF_SIGNSGD)
def ef_signsgd(both_ways: bool = False, local_steps: int = 1) -> Method:
    """Signs times the mean magnitude of their tensor, with error feedback.

    Args:
        both_ways: whether broadcasts are compressed like uploads, or exact.
        local_steps: the number of local steps between uploads.

    """
    up = Link(ErrorFeedback(ScaledSign()), TensorSignsCodec())
    return Method(up, up if both_ways else lossless_link(), local_steps, Mean())


@named_method("terngrad", publication=papers.TERNGRAD)
def terngrad(clip: float | None = 2.5, local_steps: int = 1) -> Method:
    """Zero, or plus or minus the largest magnitude of the tensor, at random and unbiased.

    Args:
        clip: clip values at this many standard deviations of their tensor; None to clip nothing.
        local_steps: the number of local steps between uploads.

    """
    up = Link(Memoryless(StochasticTernary(clip)), TritsCodec())
    return Method(up, lossless_link(), local_steps, Mean())


@named_method("qsgd", publication=papers.QSGD)
def qsgd(levels: int = 7, bucket: int = 512, norm: Norm = "l2", local_steps: int = 1) -> Method:
    """Values rounded at random, and unbiased, to fractions of the norm of their bucket.

    Args:
        levels: the number of levels between zero and the norm.
        bucket: the number of values per bucket.
        norm: the norm of a bucket, "l2" or "max".
        local_steps: the number of local steps between uploads.

    """
    up = Link(Memoryless(StochasticLevels(levels, bucket, norm)), EliasCodec())
    return Method(up, lossless_link(), local_steps, Mean())


@named_method("grid", publication=papers.GRID)
def grid(
    step_up: float = 1.0,
    step_down: float | None = None,
    local_steps: int = 1,
    weighted: bool = False,
) -> Method:
    """Values rounded to the nearest level of a grid per tensor, with error feedback.

    About two bits per value with a step of 1. It loses so little that a federation of a few rounds
    ends where it would without compression; over hundreds of rounds, ``stc`` takes far fewer bytes.

    Args:
        step_up: the distance of two levels in an upload, relative to the root mean square of their
            tensor.
        step_down: the same for a broadcast; None for ``step_up``.
        local_steps: the number of local steps between uploads.
        weighted: whether clients are weighted by their number of examples.

    """
    up = Link(ErrorFeedback(NearestLevels(step_up)), EliasCodec())
    down = up if step_down is None else Link(ErrorFeedback(NearestLevels(step_down)), EliasCodec())
    return Method(up, down, local_steps, Mean(weighted))


@named_method("eden", publication=papers.EDEN)
def eden(bits: int = 1, both_ways: bool = False, local_steps: int = 1) -> Method:
    """All values, rotated at random and rounded to one bit or a few.

    Args:
        bits: the number of bits per value, from 1 to 4; 1 is DRIVE.
        both_ways: whether broadcasts are compressed like uploads, or exact.
        local_steps: the number of local steps between uploads.

    """
    up = Link(Memoryless(RotatedCentroids(bits)), RotatedCodec())
    return Method(up, up if both_ways else lossless_link(), local_steps, Mean())
