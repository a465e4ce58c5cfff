"""The method for a planned number of rounds."""

from __future__ import annotations

import operator

from fedtern.core.methods.dense import grid
from fedtern.core.methods.method import Method
from fedtern.core.methods.sparse import stc

_FEWEST_ROUNDS_OF_STC = 50
_LOWEST_RATE = 1 / 400
_SENDS_PER_VALUE = 8  # on average over all rounds, up to the lowest rate


def for_rounds(num_rounds: int, *, weighted: bool = True, sparse: bool = True) -> Method:
    """Return a method that ends near the uncompressed model after a number of rounds.

    Sparse ternary compression sends a share p of all values in a round and the others later. In a
    short federation there is no later. The rule is therefore:

    - below 50 rounds, ``grid``: every value, rounded to about two bits;
    - from 50 rounds on, ``stc`` with p = 8 / rounds, and not less than the paper's 1/400.

    Args:
        num_rounds: the planned number of rounds, each with several local steps.
        weighted: whether clients are weighted by their number of examples.
        sparse: False for ``grid`` at any number of rounds, which suits a server with momentum.

    Raises:
        ValueError: the number of rounds is negative.

    >>> for_rounds(5).name, for_rounds(200).parameters["p_up"], for_rounds(10**6).parameters["p_up"]
    ('grid', 0.04, 0.0025)
    """
    rounds = operator.index(num_rounds)
    if rounds < 0:
        raise ValueError(f"num_rounds must not be negative, got {num_rounds}")
    if rounds < _FEWEST_ROUNDS_OF_STC or not sparse:
        return grid(step_up=0.7 if rounds <= 10 else 1.0, weighted=weighted)
    p = max(_SENDS_PER_VALUE / rounds, _LOWEST_RATE)
    return stc(p_up=p, p_down=p, weighted=weighted)
