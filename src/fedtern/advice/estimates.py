"""Estimated cost of each method, scaled from the nearest recorded runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from fedtern.advice.cells import Cell
from fedtern.advice.records import Point, Record
from fedtern.advice.situation import Minimise, Situation
from fedtern.core.analytic import analytic_bits
from fedtern.core.codecs import StepsCodec
from fedtern.core.layout import Layout
from fedtern.core.methods import Link, make_method
from fedtern.report.formatting import format_bytes, format_number, method_label

STEPS_GROWTH = 2 / 3
"""The sum of the steps of s rounds has about s to this power times the bytes of one round.

This is an estimate: docs/results/bytes.md has the measured sizes.
"""

_OVERHEAD_BYTES = 32  # of a message, at most; independent of the model (see docs/format.md)
_LONGEST = timedelta(days=365_000).total_seconds()


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a recorded method until the target; ``fedtern.runs.units`` has the units.

    ``reached`` is None if the recorded run did not reach the target; the costs are then those of
    the whole run.
    """

    record: Record
    target: float
    reached: Point | None
    rounds: float
    up_bytes_mean: float
    down_bytes_mean: float
    up_bytes: float
    down_bytes: float
    seconds: float
    cost: float

    @property
    def label(self) -> str:
        """The method in a few words."""
        return method_label(self.record.method)


@dataclass(frozen=True)
class Objective:
    """What to minimise: the words for the smallest amount, the amount, and its text."""

    smallest: str
    amount: Callable[[Estimate], float]
    format: Callable[[Estimate], str]


def format_duration(seconds: float) -> str:
    """Format a duration; timedelta cannot hold arbitrarily long ones.

    >>> format_duration(3661.2), format_duration(1e30)
    ('1:01:01', 'over 1000 years')
    """
    return "over 1000 years" if seconds > _LONGEST else str(timedelta(seconds=round(seconds)))


OBJECTIVES: dict[Minimise, Objective] = {
    "bytes": Objective(
        "fewest bytes",
        lambda e: e.up_bytes_mean + e.down_bytes_mean,
        lambda e: f"{format_bytes(e.up_bytes_mean + e.down_bytes_mean)} per client",
    ),
    "bytes-up": Objective(
        "fewest uploaded bytes",
        lambda e: e.up_bytes_mean,
        lambda e: f"{format_bytes(e.up_bytes_mean)} per client",
    ),
    "time": Objective("shortest time", lambda e: e.seconds, lambda e: format_duration(e.seconds)),
    "cost": Objective("lowest cost", lambda e: e.cost, lambda e: f"cost {format_number(e.cost)}"),
}
"""Objectives by their names in ``Situation.minimise``."""


def estimate_costs(situation: Situation, cell: Cell) -> list[Estimate]:
    """Estimate the cost of every record of a cell, the best first, unsuccessful ones last."""
    target = cell.best - situation.within
    amount = OBJECTIVES[situation.minimise].amount

    def rank(estimate: Estimate) -> tuple[float, float, float]:
        if not estimate.reached:
            return math.inf, math.inf, -estimate.record.best
        return amount(estimate), estimate.up_bytes_mean + estimate.down_bytes_mean, 0.0

    estimates = [_estimate_cost(situation, record, target) for record in cell.records]
    return sorted(estimates, key=rank)


def _estimate_cost(situation: Situation, record: Record, target: float) -> Estimate:
    reached = record.reaching(target)
    point = reached or record.points[-1]
    method = make_method(record.method)
    rounds = point.iteration / method.local_steps
    recorded = Layout.flat(record.parameters)
    wanted = Layout.flat(situation.parameters)
    up = _rescale(
        point.up,
        rounds,
        analytic_bits(method.up, recorded) / 8,
        analytic_bits(method.up, wanted) / 8,
    )
    before = _download_bytes(method.down, recorded, record.environment.participation)
    after = _download_bytes(method.down, wanted, situation.participation)
    down = _rescale(point.down, rounds, before, after)
    if before < 4 * record.parameters:  # the recorded downloads are smaller than the model
        down = min(down, rounds * (4 * situation.parameters + _OVERHEAD_BYTES))
    transfer = 8 * (up / situation.up + down / situation.down)
    up_total = situation.cohort_size * up
    down_total = situation.cohort_size * down
    price_down = situation.price_down + situation.price_server
    return Estimate(
        record,
        target,
        reached,
        rounds,
        up,
        down,
        up_total,
        down_total,
        rounds * situation.latency + transfer + point.iteration * situation.step_seconds,
        (up_total * situation.price_up + down_total * price_down) / 1e9,
    )


def _download_bytes(link: Link, layout: Layout, participation: float) -> float:
    """Return the bytes of one download by the method's formula, at most those of the model.

    A client that takes part in every s-th round downloads s updates, or their sum if they are
    steps.
    """
    away = max(round(1 / participation), 1)
    if isinstance(link.codec, StepsCodec):
        bits = analytic_bits(link, layout) * math.pow(away, STEPS_GROWTH)
    else:
        bits = analytic_bits(link, layout, away)
    return min(bits / 8, 4 * layout.size)


def _rescale(total: float, rounds: float, before: float, after: float) -> float:
    """Rescale recorded bytes to another message size; the overhead of messages stays the same.

    Args:
        total: Recorded bytes of all messages.
        rounds: Number of messages.
        before: Bytes of a recorded message by the method's formula.
        after: Bytes of a message by the formula in the new situation.

    """
    overhead = min(max(total - rounds * before, 0), rounds * _OVERHEAD_BYTES)
    return overhead + (total - overhead) * after / before


def best_momentum_each(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return the first estimate of each method with its parameters, whatever the momentum."""
    first: dict[str, Estimate] = {}
    for estimate in estimates:
        key = repr(sorted(estimate.record.method.items(), key=str))
        first.setdefault(key, estimate)
    return list(first.values())
