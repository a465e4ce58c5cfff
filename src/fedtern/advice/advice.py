"""Recommend a method for a situation, with reasons and estimated costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.advice.cells import Cell, Difference, nearest_cell
from fedtern.advice.estimates import OBJECTIVES, Estimate, best_momentum_each, estimate_costs
from fedtern.advice.guidance import Guidance, Lesson
from fedtern.advice.records import Record
from fedtern.advice.situation import Situation
from fedtern.report.formatting import join_words, method_label
from fedtern.runs import format_method


@dataclass(frozen=True)
class Advice:
    """A recommended method and momentum, with reasons and the estimates behind them.

    Args:
        situation: The federation.
        method: Name and parameters of the recommended method.
        momentum: Momentum of the clients.
        reasons: Reasons, as text.
        estimates: Costs of the methods of the cell, with their best momentum. The first one is
            that of the recommended method. There are none if the lessons alone decided.
        cell: The nearest recorded runs, or None if there are no runs.

    """

    situation: Situation
    method: Mapping[str, Any]
    momentum: float
    reasons: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    cell: Cell | None

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Properties in which the cell differs from the situation."""
        compared = self.cell.compare(self.situation) if self.cell else ()
        return tuple(difference for difference in compared if difference.factor != 1)

    @property
    def method_option(self) -> str:
        """The method as a value of ``--method``."""
        return format_method(self.method)


def advise(situation: Situation, records: Sequence[Record], guidance: Guidance) -> Advice:
    """Recommend a method for a situation.

    If recorded runs are near, their method with the smallest estimate under the objective is
    recommended, and the reasons say which lessons these runs confirm or contradict. Otherwise the
    guidance decides.

    Args:
        situation: The federation and the objective.
        records: Recorded runs, for example from ``load_records()``.
        guidance: Lessons and a fallback, for example ``fedtern_paper.lessons.GUIDANCE``.

    Returns:
        The recommendation, its reasons, and the estimated costs of all methods of these runs.

    """
    cell = nearest_cell(situation, records, guidance.compared)
    if cell is None or not cell.is_near(situation):
        return _advise_by_guidance(situation, guidance, cell)
    estimates = estimate_costs(situation, cell)
    chosen = estimates[0]
    best = f"{OBJECTIVES[situation.minimise].smallest} until {100 * chosen.target:.2f} %"
    reasons = (
        f"{chosen.label}: {best} in the nearest recorded runs ({cell.description})",
        *cell.gaps(guidance.compared),
        *_compare_momenta(chosen, estimates),
        *(_judge(lesson, estimates, situation) for lesson in guidance.applying(situation)),
    )
    record = chosen.record
    shown = tuple(best_momentum_each(estimates))
    return Advice(situation, record.method, record.momentum, reasons, shown, cell)


def _advise_by_guidance(situation: Situation, guidance: Guidance, cell: Cell | None) -> Advice:
    fallback = guidance.fallback(situation)
    why = "there are no recorded runs"
    if cell:
        too_large = [d.name for d in cell.compare(situation) if d.too_large]
        why = (
            f"no recorded runs are near. The nearest ({cell.description}) differ too much in"
            f" {join_words(too_large)}"
        )
    reasons = (
        f"{method_label(fallback.method)}: chosen by the lessons alone, because {why}",
        *(f"lesson {lesson.number}: {lesson.advice}" for lesson in guidance.applying(situation)),
        *fallback.reasons,
    )
    return Advice(situation, fallback.method, fallback.momentum, reasons, (), cell)


def _judge(lesson: Lesson, estimates: Sequence[Estimate], situation: Situation) -> str:
    """Return whether the recorded runs agree with a lesson, with the numbers behind this."""
    if lesson.against_momentum:
        verdict = _judge_momentum(estimates)
    else:
        verdict = _judge_method(lesson, estimates, situation)
    return f"lesson {lesson.number} {verdict}: {lesson.advice}"


def _judge_method(lesson: Lesson, estimates: Sequence[Estimate], situation: Situation) -> str:
    objective = OBJECTIVES[situation.minimise]

    def amount(name: str | None) -> tuple[float, str] | None:
        """Return the smallest amount of a method and its text; None without a record."""
        best = next((e for e in estimates if e.record.method["name"] == name), None)
        if best is None:
            return None
        if best.reached is None:
            return math.inf, f"{best.label}: target not reached"
        return objective.amount(best), f"{best.label}: {objective.format(best)}"

    found, other = amount(lesson.method), amount(lesson.instead_of)
    if found is None or other is None or found[0] == other[0]:
        return "is not tested by these runs"
    verdict = "agrees with" if found[0] < other[0] else "is contradicted by"
    return f"{verdict} these runs ({found[1]}; {other[1]})"


def _other_momenta(chosen: Estimate, estimates: Sequence[Estimate]) -> list[Record]:
    """Return the records of the chosen method with another momentum, the best first."""
    records = [estimate.record for estimate in estimates]
    return [
        record
        for record in records
        if record.method == chosen.record.method and record.momentum != chosen.record.momentum
    ]


def _judge_momentum(estimates: Sequence[Estimate]) -> str:
    chosen = estimates[0]
    if not _other_momenta(chosen, estimates):
        momentum = f"{chosen.record.momentum:g}"
        return f"is not tested by these runs (all of {chosen.label} have momentum {momentum})"
    verdict = "is contradicted by" if chosen.record.momentum else "agrees with"
    return f"{verdict} these runs"


def _compare_momenta(chosen: Estimate, estimates: Sequence[Estimate]) -> list[str]:
    record = chosen.record
    return [
        f"momentum {record.momentum:g}: best accuracy {100 * record.best:.1f} %,"
        f" {100 * other.best:.1f} % with momentum {other.momentum:g}"
        for other in _other_momenta(chosen, estimates)
    ]
