"""The paper's six lessons, as guidance for ``fedtern advise``."""

from __future__ import annotations

from fedtern.advice import Fallback, Guidance, Lesson, Situation
from fedtern_paper.thresholds import low_participation, momentum_harms, small_batches


def _momentum_harms(situation: Situation) -> bool:
    return momentum_harms(situation.batch_size, situation.participation, non_iid=situation.non_iid)


def _latency_decides(situation: Situation) -> bool:
    return not (
        situation.bandwidth_matters
        or situation.non_iid
        or small_batches(situation.batch_size)
        or low_participation(situation.participation)
    )


LESSONS = (
    Lesson(
        1,
        "on non-iid data, prefer STC to Federated Averaging",
        lambda situation: situation.non_iid,
        method="stc",
        instead_of="fedavg",
    ),
    Lesson(
        2,
        "with small batches, prefer STC to Federated Averaging, even on iid data",
        lambda situation: small_batches(situation.batch_size),
        method="stc",
        instead_of="fedavg",
    ),
    Lesson(
        3,
        "with few clients per round, prefer STC to Federated Averaging",
        lambda situation: low_participation(situation.participation),
        method="stc",
        instead_of="fedavg",
    ),
    Lesson(
        4,
        "with limited or costly bandwidth, prefer STC to Federated Averaging",
        lambda situation: situation.bandwidth_matters,
        method="stc",
        instead_of="fedavg",
    ),
    Lesson(
        5,
        "where latency dominates and lessons 1 to 3 do not apply, prefer Federated Averaging, which"
        " needs fewer rounds",
        _latency_decides,
        method="fedavg",
        instead_of="stc",
    ),
    Lesson(
        6,
        "with small batches, and on non-iid data with few clients per round, train without"
        " momentum",
        _momentum_harms,
        against_momentum=True,
    ),
)


def _fallback(situation: Situation) -> Fallback:
    """Recommend a method by the lessons alone."""
    momentum, momentum_reasons = _fallback_momentum(situation)
    if _latency_decides(situation):
        return Fallback({"name": "fedavg", "local_steps": 100}, momentum, momentum_reasons)
    if not situation.bandwidth_matters and not situation.non_iid:
        delay = (
            "25 local iterations: rounds are slow, and on iid data delay costs as little accuracy"
            " as sparsity (Figure 12)"
        )
        method = {"name": "stc", "p_up": 1 / 25, "p_down": 1 / 25, "local_steps": 25}
        return Fallback(method, momentum, (delay, *momentum_reasons))
    sparsity = "p = 1/400: as in the paper's experiments; the lessons do not say how sparse"
    method = {"name": "stc", "p_up": 1 / 400, "p_down": 1 / 400}
    return Fallback(method, momentum, (sparsity, *momentum_reasons))


def _fallback_momentum(situation: Situation) -> tuple[float, tuple[str, ...]]:
    if _momentum_harms(situation):
        return 0.0, ()  # Lesson 6 is the reason
    if low_participation(situation.participation):
        return 0.0, ("momentum 0: clients that rarely take part have outdated momentum (Figure 8)",)
    return 0.9, ("momentum 0.9: lesson 6 does not apply",)


GUIDANCE = Guidance(LESSONS, _fallback)
"""The lessons, and the methods that follow from them where no recorded run decides."""
