"""Rules of thumb for choosing a method: they complete what recorded runs show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedtern.advice.situation import Situation


@dataclass(frozen=True)
class Lesson:
    """A rule of thumb.

    Args:
        number: Number of the lesson in its source.
        advice: The rule as a sentence without a full stop.
        applies: Whether the rule applies to a situation.
        method: Name of the method that the rule recommends, if it recommends one.
        against_momentum: Whether the rule advises against momentum.
        counts_bytes: Whether the rule is about bytes instead of time.

    """

    number: int
    advice: str
    applies: Callable[[Situation], bool]
    method: str | None = None
    against_momentum: bool = False
    counts_bytes: bool = False


@dataclass(frozen=True)
class Fallback:
    """A recommendation for a situation that recorded runs do not decide.

    Args:
        method: Name and parameters of the method.
        momentum: Momentum of the clients. A recorded run may replace it, unless it is 0.
        reasons: Reasons for the method, in addition to the lessons that apply.
        momentum_reasons: Reasons for the momentum, in addition to the lessons that apply.
        may_be_replaced_by: Whether a recorded method may replace the method, for example by
            the same method with another parameter.

    """

    method: Mapping[str, Any]
    momentum: float
    reasons: tuple[str, ...] = ()
    momentum_reasons: tuple[str, ...] = ()
    may_be_replaced_by: Callable[[Mapping[str, Any]], bool] = lambda _method: False


@dataclass(frozen=True)
class Guidance:
    """Lessons, and the recommendation that follows from them where no recorded run decides."""

    lessons: tuple[Lesson, ...]
    fallback: Callable[[Situation], Fallback]

    @property
    def compared(self) -> frozenset[str]:
        """Names of the methods that the lessons compare."""
        return frozenset(lesson.method for lesson in self.lessons if lesson.method)

    def applying(self, situation: Situation) -> list[Lesson]:
        """Return the lessons that apply to a situation."""
        return [lesson for lesson in self.lessons if lesson.applies(situation)]
