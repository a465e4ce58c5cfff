"""Which candidates a rung drops."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

from fedtern.tuning.curve import Curve

K = TypeVar("K", bound=Hashable)


def drop(curves: Mapping[K, Curve], keep: int, target: float, within: float) -> list[K]:
    """Return the candidates to drop, the first to go first.

    All candidates of a rung have trained for the same number of local iterations, but neither
    their bytes nor their accuracies are equal. So they are compared neither at equal bytes, where
    those with large messages have hardly begun, nor by their accuracy, where those with small
    messages are behind. Each candidate is compared at an accuracy of its own: how many times as
    many bytes did it need for it as the cheapest of the others? See ``excess``. The candidate with
    the highest factor goes; the factors of the others are then computed again, so that of two
    almost equal candidates one stays.

    The most accurate candidate always stays: no other has reached its accuracy. A slow one stays
    if it needs few bytes for the accuracy that it has.

    Args:
        curves: The curves of the candidates so far.
        keep: The number of candidates to keep.
        target: The target; infinite if it is not known yet.
        within: The distance below the best value of a candidate in which it is compared.

    """
    left = dict(curves)
    dropped: list[K] = []
    while len(left) > max(keep, 1):
        factors = {key: excess(key, left, target, within) for key in left}
        # Of equal factors, the candidate with the lower value goes.
        worst = max(left, key=lambda key: (factors[key], -left[key].best))
        dropped.append(worst)
        del left[worst]
    return dropped


def excess(key: K, curves: Mapping[K, Curve], target: float, within: float) -> float:
    """Return how many times as many bytes a candidate needs as the cheapest of the others.

    That is at its best value so far, or a distance below it, whichever is more favourable: the last
    gain of a curve that is flat can be noise. A candidate that has reached the target is compared
    there.

    Args:
        key: The candidate.
        curves: The curves of all candidates.
        target: See ``drop``.
        within: See ``drop``.

    Returns:
        The factor: 0 if no other candidate has reached that value, above 1 if another one needed
        fewer bytes, infinite for a candidate without any finite value.

    """
    best = curves[key].best
    if best == -math.inf:
        return math.inf
    levels = [target] if best >= target else [best, best - within]
    return min(_factor(key, curves, level) for level in levels)


def _factor(key: K, curves: Mapping[K, Curve], level: float) -> float:
    own = curves[key].cost_of(level)
    assert own is not None  # it is not above its best value
    others = [
        cost
        for other, curve in curves.items()
        if other != key and (cost := curve.cost_of(level)) is not None
    ]
    if not others:
        return 0.0
    cheapest = min(others)
    if cheapest > 0:
        return own / cheapest
    return math.inf if own > 0 else 1.0
