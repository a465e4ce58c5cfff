"""The paper's six lessons, as what they say about a situation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedtern.advice.situation import Situation

COMPARED = {"stc", "fedavg"}
"""The methods that the lessons speak for."""


@dataclass(frozen=True)
class Lesson:
    """Advice that holds where ``applies`` says so."""

    number: int
    advice: str
    applies: Callable[[Situation], bool]
    speaks_for: str  # a method, or what to do about momentum
    in_bytes: bool = False  # what it counts is what is sent, not time


def sending_dominates(situation: Situation) -> bool:
    """Whether an uncompressed update takes longer to send than a round's latency."""
    return 32 * situation.parameters / situation.up > situation.latency


LESSONS = (
    Lesson(
        1,
        "where clients hold different classes, STC outperforms Federated Averaging distinctively",
        lambda s: s.skewed,
        "stc",
    ),
    Lesson(
        2,
        "on small batches STC outperforms Federated Averaging, even if all hold the same classes",
        lambda s: s.small_batches,
        "stc",
    ),
    Lesson(
        3,
        "where few clients take part in a round, STC converges faster and more steadily",
        lambda s: s.rarely,
        "stc",
    ),
    Lesson(
        4,
        "where bandwidth is short or costly, STC gets to an accuracy with the fewest bits (in the"
        " recorded runs: of those sent up)",
        sending_dominates,
        "stc",
        in_bytes=True,
    ),
    Lesson(
        5,
        "where a round's latency is what costs, and lessons 1 to 3 do not apply, Federated"
        " Averaging has fewer rounds",
        lambda s: not (sending_dominates(s) or s.skewed or s.small_batches or s.rarely),
        "fedavg",
    ),
    Lesson(
        6,
        "momentum harms on small batches, and where clients differ and few of them take part",
        lambda s: s.momentum_harms,
        "no momentum",
    ),
)


def applying(situation: Situation) -> list[Lesson]:
    """The lessons that have something to say."""
    return [lesson for lesson in LESSONS if lesson.applies(situation)]
