"""The questions that finished runs are asked: who is above whom, and where."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from fedtern.advice import hardships
from fedtern.engines.local import Round
from fedtern.environment import Environment
from fedtern.report.words import digits
from fedtern.reproduce.scenes import (
    FEDAVG,
    SIGNSGD,
    STC,
    Key,
    Kind,
    Scene,
    Standing,
    in_seeds,
    usual,
)
from fedtern.reproduce.scores import points, spread
from fedtern.reproduce.verdicts import COMPRESSED, STRONG

Scenes = Mapping[Key, Scene]
Gentler = Callable[[Environment], Environment]


TEST_EXAMPLES = {"cnn-kws": 2_567, "logistic-digits": 297, "mlp-digits": 297}
"""How many there are where it is not 10,000."""


def noise_of(task: str) -> float:
    """The standard error of an accuracy of nine in ten on a task's test examples.

    >>> noise_of("logistic-mnist"), round(noise_of("cnn-kws"), 4)
    (0.003, 0.0059)
    """
    return 0.3 / math.sqrt(TEST_EXAMPLES.get(task, 10_000))


class Comparison(NamedTuple):
    """One ordering in one scene; ``ours`` should win over ``other`` if the paper is right.

    ``spread`` is the standard deviation of the margin over seeds, where there are several;
    ``noise`` what tells nothing even if all seeds agree.
    """

    scene: Scene
    what: str
    ours: str
    other: str
    margin: float
    holds: bool
    spread: float | None = None
    noise: float = 0.0

    @property
    def close(self) -> bool:
        """Whether other seeds, or other test examples, might well have decided otherwise."""
        return abs(self.margin) < max(self.spread or 0.0, self.noise)


def non_iid(place: Environment) -> bool:
    """Whether clients hold fewer than all classes, or mixtures of their own."""
    held, all_of_them = place.classes_per_client, Environment.classes_per_client
    skewed = place.split == "classes" and hardships.non_iid(held, all_of_them)
    return skewed or place.split in ("dirichlet", "natural")


def small_batches(place: Environment) -> bool:
    """Whether batches are smaller than the paper's base has them."""
    return hardships.small_batches(place.batch_size)


def low_participation(place: Environment) -> bool:
    """Whether fewer than a tenth of the clients take part in a round."""
    return hardships.low_participation(place.participation)


def _compared(
    scene: Scene, what: str, ours: Standing | None, other: Standing | None
) -> Iterator[Comparison]:
    """Which is higher, by the seeds that both were run with."""
    if ours is None or other is None:
        return
    if seeds := sorted(ours.best.keys() & other.best.keys()):
        first, second = (standing.only(seeds).words for standing in (ours, other))
        margins = [ours.best[seed] - other.best[seed] for seed in seeds]
        yield _judged(scene, what, first, second, margins)


def _judged(
    scene: Scene,
    what: str,
    first: str,
    second: str,
    margins: list[float],
    noise: float | None = None,
) -> Comparison:
    """Who wins by how much, on average over seeds; accuracies unless the noise is another."""
    margin = fmean(margins)
    if noise is None:
        noise = noise_of(scene.key.task)
    return Comparison(scene, what, first, second, margin, margin > 0, spread(margins), noise)


def above(
    rival: Mapping[str, Any], fits: Callable[[Environment], bool], scenes: Scenes
) -> Iterator[Comparison]:
    """STC against a rival, each with the momentum that suits it better."""
    what = f"STC above {'FedAvg' if rival is FEDAVG else 'signSGD'}"
    for scene in scenes.values():
        if fits(scene.key.environment):
            yield from _compared(scene, what, scene.better(STC), scene.better(rival))


def without_momentum(scenes: Scenes) -> Iterator[Comparison]:
    """Momentum off against on, where the paper would avoid it."""
    for scene in scenes.values():
        place = scene.key.environment
        skewed = non_iid(place)
        if hardships.momentum_harms(place.batch_size, place.participation, skewed=skewed):
            for method, name in ((STC, "STC"), (FEDAVG, "FedAvg")):
                both = (scene.standing(method, m) for m in (0.0, 0.9))
                yield from _compared(scene, f"{name} without momentum above with it", *both)


