"""What to do in a situation, and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.advice.estimates import FAR, Estimate, Scene, estimate, nearest, shown
from fedtern.advice.lessons import COMPARED, Lesson, applying, sending_dominates
from fedtern.advice.records import Record
from fedtern.advice.situation import Situation
from fedtern.core.methods import METHODS
from fedtern.core.numbers import typed
from fedtern.report.formatting import join_words, method_label


@dataclass(frozen=True)
class Advice:
    """A method, whether to use momentum, the estimates it was chosen by, and the reasons."""

    situation: Situation
    method: dict[str, Any]
    momentum: float
    reasons: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    scene: Scene | None

    @property
    def far(self) -> bool:
        """Whether the nearest recorded runs are too far away to go by."""
        return _far(self.situation, self.scene)

    @property
    def method_option(self) -> str:
        """The method as the command line takes it.

        >>> from fedtern.advice import advise
        >>> advise(Situation(classes=1), []).method_option
        'stc:p_up=1/400,p_down=1/400'
        """
        name, usual = str(self.method["name"]), METHODS[str(self.method["name"])].defaults
        ordered = {**{key: self.method[key] for key in usual if key in self.method}, **self.method}
        told = {k: v for k, v in ordered.items() if k != "name" and _told(k, v, usual)}
        inside = ",".join(f"{key}={typed(value)}" for key, value in told.items())
        return f"{name}{':' * bool(inside)}{inside}"


def _told(key: str, value: Any, usual: Mapping[str, Any]) -> bool:
    """Whether a parameter has to be written down, or is as usual."""
    always = key in ("p_up", "p_down", "delta") and value is not None
    return always or value != usual.get(key, ...)


def _far(situation: Situation, scene: Scene | None) -> bool:
    return scene is not None and scene.distance(situation) > FAR


def advise(situation: Situation, records: Sequence[Record]) -> Advice:
    """Recommend what the recorded runs nearest to a situation did best with, or the lessons."""
    scene = nearest(situation, records)
    found = estimate(situation, scene) if scene else []
    arrived = [e for e in found if e.reached]
    lessons = applying(situation)
    if scene is None or not arrived or _far(situation, scene):
        return _by_lessons(situation, lessons, found, scene)
    chosen = arrived[0]
    method, momentum = dict(chosen.record.method), chosen.record.momentum
    reasons = [
        f"{method_label(method)}: the quickest way to {100 * chosen.target:.2f} % in the nearest"
        f" recorded runs ({scene.name})",
        *_about_method(chosen, found, lessons),
        *_about_momentum(chosen, found, lessons),
        *_about_others(found),
    ]
    return Advice(situation, method, momentum, tuple(reasons), tuple(shown(found)), scene)


def _by_lessons(
    situation: Situation, lessons: Sequence[Lesson], found: list[Estimate], scene: Scene | None
) -> Advice:
    latency_counts, quickest = not sending_dominates(situation), None
    if any(lesson.speaks_for == "fedavg" for lesson in lessons):
        method: dict[str, Any] = {"name": "fedavg", "local_steps": 100}
    elif latency_counts and not situation.skewed:
        method = {"name": "stc", "p_up": 1 / 25, "p_down": 1 / 25, "local_steps": 25}
    else:
        method = {"name": "stc", "p_up": 1 / 400, "p_down": 1 / 400}
        # The lessons do not say how sparse; runs may, even some that are too far to choose by.
        quickest = next((e for e in found if e.reached and _only_sparse(e.record.method)), None)
        method = dict(quickest.record.method) if quickest else method
    why = (
        "there are no recorded runs to go by"
        if scene is None
        else f"the nearest recorded runs ({scene.name}) are too far from this to go by"
        if _far(situation, scene)
        else "no recorded run got to the target"
    )
    reasons = [f"{method_label(method)}: by the lessons alone, as {why}"]
    reasons += [f"lesson {lesson.number}: {lesson.advice}" for lesson in lessons]
    if quickest:
        reasons.append(
            f"{method_label(method)} rather than another p: the quickest of STC's in those runs"
        )
    if method.get("local_steps") == 25:
        reasons.append(
            "25 local iterations: rounds are slow, and on iid data delay does as little harm as"
            " sparsity (Figure 12)"
        )
    momentum = 0.0 if situation.momentum_harms or situation.rarely else 0.9
    if momentum and quickest:
        momentum = quickest.record.momentum
        reasons.append(f"momentum {momentum:g}: as in the quickest of those runs")
    elif momentum:
        reasons.append(f"momentum {momentum:g}: nothing that lesson 6 warns of is the case here")
    elif not situation.momentum_harms:
        reasons.append("momentum 0: that of clients which seldom take part is old (Figure 8)")
    return Advice(situation, method, momentum, tuple(reasons), tuple(shown(found)), scene)


def _only_sparse(method: Mapping[str, Any]) -> bool:
    return bool(method["name"] == "stc" and method.get("local_steps", 1) == 1)


def _about_method(
    chosen: Estimate, found: Sequence[Estimate], lessons: Sequence[Lesson]
) -> list[str]:
    """The lessons that agree, and those that the runs contradict: they compare STC and FedAvg."""
    name = chosen.record.method["name"]
    said = [lesson for lesson in lessons if lesson.speaks_for in COMPARED]
    agreeing = [f"lesson {m.number}: {m.advice}" for m in said if m.speaks_for == name]
    against = [m for m in said if m.speaks_for != name and _contradicts(chosen, m, found)]
    return agreeing + [_against(m, "here the recorded runs say otherwise") for m in against]


def _contradicts(chosen: Estimate, lesson: Lesson, found: Sequence[Estimate]) -> bool:
    """Whether a choice, which was the quickest, speaks against a lesson for another method."""
    rivals = [e for e in found if e.record.method["name"] == lesson.speaks_for]
    if not rivals or chosen.record.method["name"] not in COMPARED:
        return False
    return not (lesson.in_bytes and any(e.reached and e.up <= chosen.up for e in rivals))


def _against(lesson: Lesson, why: str) -> str:
    return f"against lesson {lesson.number} ({lesson.advice}): {why}"


def _about_momentum(
    chosen: Estimate, found: Sequence[Estimate], lessons: Sequence[Lesson]
) -> list[str]:
    record = chosen.record
    twins = [
        e.record
        for e in found
        if e.record.method == record.method and e.record.momentum != record.momentum
    ]
    lesson = next((lesson for lesson in lessons if lesson.speaks_for == "no momentum"), None)
    said = [f"lesson {lesson.number}: {lesson.advice}"] if lesson else []
    if not twins:
        if lesson and record.momentum:
            return [_against(lesson, f"nothing was recorded without {record.momentum:g} of it")]
        return said or [f"momentum {record.momentum:g}: as in the recorded run"]
    if lesson and record.momentum:
        said = [_against(lesson, "with it the recorded runs got there sooner")]
    other = twins[0]
    measured = (
        f"momentum {record.momentum:g}: at best {100 * record.best:.1f} % there,"
        f" with {other.momentum:g} {100 * other.best:.1f} %"
    )
    return [measured, *said]


def _about_others(found: Sequence[Estimate]) -> list[str]:
    failed = [
        f"{method_label(e.record.method)} ({100 * e.record.best:.2f} %)"
        for e in shown(found)
        if not e.reached
    ]
    return [f"did not get there: {join_words(failed)}"] if failed else []
