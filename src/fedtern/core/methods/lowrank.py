"""Methods that send low-rank matrices or random parts of an update."""

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
    """Random singular vectors of each tensor, chosen by singular value, unbiased.

    Args:
        rank: the number of singular vectors per tensor, on average.
        local_steps: the number of local steps between uploads.

    """
    up = Link(Memoryless(SpectralAtoms(rank)), LowRankCodec())
    return Method(up, lossless_link(), local_steps, Mean())


@named_method("powersgd", publication=papers.POWERSGD)
def powersgd(rank: int = 2, local_steps: int = 1) -> Method:
    """Low-rank factors from a power iteration, with error feedback, in both directions.

    Args:
        rank: the number of columns of each factor.
        local_steps: the number of local steps between uploads.

    """
    link = Link(PowerIteration(rank), LowRankCodec())
    return Method(link, link, local_steps, Mean())


@named_method("structured", publication=papers.KONECNY)
def structured(p: float = 1 / 16, rank: int | None = None, local_steps: int = 10) -> Method:
    """Training restricted to a random mask or to a random low-rank subspace.

    Args:
        p: the share of weights in the mask.
        rank: the rank of the subspace; None for a mask.
        local_steps: the number of local steps between uploads.

    """
    up = Link(Memoryless(RandomMask(p)), MaskedCodec())
    if rank is not None:
        up = Link(Memoryless(RandomSubspace(rank)), ProjectedCodec())
    return Method(up, lossless_link(), local_steps, Mean())


@named_method("sketched", publication=papers.KONECNY)
def sketched(p: float = 1 / 16, bits: int = 2, local_steps: int = 10) -> Method:
    """A random share of the values, rotated at random and rounded to a few bits, unbiased.

    Args:
        p: the share of values.
        bits: the number of bits per value.
        local_steps: the number of local steps between uploads.

    """
    up = Link(Memoryless(Sketch(p, bits)), SketchedCodec())
    return Method(up, lossless_link(), local_steps, Mean())
