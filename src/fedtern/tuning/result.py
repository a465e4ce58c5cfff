"""What a search has found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from fedtern.core.numbers import format_parameter
from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation, Experiment, format_method
from fedtern.tuning.curve import Curve
from fedtern.tuning.grid import beyond
from fedtern.tuning.plan import Plan

REPEATED = 2
"""Number of candidates that are trained with several seeds: the cheapest ones."""


@dataclass(frozen=True)
class Candidate:
    """One candidate and what is known about it.

    Attributes:
        experiment: Its experiment.
        evaluation: Its last evaluation in this search.
        curve: Its curve with the first seed.
        repetitions: Its curves with further seeds.
        rung: The rung after which it was dropped, counted from 1; None if it never was.
        target: The quality of the target; see ``MetricSpec.quality``.

    """

    experiment: Experiment
    evaluation: Evaluation
    curve: Curve
    repetitions: tuple[Curve, ...]
    rung: int | None
    target: float

    @cached_property
    def costs(self) -> tuple[float | None, ...]:
        """The cost until the target with each seed; None where it was not reached."""
        return tuple(curve.cost_of(self.target) for curve in (self.curve, *self.repetitions))

    @property
    def cost(self) -> float | None:
        """The mean cost until the target; None unless every seed has reached it."""
        found = [cost for cost in self.costs if cost is not None]
        return fmean(found) if len(found) == len(self.costs) else None

    @property
    def noise(self) -> float:
        """The factor by which its cost varies: between seeds, or by the noise of its curve."""
        found = [cost for cost in self.costs if cost is not None]
        factors = [max(found) / min(found)] if found and min(found) > 0 else []
        below = self.curve.cost_of(self.target - self.curve.noise)
        if self.costs[0] is not None and below:
            factors.append(self.costs[0] / below)
        return max(factors, default=1.0)


@dataclass(frozen=True)
class Tuning:
    """The result of a search.

    Attributes:
        plan: What was searched.
        metric: The primary metric of the task.
        target: The target as a value of the metric.
        candidates: All candidates, the recommended one first: those that reached the target by
            their cost, then the others by their best value.

    """

    plan: Plan
    metric: MetricSpec
    target: float
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The recommended candidate: the cheapest one, or the best one if none is cheap enough."""
        return self.candidates[0]

    @property
    def reached(self) -> bool:
        """Whether a candidate has reached the target."""
        return self.best.cost is not None

    @property
    def method(self) -> str:
        """The recommended method as a value of ``--method``."""
        return format_method(self.best.experiment.method)

    @property
    def noise(self) -> float:
        """The factor by which costs vary by chance: the largest of the repeated candidates."""
        return max(each.noise for each in self.candidates[:REPEATED])

    @property
    def ties(self) -> list[Candidate]:
        """Other candidates whose cost differs from the lowest by no more than the noise."""
        lowest = self.best.cost
        if lowest is None:
            return []
        return [
            each
            for each in self.candidates[1:]
            if each.cost is not None and each.cost <= lowest * self.noise
        ]

    def is_too_expensive(self, candidate: Candidate) -> bool:
        """Return whether a candidate has spent more than the lowest cost without the target."""
        lowest = self.best.cost
        return lowest is not None and candidate.costs[0] is None and candidate.curve.spent >= lowest

    @property
    def undecided(self) -> list[Candidate]:
        """Candidates that trained to the end of the search and could still become the cheapest.

        They have not reached the target, and have spent less than the recommended one needs for it.
        """
        return [
            each
            for each in self.candidates
            if self.reached
            and each.rung is None
            and each.costs[0] is None
            and not self.is_too_expensive(each)
        ]

    @property
    def edges(self) -> dict[str, float]:
        """Parameters whose recommended value is at an edge of the grid, with a value beyond it.

        Values of ``p_down`` that follow those of ``p_up`` are left out.
        """
        chosen = self.best.experiment.method
        found = {
            name: beyond(values, chosen[name])
            for name, values in self.plan.searched.items()
            if name != "p_down" or not self.plan.p_down_follows
        }
        return {name: further for name, further in found.items() if further is not None}

    def findings(self) -> list[str]:
        """Return what the search has found, in sentences."""
        if not self.reached:
            return [self._target_text(), self._not_reached(), *self._edge_findings()]
        return [
            self._target_text(),
            self._lead(),
            *self._undecided(),
            *self._edge_findings(),
        ]

    def _target_text(self) -> str:
        goal = f"target: {self.metric.name} {self.metric.format(self.target)}"
        if self.plan.target is not None:
            return goal
        unit = "points" if self.metric.is_share else "%"
        side = "below" if self.metric.best == "higher" else "above"
        return f"{goal}, {self.plan.within:g} {unit} {side} the best value of any candidate"

    def _not_reached(self) -> str:
        name = self.metric.name
        best = self.metric.format(self.metric.value_of_quality(self.best.curve.best))
        return (
            f"no candidate reached the target in {self.plan.budget:,} iterations; the best {name}"
            f" was {best}. The recommended candidate has the best {name}, not the fewest bytes:"
            " choose an easier target or a larger budget"
        )

    def _lead(self) -> str:
        """Return whether the difference to the other candidates is larger than the noise."""
        seeds = len(self.best.costs)
        source = f"between {seeds} seeds" if seeds > 1 else "within one seed; more seeds show more"
        varies = f"costs vary by a factor of {self.noise:.2f} {source}"
        if self.ties:
            return f"within noise of the recommended candidate ({varies}): {self._list(self.ties)}"
        reached = [each.cost for each in self.candidates if each.cost is not None]
        if len(reached) == 1 or not reached[0]:
            return f"no other candidate reached the target; {varies}"
        lead = reached[1] / reached[0]
        return (
            f"of the candidates that reached the target, the next one needs {lead:.2f} times"
            f" as many bytes; {varies}"
        )

    def _undecided(self) -> list[str]:
        if not self.undecided:
            return []
        return [
            "with a larger budget, these could still reach the target with fewer bytes:"
            f" {self._list(self.undecided)}"
        ]

    def _edge_findings(self) -> list[str]:
        return [
            f"{name}={format_parameter(self.best.experiment.method[name])} is at the edge of the"
            f" grid: try {format_parameter(further)}, too"
            for name, further in self.edges.items()
        ]

    def _list(self, candidates: Iterable[Candidate]) -> str:
        return "; ".join(label(each.experiment.method, self.plan.searched) for each in candidates)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "method": self.method,
            "reached": self.reached,
            "metric": self.metric.to_json(),
            "target": self.target,
            "target_given": self.plan.target is not None,
            "minimise": self.plan.cost.describe(),
            "budget": self.plan.budget,
            "rungs": [rung.iterations for rung in self.plan.rungs],
            "noise": self.noise if self.reached else None,
            "ties": [format_method(each.experiment.method) for each in self.ties],
            "undecided": [format_method(each.experiment.method) for each in self.undecided],
            "edges": self.edges,
            "findings": self.findings(),
            "candidates": [self._row(each) for each in self.candidates],
        }

    def _row(self, candidate: Candidate) -> dict[str, Any]:
        best = self.metric.value_of_quality(candidate.curve.best)
        last = candidate.evaluation
        return {
            "method": format_method(candidate.experiment.method),
            "experiment": candidate.experiment.digest,
            "iteration": last.iteration,
            "best": best if math.isfinite(best) else None,
            "up_bytes_mean": last.up_bytes_mean,
            "down_bytes_mean": last.down_bytes_mean,
            "dropped_after_rung": candidate.rung,
            "too_expensive": self.is_too_expensive(candidate),
            "cost": candidate.cost,
            "costs": list(candidate.costs),
        }


def label(method: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the searched parameters of a method as text.

    >>> label({"name": "stc", "p_up": 0.01, "local_steps": 5}, ["local_steps", "p_up"])
    'local_steps=5 p_up=1/100'
    """
    return " ".join(f"{name}={format_parameter(method[name])}" for name in names if name in method)
