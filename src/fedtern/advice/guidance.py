"""Rules of thumb for choosing a method: they decide where no recorded runs are near."""

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
        advice: The rule as a sentence without a full stop. It recommends; it does not predict.
        applies: Whether the rule applies to a situation.
        method: Name of the method that the rule recommends, if it recommends one.
        instead_of: Name of the method that it compares the recommended one with.
        against_momentum: Whether the rule advises against momentum.

    """

    number: int
    advice: str
    applies: Callable[[Situation], bool]
    method: str | None = None
    instead_of: str | None = None
    against_momentum: bool = False


@dataclass(frozen=True)
class Fallback:
    """A recommendation for a situation that recorded runs do not decide.

    Args:
        method: Name and parameters of the method.
        momentum: Momentum of the clients.
        reasons: Reasons in addition to the lessons that apply.

    """

    method: Mapping[str, Any]
    momentum: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guidance:
    """Lessons, and the recommendation that follows from them where no recorded run decides."""

    lessons: tuple[Lesson, ...]
    fallback: Callable[[Situation], Fallback]

    @property
    def compared(self) -> frozenset[str]:
        """Names of the methods that the lessons compare."""
        names = (name for lesson in self.lessons for name in (lesson.method, lesson.instead_of))
        return frozenset(name for name in names if name)

    def applying(self, situation: Situation) -> list[Lesson]:
        """Return the lessons that apply to a situation."""
        return [lesson for lesson in self.lessons if lesson.applies(situation)]
