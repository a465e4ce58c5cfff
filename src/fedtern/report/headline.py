"""The headline of a report: quality and traffic of one configuration, with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedtern.data.metric_spec import MetricSpec
from fedtern.report.formatting import format_bytes, format_metric, format_number
from fedtern.report.groups import Group
from fedtern.report.results import result

_NEAR_BEST = 0.02  # of a share, or of the value of another metric


@dataclass(frozen=True)
class Card:
    """One number of the headline."""

    title: str
    value: str
    note: str


@dataclass(frozen=True)
class Headline:
    """The cards of one configuration, and why it was chosen."""

    label: str
    reason: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; the latter is None for one seed."""

    mean: float
    deviation: float | None
    seeds: int

    def format_metric(self, name: str) -> str:
        """Return the mean, and the deviation if there are several seeds."""
        text = format_metric(name, self.mean)
        if self.deviation is None:
            return text
        if MetricSpec(name).is_share:
            return f"{100 * self.mean:.1f} ± {100 * self.deviation:.1f} %"
        return f"{text} ± {format_number(self.deviation, 2)}"


def spread(group: Group, name: str) -> Spread | None:
    """Return the spread of a field of ``Result`` over the seeds of a configuration."""
    found = [getattr(result(run, group.label), name) for run in group.evaluated]
    values = [value for value in found if value is not None]
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


def headline(groups: Sequence[Group]) -> Headline | None:
    """Return the headline of the configurations of one task and metric.

    It is about the configuration with the fewest bytes per client among those that are nearly as
    good as the best one.

    Returns:
        The headline, or None if no configuration has an evaluation with traffic.

    """
    judged = [
        (group, quality, sent)
        for group in groups
        if (quality := spread(group, "final_metric")) and (sent := _per_client(group))
    ]
    if not judged:
        return None
    metric = judged[0][0].metric
    best = metric.best_of(quality.mean for _, quality, _ in judged)
    assert best is not None
    margin = _NEAR_BEST if metric.is_share else _NEAR_BEST * abs(best)
    near = [each for each in judged if abs(each[1].mean - best) <= margin]
    group, quality, _ = min(near, key=lambda each: each[2])
    reason = ""
    if len(judged) > 1:
        within = "2 percentage points" if metric.is_share else "2 %"
        reason = f"fewest bytes per client within {within} of the best {metric.name}"
    return Headline(group.label, reason, _cards(group, quality))


def _per_client(group: Group) -> float | None:
    up = spread(group, "up_bytes")
    down = spread(group, "down_bytes")
    return None if up is None or down is None else up.mean + down.mean


def _cards(group: Group, quality: Spread) -> tuple[Card, ...]:
    metric = group.metric.name
    seeds = f"mean of {quality.seeds} seeds" if quality.seeds > 1 else "one seed"
    cards = [Card(_capitalised(metric), quality.format_metric(metric), seeds)]

    def mean(name: str) -> float | None:
        found = spread(group, name)
        return None if found is None else found.mean

    for title, up, down, note in (
        ("Per client", mean("up_bytes"), mean("down_bytes"), "{} up, {} down"),
        (
            "At the server",
            mean("total_up_bytes"),
            mean("total_down_bytes"),
            "{} received, {} sent",
        ),
    ):
        if up is not None and down is not None:
            text = note.format(format_bytes(up), format_bytes(down))
            cards.append(Card(title, format_bytes(up + down), text))
    up, down, dense = mean("up_bytes"), mean("down_bytes"), mean("dense_bytes")
    if up and down and dense:
        each = f"{format_number(dense / up)} × up, {format_number(dense / down)} × down"
        cards.append(
            Card("Smaller than dense", f"{format_number(2 * dense / (up + down))} ×", each)
        )
    return tuple(cards)


def _capitalised(name: str) -> str:
    return name[:1].upper() + name[1:]