def signs_with_momentum(scenes: Scenes) -> Iterator[Comparison]:
    """Momentum on against off for signSGD, everywhere."""
    for scene in scenes.values():
        both = (scene.standing(SIGNSGD, m) for m in (0.9, 0.0))
        yield from _compared(scene, "signSGD with momentum above without", *both)


def cheaper(
    ours: Kind,
    rival: Kind,
    amounts: Mapping[str, Callable[[Round], float]],
    scenes: Scenes,
) -> Iterator[Comparison]:
    """Who takes less of something to the target, on iid data in the paper's base environment.

    Rivals are the kind that is named and what the paper compares both with.
    """

    def others(method: Mapping[str, Any]) -> bool:
        return rival(method) or usual(method)

    for scene in scenes.values():
        if scene.key.environment != Environment() or not (scene.ran(ours) and scene.ran(others)):
            continue
        for what, amount in amounts.items():
            title = f"{what} to {100 * scene.target:g} %"
            a, b = scene.cheapest(ours, amount), scene.cheapest(others, amount)
            if a is None or b is None:
                if a or b:  # one got there
                    first, second = (arrival.words if arrival else "n.a." for arrival in (a, b))
                    yield Comparison(scene, title, first, second, float("nan"), a is not None)
            elif seeds := sorted(a.amounts.keys() & b.amounts.keys()):
                a, b = a.only(seeds), b.only(seeds)
                margins = [b.amounts[seed] - a.amounts[seed] for seed in seeds]
                yield _judged(scene, title, a.words, b.words, margins, noise=0.0)


def compressed(scenes: Scenes) -> Iterator[Comparison]:
    """What STC sends and receives, against uncompressed training."""
    for scene in scenes.values():
        ends = [rounds[-1] for cell, rounds in scene.runs if cell.method == STC]
        if ends:
            dense = sum(r.dense_bytes for r in ends)
            up = dense / max(sum(r.up_bytes_mean for r in ends), 1)
            down = dense / max(sum(r.down_bytes_mean for r in ends), 1)
            count = f"{len(ends)} run{'s' * (len(ends) > 1)}"
            first, second = f"up ×{digits(up)} ({count})", f"down ×{digits(down)}"
            holds = up > STRONG and down > COMPRESSED
            yield Comparison(scene, "STC compresses both ways", first, second, float("nan"), holds)


def falls_less(gentler: Mapping[str, Gentler], scenes: Scenes) -> Iterator[Comparison]:
    """What STC loses to a hardship, against what FedAvg loses to it."""
    for scene in scenes.values():
        for what, ease in gentler.items():
            easy = scenes.get(scene.key._replace(environment=ease(scene.key.environment)))
            if easy is None or easy is scene:
                continue
            ours, other = (_falls(easy.better(m), scene.better(m)) for m in (STC, FEDAVG))
            if seeds := sorted(ours.keys() & other.keys()):
                first, second = (_fall([falls[seed] for seed in seeds]) for falls in (ours, other))
                margins = [other[seed] - ours[seed] for seed in seeds]
                title = f"STC loses less to {what} than FedAvg"
                yield _judged(scene, title, first, second, margins)


def _falls(easy: Standing | None, hard: Standing | None) -> dict[int, float]:
    """What each seed loses that was run in both places."""
    if easy is None or hard is None:
        return {}
    both = easy.best.keys() & hard.best.keys()
    return {seed: easy.best[seed] - hard.best[seed] for seed in both}


def _fall(falls: list[float]) -> str:
    fall = fmean(falls)
    verb, fewer = ("loses", falls) if fall >= 0 else ("gains", [-f for f in falls])
    return f"{verb} {points(fewer)} points ({in_seeds(len(falls))})"


HARDSHIPS: dict[str, Gentler] = {
    "non-iid data": lambda e: replace(e, classes_per_client=10) if non_iid(e) else e,
    "small batches": lambda e: replace(e, batch_size=20) if small_batches(e) else e,
    "unbalanced data": lambda e: replace(e, gamma=1.0),
}
PARTIAL: dict[str, Gentler] = {
    "partial participation": lambda e: replace(e, clients=e.cohort_size, participation=1.0)
}
BYTES: dict[str, Callable[[Round], float]] = {
    "MB up": lambda r: r.up_bytes_mean / 1e6,
    "MB down": lambda r: r.down_bytes_mean / 1e6,
}
ROUNDS: dict[str, Callable[[Round], float]] = {"rounds": lambda r: r.round}
