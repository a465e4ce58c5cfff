"""Methods that send matrices of low rank, or random parts of what there is to send."""

from __future__ import annotations

from fedtern.core.codecs import LowRankCodec, MaskedCodec, ProjectedCodec, SketchedCodec
from fedtern.core.compressors import RandomMask, RandomSubspace, Sketch, SpectralAtoms
from fedtern.core.feedback import Memoryless, PowerIteration
from fedtern.core.methods import literature as papers
from fedtern.core.methods.aggregation import Mean
from fedtern.core.methods.method import Link, Method, lossless_link
from fedtern.core.methods.recipe import named_method


@named_method("atomo", publication=papers.ATOMO)
def atomo(rank: int = 3, local_steps: int = 1) -> Method:
    """Singular vectors of each tensor, drawn by their singular values, unbiased."""
    up = Link(Memoryless(SpectralAtoms(rank)), LowRankCodec())
    return Method(up, lossless_link(), local_steps, Mean())


@named_method("powersgd", publication=papers.POWERSGD)
def powersgd(rank: int = 2, local_steps: int = 1) -> Method:
    """The factors that a power iteration finds, with error feedback, in both directions."""
    link = Link(PowerIteration(rank), LowRankCodec())
    return Method(link, link, local_steps, Mean())


@named_method("structured", publication=papers.KONECNY)
def structured(p: float = 1 / 16, rank: int | None = None, local_steps: int = 10) -> Method:
    """Training within a random mask of a share ``p``, or within a random subspace of a ``rank``."""
    up = Link(Memoryless(RandomMask(p)), MaskedCodec())
    if rank is not None:
        up = Link(Memoryless(RandomSubspace(rank)), ProjectedCodec())
    return Method(up, lossless_link(), local_steps, Mean())


@named_method("sketched", publication=papers.KONECNY)
def sketched(p: float = 1 / 16, bits: int = 2, local_steps: int = 10) -> Method:
    """A random share ``p`` of the values, rotated at random and at ``bits`` bits, unbiased."""
    up = Link(Memoryless(Sketch(p, bits)), SketchedCodec())
    return Method(up, lossless_link(), local_steps, Mean())
