"""Questions to finished runs: which method is better, in which environments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedtern import Environment
from fedtern.report import format_number
from fedtern.runs import Evaluation
from fedtern_paper import thresholds
from fedtern_paper.comparison_groups import (
    METHODS,
    Accuracy,
    ComparisonGroup,
    Groups,
    MethodPredicate,
    is_baseline,
)
from fedtern_paper.significance import Comparison, compare_margins, standard_error
from fedtern_paper.thresholds import DOWNLOAD_COMPRESSION, STRONG_COMPRESSION

EnvironmentPredicate = Callable[[Environment], bool]


def anywhere(_environment: Environment) -> bool:
    """Return True: every environment."""
    return True


def non_iid(environment: Environment) -> bool:
    """Return whether clients hold fewer than all classes, or class mixtures that differ."""
    if environment.split == "classes":
        return thresholds.non_iid(environment.classes_per_client, Environment.classes_per_client)
    return environment.split in ("dirichlet", "natural")


def iid(environment: Environment) -> bool:
    """Return whether clients hold samples of all data."""
    return not non_iid(environment)


def small_batches(environment: Environment) -> bool:
    """Return whether batches are smaller than in the paper's base configuration."""
    return thresholds.small_batches(environment.batch_size)


def low_participation(environment: Environment) -> bool:
    """Return whether less than a tenth of the clients take part in a round."""
    return thresholds.low_participation(environment.participation)


def _compare_accuracies(
    group: ComparisonGroup, what: str, first: Accuracy | None, second: Accuracy | None
) -> Iterator[Comparison]:
    """Compare two accuracies for the seeds that both have."""
    if first is None or second is None:
        return
    seeds = sorted(first.by_seed.keys() & second.by_seed.keys())
    if seeds:
        first = first.only(seeds)
        second = second.only(seeds)
        margins = [first.by_seed[seed] - second.by_seed[seed] for seed in seeds]
        error = standard_error(group.key.task, first.mean, second.mean)
        yield compare_margins(group, what, str(first), str(second), margins, error)


def stc_above(rival: str, applies: EnvironmentPredicate, groups: Groups) -> Iterator[Comparison]:
    """Compare STC with a rival, each with its better momentum."""
    stc = METHODS["STC"]
    other = METHODS[rival]
    for group in groups.values():
        if applies(group.key.environment):
            seeds = group.seeds(stc) & group.seeds(other)
            yield from _compare_accuracies(
                group,
                f"STC above {rival}",
                group.best_accuracy(stc, seeds),
                group.best_accuracy(other, seeds),
            )


def without_momentum(groups: Groups) -> Iterator[Comparison]:
    """Compare no momentum with momentum, where the paper advises against it."""
    for group in groups.values():
        environment = group.key.environment
        if thresholds.momentum_harms(
            environment.batch_size, environment.participation, non_iid=non_iid(environment)
        ):
            for name in ("STC", "FedAvg"):
                yield from _compare_accuracies(
                    group,
                    f"{name} without momentum above with it",
                    group.accuracy(METHODS[name], 0.0),
                    group.accuracy(METHODS[name], 0.9),
                )


def signsgd_with_momentum(groups: Groups) -> Iterator[Comparison]:
    """Compare signSGD with momentum and without, in every environment."""
    for group in groups.values():
        yield from _compare_accuracies(
            group,
            "signSGD with momentum above without",
            group.accuracy(METHODS["signSGD"], 0.9),
            group.accuracy(METHODS["signSGD"], 0.0),
        )


def cheaper(
    first: MethodPredicate,
    rival: MethodPredicate,
    costs: Mapping[str, Callable[[Evaluation], float]],
    groups: Groups,
) -> Iterator[Comparison]:
    """Compare costs to the target, on iid data in the paper's base configuration.

    Args:
        first: The methods that should be cheaper.
        rival: The methods that they are compared with, in addition to the baselines.
        costs: Costs at an evaluation, by name.
        groups: The runs.

    """

    def rivals(method: Mapping[str, Any]) -> bool:
        return rival(method) or is_baseline(method)

    for group in groups.values():
        in_base = group.key.environment == Environment()
        if not (in_base and group.contains(first) and group.contains(rivals)):
            continue
        for name, cost in costs.items():
            what = f"{name} until {100 * group.target:g} %"
            ours = group.lowest_cost(first, cost)
            other = group.lowest_cost(rivals, cost)
            if ours is not None and other is not None:
                seeds = sorted(ours.by_seed.keys() & other.by_seed.keys())
                if seeds:
                    ours = ours.only(seeds)
                    other = other.only(seeds)
                    margins = [other.by_seed[seed] - ours.by_seed[seed] for seed in seeds]
                    yield compare_margins(group, what, str(ours), str(other), margins)
            elif ours is not None:
                yield Comparison(group, what, str(ours), "n.a.", math.nan, holds=True)
            elif other is not None:
                yield Comparison(group, what, "n.a.", str(other), math.nan, holds=False)


def stc_compresses(groups: Groups) -> Iterator[Comparison]:
    """Compare the traffic of STC in both directions with uncompressed training."""
    for group in groups.values():
        final = [run[-1] for cell, run in group.runs if cell.method == METHODS["STC"]]
        if final:
            dense = sum(e.dense_bytes for e in final)
            up = dense / max(sum(e.up_bytes_mean for e in final), 1)
            down = dense / max(sum(e.down_bytes_mean for e in final), 1)
            runs = f"{len(final)} run" if len(final) == 1 else f"{len(final)} runs"
            yield Comparison(
                group,
                "STC compresses both ways",
                f"up ×{format_number(up)} ({runs})",
                f"down ×{format_number(down)}",
                math.nan,
                holds=up > STRONG_COMPRESSION and down > DOWNLOAD_COMPRESSION,
            )


BYTES: dict[str, Callable[[Evaluation], float]] = {
    "MB uploaded": lambda evaluation: evaluation.up_bytes_mean / 1e6,
    "MB downloaded": lambda evaluation: evaluation.down_bytes_mean / 1e6,
}
ROUNDS: dict[str, Callable[[Evaluation], float]] = {"rounds": lambda evaluation: evaluation.round}
