"""What to search: the candidates, how long they train and what they are judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedtern.core.names import look_up
from fedtern.data.environment import Environment
from fedtern.privacy import PrivacySettings
from fedtern.runs import Experiment, format_method
from fedtern.tuning.curve import MINIMISE, Cost
from fedtern.tuning.grid import Grid, searched_values

FACTOR = 3
"""Each rung trains the best third of the candidates for three times as many iterations."""

_RUNGS = (3, 2)  # the default: the first that leaves enough rounds
_SHARE = 2  # the budget is this part of the iterations by default
_EVALUATIONS = 10  # in the first rung
_FEWEST_EVALUATIONS = 3
_FEWEST_ROUNDS = 5  # of the candidate with the most local steps, in the first rung
_WITHIN = 2.0


class Rung(NamedTuple):
    """One step of the search.

    Attributes:
        iterations: Local iterations that each candidate has trained for at its end.
        keep: Number of candidates that go on to the next rung.

    """

    iterations: int
    keep: int


@dataclass(frozen=True)
class Plan:
    """A search; create one with ``Plan.of``, which checks it and fills in defaults.

    Attributes:
        experiments: The candidates: experiments that differ in their method's parameters.
        p_down_follows: Whether the values of ``p_down`` were chosen by those of ``p_up``.
        rungs: The steps of the search.
        cost: What is minimised.
        target: The value of the metric to reach; None to choose it from the runs.
        within: The distance of the chosen target below the best value, in percentage points of
            accuracy or in percent of the value of another metric.
        seeds: Number of seeds for the two cheapest candidates.

    """

    experiments: tuple[Experiment, ...]
    p_down_follows: bool
    rungs: tuple[Rung, ...]
    cost: Cost
    target: float | None
    within: float
    seeds: int

    @classmethod
    def of(
        cls,
        task: str,
        method: str | Mapping[str, Any] = "stc",
        grid: Grid | None = None,
        environment: Environment | None = None,
        *,
        minimise: str = "bytes",
        down_weight: float | None = None,
        target: float | None = None,
        within: float | None = None,
        budget: int | None = None,
        rungs: int | None = None,
        seeds: int = 2,
        iterations: int | None = None,
        learning_rate: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        evaluate_every: int | None = None,
        seed: int = 0,
        privacy: PrivacySettings | None = None,
    ) -> Plan:
        """Plan a search.

        Args:
            task: Name of a task.
            method: Method with fixed parameters, such as ``"stc:scope=tensor"``.
            grid: Values of the parameters to search.
            environment: Clients and their data; by default the paper's base configuration.
            minimise: "bytes" per client, "bytes-up" or "bytes-down".
            down_weight: Factor of the bytes down in "bytes"; by default 1.
            target: Value of the metric to reach; by default chosen from the runs.
            within: Distance of a chosen target below the best value; by default 2.
            budget: Local iterations of the longest runs; by default half of ``iterations``.
            rungs: Number of steps of the search; by default 3, or 2 if the first would be too
                short.
            seeds: Number of seeds for the two cheapest candidates.
            iterations: Local iterations of a full run; by default the task's.
            learning_rate: Learning rate of SGD; by default the task's.
            momentum: Momentum of SGD; by default the task's.
            weight_decay: Weight decay of SGD; by default the task's.
            evaluate_every: Iterations between evaluations; by default a tenth of the first rung.
            seed: Random seed.
            privacy: Differential privacy of the clients.

        Raises:
            ValueError: A name is unknown, a value is out of range, the budget is too small, or the
                method has no parameter to search.

        >>> plan = Plan.of("logistic-mnist", grid=Grid(local_steps=[1, 5]))
        >>> len(plan.experiments), [rung.iterations for rung in plan.rungs]
        (12, [270, 810, 2484])
        """
        place = environment or Environment()
        values = grid or Grid()
        methods = values.methods(method, place)
        if len(methods) == 1:
            raise ValueError(
                f"the grid has one candidate, {format_method(methods[0])}, so there is nothing to"
                " compare; give several values, or train it with `fedtern run`"
            )
        if target is not None and not math.isfinite(target):
            raise ValueError(f"target must be a finite number, got {target}")
        if target is not None and within is not None:
            raise ValueError(
                f"within {within:g} is the distance of a target that is chosen from the runs; leave"
                f" it out, or leave out target {target:g}"
            )
        distance = _WITHIN if within is None else float(within)
        if not 0 <= distance < 100:
            raise ValueError(f"within must be in [0, 100), got {within}")
        if seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {seeds}")

        def experiment(candidate: Mapping[str, Any], every: int | None) -> Experiment:
            return Experiment.of(
                task,
                candidate,
                place,
                iterations=iterations,
                learning_rate=learning_rate,
                momentum=momentum,
                weight_decay=weight_decay,
                evaluate_every=every,
                seed=seed,
                privacy=privacy,
            )

        total = experiment(methods[0], evaluate_every).iterations
        most = max(int(each.get("local_steps", 1)) for each in methods)
        lengths, every = _lengths(total, most, budget, rungs, evaluate_every)
        keeps = [max(math.ceil(len(methods) / FACTOR ** (i + 1)), 2) for i in range(len(lengths))]
        return cls(
            tuple(experiment(candidate, every) for candidate in methods),
            values.p_down is None,
            tuple(map(Rung, lengths, keeps)),
            _cost(minimise, down_weight),
            None if target is None else float(target),
            distance,
            seeds,
        )

    @property
    def budget(self) -> int:
        """Local iterations of the longest runs."""
        return self.rungs[-1].iterations

    @property
    def searched(self) -> dict[str, list[float]]:
        """The parameters that are searched, with all of their values in ascending order."""
        return searched_values([each.method for each in self.experiments])


def _cost(minimise: str, down_weight: float | None) -> Cost:
    up, down = look_up(minimise, MINIMISE, "objective")
    if down_weight is None:
        return Cost(up, down)
    if minimise != "bytes":
        raise ValueError(
            f"down_weight {down_weight:g} applies to minimise 'bytes', not {minimise!r}"
        )
    if not 0 <= down_weight < math.inf:
        raise ValueError(f"down_weight must be a number of at least 0, got {down_weight}")
    return Cost(up, float(down_weight))


def _lengths(
    total: int, most: int, budget: int | None, rungs: int | None, every: int | None
) -> tuple[list[int], int]:
    """Return the iterations of each rung, and the iterations between two evaluations.

    Args:
        total: Iterations of a full run.
        most: Largest number of local steps of any candidate.
        budget: Iterations of the last rung, or None.
        rungs: Number of rungs, or None.
        every: Iterations between evaluations, or None.

    """
    if budget is not None and not 1 <= budget <= total:
        raise ValueError(
            f"budget must be from 1 to {total}, the iterations of a full run, got {budget}"
        )
    if rungs is not None and rungs < 1:
        raise ValueError(f"rungs must be at least 1, got {rungs}")
    if every is not None and every < 1:
        raise ValueError(f"evaluate_every must be at least 1, got {every}")
    longest = budget or max(total // _SHARE, 1)
    choices = _RUNGS if rungs is None else (rungs,)
    number = next((n for n in choices if _first(longest, n) >= _FEWEST_ROUNDS * most), choices[-1])
    first = _first(longest, number)
    if first < _FEWEST_ROUNDS * most:
        raise ValueError(_too_small(longest, number, first, most, total))
    step = every or max(first // _EVALUATIONS, 1)
    if first < step * _FEWEST_EVALUATIONS:
        raise ValueError(
            f"evaluate_every {step} is too long: the first of {number} rungs has {first} iterations"
            f" and needs {_FEWEST_EVALUATIONS} evaluations; use at most"
            f" {first // _FEWEST_EVALUATIONS}"
        )
    # Multiples of the step, so that each rung ends with an evaluation; a full run always does.
    lengths = [_first(longest, number - i) // step * step for i in range(number)]
    return [*lengths[:-1], total if longest == total else lengths[-1]], step


def _first(longest: int, rungs: int) -> int:
    """Return the iterations of the first of several rungs."""
    for _ in range(rungs - 1):
        longest //= FACTOR
    return longest


def _too_small(longest: int, rungs: int, first: int, most: int, total: int) -> str:
    rounds = first // most
    needed = _FEWEST_ROUNDS * most * FACTOR ** (rungs - 1)
    count = f"{first} iterations, {rounds} round{'' if rounds == 1 else 's'} with"
    text = (
        f"budget {longest} is too small: the first of {rungs} rungs has {count} {most} local steps,"
        f" fewer than {_FEWEST_ROUNDS}; "
    )
    remedies = []
    if needed <= total:
        remedies.append(f"use a budget of at least {needed}")
    else:
        remedies.append(f"use a budget of at least {needed} with as many iterations")
    if rungs > 1:
        remedies.append("fewer rungs")
    return text + ", ".join(remedies) + " or fewer local steps"
