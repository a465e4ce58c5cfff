"""Loss of accuracy in a harder environment: a method there, compared with itself elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from fedtern import Environment
from fedtern_paper.comparison_groups import METHODS, ComparisonGroup, Groups, format_seeds
from fedtern_paper.comparisons import EnvironmentPredicate, anywhere, non_iid, small_batches
from fedtern_paper.results import format_points, spread
from fedtern_paper.significance import Comparison, compare_margins, standard_error
from fedtern_paper.thresholds import SLIGHT_DIFFERENCE

Easier = Callable[[Environment], Environment]
"""Returns the environment without a difficulty; the same if it does not have it."""

UNBALANCED: dict[str, Easier] = {"unbalanced data": lambda e: replace(e, gamma=1.0)}
DIFFICULTIES: dict[str, Easier] = {
    "non-iid data": lambda e: replace(e, classes_per_client=10) if non_iid(e) else e,
    "small batches": lambda e: replace(e, batch_size=20) if small_batches(e) else e,
    **UNBALANCED,
}
PARTIAL_PARTICIPATION: dict[str, Easier] = {
    "partial participation": lambda e: replace(e, clients=e.cohort_size, participation=1.0)
}


class Degradation(NamedTuple):
    """Accuracy of a seed without a difficulty and with it."""

    easy: float
    hard: float

    @property
    def loss(self) -> float:
        """Loss of accuracy; negative for a gain."""
        return self.easy - self.hard


def degrades_less(
    first: str,
    second: str,
    difficulties: Mapping[str, Easier],
    applies: EnvironmentPredicate,
    groups: Groups,
) -> Iterator[Comparison]:
    """Compare what two methods lose to a difficulty."""
    for hard, easy, difficulty in _pairs(difficulties, applies, groups):
        ours = _degradations(easy, hard, first)
        other = _degradations(easy, hard, second)
        seeds = sorted(ours.keys() & other.keys())
        if seeds:
            our_seeds = [ours[seed] for seed in seeds]
            other_seeds = [other[seed] for seed in seeds]
            yield compare_margins(
                hard,
                f"{first} loses less to {difficulty} than {second}",
                _format(our_seeds),
                _format(other_seeds),
                [other[seed].loss - ours[seed].loss for seed in seeds],
                _standard_error(hard, our_seeds, other_seeds),
            )


def hardly_degrades(difficulties: Mapping[str, Easier], groups: Groups) -> Iterator[Comparison]:
    """Compare what each method loses to a difficulty, or gains by it, with a slight difference."""
    for hard, easy, difficulty in _pairs(difficulties, anywhere, groups):
        for name in METHODS:
            degradations = list(_degradations(easy, hard, name).values())
            if degradations:
                losses = [each.loss for each in degradations]
                margin = SLIGHT_DIFFERENCE - abs(fmean(losses))
                yield Comparison(
                    hard,
                    f"{difficulty} hardly matters to {name}",
                    _format(degradations),
                    f"{100 * SLIGHT_DIFFERENCE:g} points",
                    margin,
                    margin > 0,
                    spread(losses),
                    _standard_error(hard, degradations),
                )


def _pairs(
    difficulties: Mapping[str, Easier], applies: EnvironmentPredicate, groups: Groups
) -> Iterator[tuple[ComparisonGroup, ComparisonGroup, str]]:
    """Return every group with a difficulty, the group without it, and the difficulty's name."""
    for group in groups.values():
        environment = group.key.environment
        for name, easier in difficulties.items():
            easy = groups.get(group.key._replace(environment=easier(environment)))
            if applies(environment) and easy is not None and easy is not group:
                yield group, easy, name


def _degradations(
    easy: ComparisonGroup, hard: ComparisonGroup, name: str
) -> dict[int, Degradation]:
    """Return what each seed of a method loses, with the better momentum in each environment."""
    method = METHODS[name]
    seeds = easy.seeds(method) & hard.seeds(method)
    before = easy.best_accuracy(method, seeds)
    after = hard.best_accuracy(method, seeds)
    if before is None or after is None:
        return {}
    both = before.by_seed.keys() & after.by_seed.keys()
    return {seed: Degradation(before.by_seed[seed], after.by_seed[seed]) for seed in both}


def _standard_error(group: ComparisonGroup, *methods: Sequence[Degradation]) -> float:
    """Return the standard error of a margin that is made of all these accuracies."""
    means = [fmean(values) for seeds in methods for values in zip(*seeds, strict=True)]
    return standard_error(group.key.task, *means)


def _format(degradations: Sequence[Degradation]) -> str:
    losses = [each.loss for each in degradations]
    if fmean(losses) >= 0:
        change = f"loses {format_points(losses)}"
    else:
        change = f"gains {format_points([-loss for loss in losses])}"
    return f"{change} points ({format_seeds(len(degradations))})"
