"""The paper's six lessons, as guidance for ``fedtern advise``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtern.advice import Fallback, Guidance, Lesson, Situation
from fedtern_paper.thresholds import low_participation, momentum_harms, small_batches


def _momentum_harms(situation: Situation) -> bool:
    return momentum_harms(situation.batch_size, situation.participation, non_iid=situation.non_iid)


def _latency_decides(situation: Situation) -> bool:
    return not (
        situation.bandwidth_bound
        or situation.non_iid
        or small_batches(situation.batch_size)
        or low_participation(situation.participation)
    )


LESSONS = (
    Lesson(
        1,
        "on non-iid data, STC distinctively outperforms Federated Averaging",
        lambda situation: situation.non_iid,
        method="stc",
    ),
    Lesson(
        2,
        "with small batches, STC outperforms Federated Averaging, even on iid data",
        lambda situation: small_batches(situation.batch_size),
        method="stc",
    ),
    Lesson(
        3,
        "with few clients per round, STC converges faster and more steadily",
        lambda situation: low_participation(situation.participation),
        method="stc",
    ),
    Lesson(
        4,
        "with limited or costly bandwidth, STC reaches an accuracy with the fewest bits (in the"
        " recorded runs: with the fewest uploaded bits)",
        lambda situation: situation.bandwidth_bound,
        method="stc",
        counts_bytes=True,
    ),
    Lesson(
        5,
        "where latency dominates and lessons 1 to 3 do not apply, Federated Averaging needs fewer"
        " rounds",
        _latency_decides,
        method="fedavg",
    ),
    Lesson(
        6,
        "momentum harms with small batches, and on non-iid data with few clients per round",
        _momentum_harms,
        against_momentum=True,
    ),
)


def _is_stc_without_delay(method: Mapping[str, Any]) -> bool:
    return bool(method["name"] == "stc" and method.get("local_steps", 1) == 1)


def _fallback(situation: Situation) -> Fallback:
    """Recommend a method by the lessons alone."""
    momentum, momentum_reasons = _fallback_momentum(situation)
    if _latency_decides(situation):
        fedavg = {"name": "fedavg", "local_steps": 100}
        return Fallback(fedavg, momentum, momentum_reasons=momentum_reasons)
    if not situation.bandwidth_bound and not situation.non_iid:
        return Fallback(
            {"name": "stc", "p_up": 1 / 25, "p_down": 1 / 25, "local_steps": 25},
            momentum,
            (
                "25 local iterations: rounds are slow, and on iid data delay costs as little"
                " accuracy as sparsity (Figure 12)",
            ),
            momentum_reasons,
        )
    return Fallback(
        {"name": "stc", "p_up": 1 / 400, "p_down": 1 / 400},
        momentum,
        momentum_reasons=momentum_reasons,
        # The lessons do not say how sparse.
        may_be_replaced_by=_is_stc_without_delay,
    )


def _fallback_momentum(situation: Situation) -> tuple[float, tuple[str, ...]]:
    if _momentum_harms(situation):
        return 0.0, ()  # Lesson 6 is the reason
    if low_participation(situation.participation):
        return 0.0, ("momentum 0: clients that rarely take part have outdated momentum (Figure 8)",)
    return 0.9, ("momentum 0.9: lesson 6 does not apply",)


GUIDANCE = Guidance(LESSONS, _fallback)
"""The lessons, and the methods that follow from them where no recorded run decides."""
