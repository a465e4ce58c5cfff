"""Methods whose residuals decay, so that they act as a momentum."""

from __future__ import annotations

from fedtern.core.codecs import AdaptiveCodec, CosinesCodec, PaletteCodec, SignsCodec
from fedtern.core.compressors import CosineTopK, Sign, SparsePalette
from fedtern.core.feedback import DecayingFeedback, ErrorFeedback, Memoryless
from fedtern.core.methods import literature as papers
from fedtern.core.methods.aggregation import Mean
from fedtern.core.methods.method import Link, Method, lossless_link
from fedtern.core.methods.recipe import named_method
from fedtern.core.methods.server_optimizers import ServerOptimizerName, make_server_optimizer
from fedtern.core.methods.sparse import PositionCoding


@named_method("sparseloco", publication=papers.SPARSELOCO)
def sparseloco(
    p: float = 1 / 64,
    p_down: float | None = None,
    local_steps: int = 15,
    decay: float = 0.95,
    chunk: int = 4096,
    codec: PositionCoding = "golomb",
    server_optimizer: ServerOptimizerName | None = None,
    server_lr: float | None = None,
    server_momentum: float = 0.9,
) -> Method:
    """The largest values of each chunk with two bits each; residuals decay.

    Args:
        p: the share of values in an upload, of each chunk.
        p_down: the share of values in a broadcast; None for exact broadcasts.
        local_steps: the number of local steps between uploads.
        decay: the factor of a client's residual in each of its uploads.
        chunk: the number of values in a chunk of a tensor.
        codec: how positions are coded, "golomb" or "adaptive"; see ``stc``.
        server_optimizer: the server's optimiser, applied to the mean; see ``stc``.
        server_lr: the factor of a change; None for 1, or 0.01 with Adam and Yogi.
        server_momentum: the decay of the server's velocity.

    """
    palette = AdaptiveCodec(PaletteCodec()) if codec == "adaptive" else PaletteCodec()
    up = Link(DecayingFeedback(SparsePalette(p, chunk), decay), palette)
    down = lossless_link()
    if p_down is not None:
        down = Link(ErrorFeedback(SparsePalette(p_down, chunk)), palette)
    optimizer = make_server_optimizer(server_optimizer, server_lr, server_momentum)
    return Method(up, down, local_steps, Mean(), server_optimizer=optimizer)


@named_method("demo", publication=papers.DEMO)
def demo(k: int = 32, decay: float = 0.999, delta: float | None = 0.0002) -> Method:
    """The largest coefficients of cosine transforms of a client's momentum; signs down.

    Args:
        k: the number of coefficients of each block of at most 64 by 64 weights.
        decay: the factor of the momentum in each upload. It replaces the momentum of training.
        delta: the step size of a broadcast of signs; None for exact broadcasts of the mean.

    """
    up = Link(DecayingFeedback(CosineTopK(k), decay), CosinesCodec())
    down = lossless_link() if delta is None else Link(Memoryless(Sign(delta)), SignsCodec())
    return Method(up, down, 1, Mean(), momentum="feedback")
