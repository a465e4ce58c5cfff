"""Recommend a method for a situation, with reasons and estimated costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.advice.estimates import (
    MAX_DISTANCE,
    Estimate,
    RecordGroup,
    best_momentum_each,
    estimate_costs,
    nearest_group,
)
from fedtern.advice.guidance import Guidance, Lesson
from fedtern.advice.records import Record
from fedtern.advice.situation import Situation
from fedtern.core.methods import METHODS
from fedtern.core.numbers import format_parameter
from fedtern.report.formatting import join_words, method_label


@dataclass(frozen=True)
class Advice:
    """A recommended method and momentum, with reasons and the estimates behind them."""

    situation: Situation
    method: dict[str, Any]
    momentum: float
    reasons: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    group: RecordGroup | None

    @property
    def too_far(self) -> bool:
        """Whether even the nearest recorded runs are too different from the situation."""
        return _too_far(self.situation, self.group)

    @property
    def method_option(self) -> str:
        """The method as a value of ``--method``."""
        name = str(self.method["name"])
        defaults = METHODS[name].defaults
        ordered = {key: self.method[key] for key in defaults if key in self.method} | self.method
        written = {
            key: value
            for key, value in ordered.items()
            if key != "name" and _is_written(key, value, defaults)
        }
        inside = ",".join(f"{key}={format_parameter(value)}" for key, value in written.items())
        return f"{name}:{inside}" if inside else name


def _is_written(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    """Return whether a parameter is written out although it may have its default value."""
    always = key in ("p_up", "p_down", "delta") and value is not None
    return always or value != defaults.get(key, ...)


def _too_far(situation: Situation, group: RecordGroup | None) -> bool:
    return group is not None and group.distance(situation) > MAX_DISTANCE


def advise(situation: Situation, records: Sequence[Record], guidance: Guidance) -> Advice:
    """Recommend a method for a situation.

    The recorded runs nearest to the situation decide. Where they are too different, or none of
    them reached the target, the guidance decides.

    Args:
        situation: The federation.
        records: Recorded runs, for example from ``load_records()``.
        guidance: Lessons and a fallback, for example ``fedtern_paper.lessons.GUIDANCE``.

    Returns:
        The recommendation, its reasons and the estimated costs of all recorded methods.

    """
    group = nearest_group(situation, records, guidance.compared)
    estimates = estimate_costs(situation, group) if group else []
    reached = [estimate for estimate in estimates if estimate.reached]
    if group is None or not reached or _too_far(situation, group):
        return _advise_by_guidance(situation, guidance, estimates, group)
    chosen = reached[0]
    method = dict(chosen.record.method)
    lessons = guidance.applying(situation)
    reasons = [
        f"{method_label(method)}: fastest to reach {100 * chosen.target:.2f} % in the nearest"
        f" recorded runs ({group.description})",
        *_method_lessons(chosen, estimates, lessons, guidance.compared),
        *_momentum_reasons(chosen, estimates, lessons),
        *_failed_methods(estimates),
    ]
    return Advice(
        situation,
        method,
        chosen.record.momentum,
        tuple(reasons),
        tuple(best_momentum_each(estimates)),
        group,
    )


def _advise_by_guidance(
    situation: Situation,
    guidance: Guidance,
    estimates: Sequence[Estimate],
    group: RecordGroup | None,
) -> Advice:
    fallback = guidance.fallback(situation)
    # Even runs that are too different to choose a method by may choose its parameters.
    fastest = next(
        (e for e in estimates if e.reached and fallback.may_be_replaced_by(e.record.method)), None
    )
    method = dict(fastest.record.method if fastest else fallback.method)
    label = method_label(method)
    if group is None:
        why = "there are no recorded runs"
    elif _too_far(situation, group):
        why = f"the nearest recorded runs ({group.description}) are too different"
    else:
        why = "no recorded run reached the target"
    reasons = [f"{label}: chosen by the lessons alone, because {why}"]
    reasons += [_cite(lesson) for lesson in guidance.applying(situation)]
    if fastest:
        reasons.append(f"{label} instead of other parameters: the fastest in those runs")
    reasons += fallback.reasons
    momentum = fallback.momentum
    if momentum and fastest:
        momentum = fastest.record.momentum
        reasons.append(f"momentum {momentum:g}: as in the fastest of those runs")
    else:
        reasons += fallback.momentum_reasons
    return Advice(
        situation, method, momentum, tuple(reasons), tuple(best_momentum_each(estimates)), group
    )


def _cite(lesson: Lesson) -> str:
    return f"lesson {lesson.number}: {lesson.advice}"


def _contradict(lesson: Lesson, why: str) -> str:
    return f"contrary to lesson {lesson.number} ({lesson.advice}): {why}"


def _method_lessons(
    chosen: Estimate,
    estimates: Sequence[Estimate],
    lessons: Sequence[Lesson],
    compared: frozenset[str],
) -> list[str]:
    """Return the lessons that recommend the chosen method, and those that the runs contradict."""
    name = chosen.record.method["name"]
    agreeing = [_cite(lesson) for lesson in lessons if lesson.method == name]
    contradicted = [
        _contradict(lesson, "the recorded runs show otherwise")
        for lesson in lessons
        if lesson.method not in (None, name)
        and name in compared
        and _is_contradicted(lesson, chosen, estimates)
    ]
    return agreeing + contradicted


def _is_contradicted(lesson: Lesson, chosen: Estimate, estimates: Sequence[Estimate]) -> bool:
    """Return whether the fastest estimate contradicts a lesson that recommends another method."""
    rivals = [e for e in estimates if e.record.method["name"] == lesson.method]
    if not rivals:
        return False
    return not (lesson.counts_bytes and any(e.reached and e.up <= chosen.up for e in rivals))


def _momentum_reasons(
    chosen: Estimate, estimates: Sequence[Estimate], lessons: Sequence[Lesson]
) -> list[str]:
    record = chosen.record
    others = [
        e.record
        for e in estimates
        if e.record.method == record.method and e.record.momentum != record.momentum
    ]
    lesson = next((lesson for lesson in lessons if lesson.against_momentum), None)
    contradicted = lesson is not None and record.momentum != 0
    reasons = []
    if others:
        other = others[0]
        reasons.append(
            f"momentum {record.momentum:g}: best accuracy {100 * record.best:.1f} %,"
            f" {100 * other.best:.1f} % with momentum {other.momentum:g}"
        )
    if lesson is None:
        return reasons or [f"momentum {record.momentum:g}: as in the recorded run"]
    if not contradicted:
        return [*reasons, _cite(lesson)]
    why = (
        "the recorded runs reached the target sooner with momentum"
        if others
        else f"all recorded runs of this method have momentum {record.momentum:g}"
    )
    return [*reasons, _contradict(lesson, why)]


def _failed_methods(estimates: Sequence[Estimate]) -> list[str]:
    failed = [
        f"{method_label(e.record.method)} ({100 * e.record.best:.2f} %)"
        for e in best_momentum_each(estimates)
        if not e.reached
    ]
    return [f"did not reach the target: {join_words(failed)}"] if failed else []
