"""What a hardship costs: a method with it, against the same method without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from fedtern.data.environment import Environment
from fedtern_paper.comparison_groups import METHODS, Scene, in_seeds
from fedtern_paper.comparisons import Scenes, Where, anywhere, non_iid, small_batches
from fedtern_paper.scores import points, spread
from fedtern_paper.significance import Comparison, judged, noise_of

Gentler = Callable[[Environment], Environment]

SLIGHT = 0.02
"""What is no significant effect on an accuracy; the paper does not say what it calls so."""

UNBALANCED: dict[str, Gentler] = {"unbalanced data": lambda e: replace(e, gamma=1.0)}
HARDSHIPS: dict[str, Gentler] = {
    "non-iid data": lambda e: replace(e, classes_per_client=10) if non_iid(e) else e,
    "small batches": lambda e: replace(e, batch_size=20) if small_batches(e) else e,
    **UNBALANCED,
}
PARTIAL: dict[str, Gentler] = {
    "partial participation": lambda e: replace(e, clients=e.cohort_size, participation=1.0)
}


class Fall(NamedTuple):
    """What a seed reaches without a hardship and with it."""

    easy: float
    hard: float

    @property
    def depth(self) -> float:
        """What is lost."""
        return self.easy - self.hard


def falls_less(
    first: str, second: str, gentler: Mapping[str, Gentler], fits: Where, scenes: Scenes
) -> Iterator[Comparison]:
    """What a method loses to a hardship, against what another loses to it."""
    for hard, easy, what in _pairs(gentler, fits, scenes):
        ours, other = (_falls(easy, hard, name) for name in (first, second))
        if seeds := sorted(ours.keys() & other.keys()):
            margins = [other[seed].depth - ours[seed].depth for seed in seeds]
            both = [[falls[seed] for seed in seeds] for falls in (ours, other)]
            title, (a, b) = f"{first} loses less to {what} than {second}", map(_words, both)
            yield judged(hard, title, a, b, margins, _noise(hard, *both))


def hardly_falls(gentler: Mapping[str, Gentler], scenes: Scenes) -> Iterator[Comparison]:
    """What each method loses to a hardship, or gains by it, against next to nothing."""
    for hard, easy, what in _pairs(gentler, anywhere, scenes):
        for name in METHODS:
            if falls := list(_falls(easy, hard, name).values()):
                depths = [found.depth for found in falls]
                margin = SLIGHT - abs(fmean(depths))
                title, most = f"{what} hardly matters to {name}", f"{100 * SLIGHT:g} points"
                shown, noise = _words(falls), _noise(hard, falls)
                yield Comparison(
                    hard, title, shown, most, margin, margin > 0, spread(depths), noise
                )


def _pairs(
    gentler: Mapping[str, Gentler], fits: Where, scenes: Scenes
) -> Iterator[tuple[Scene, Scene, str]]:
    """Every scene with a hardship, the same without it, and what it is called."""
    for scene in scenes.values():
        place = scene.key.environment
        for what, ease in gentler.items():
            easy = scenes.get(scene.key._replace(environment=ease(place)))
            if fits(place) and easy is not None and easy is not scene:
                yield scene, easy, what


def _falls(easy: Scene, hard: Scene, name: str) -> dict[int, Fall]:
    """How a method fares in both, each time with the momentum that suits it better."""
    shared = easy.seeds(METHODS[name]) & hard.seeds(METHODS[name])
    before, after = (scene.better(METHODS[name], shared) for scene in (easy, hard))
    if before is None or after is None:
        return {}
    both = before.best.keys() & after.best.keys()
    return {seed: Fall(before.best[seed], after.best[seed]) for seed in both}


def _noise(scene: Scene, *groups: Sequence[Fall]) -> float:
    """That of the accuracies which a margin is made of."""
    means = [fmean(values) for group in groups for values in zip(*group, strict=True)]
    return noise_of(scene.key.task, *means)


def _words(falls: Sequence[Fall]) -> str:
    depths = [found.depth for found in falls]
    verb, amounts = ("loses", depths) if fmean(depths) >= 0 else ("gains", [-d for d in depths])
    return f"{verb} {points(amounts)} points ({in_seeds(len(falls))})"
