"""The questions that finished runs are asked: who is above whom, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedtern.data.environment import Environment
from fedtern.report.formatting import format_number
from fedtern.runs import Evaluation
from fedtern_paper import thresholds
from fedtern_paper.comparison_groups import METHODS, Key, Kind, Scene, Standing, usual
from fedtern_paper.significance import Comparison, judged, noise_of
from fedtern_paper.verdicts import COMPRESSED, STRONG

Scenes = Mapping[Key, Scene]
Where = Callable[[Environment], bool]


def anywhere(_place: Environment) -> bool:
    """Every environment."""
    return True


def non_iid(place: Environment) -> bool:
    """Whether clients hold fewer than all classes, or mixtures of their own."""
    held, all_of_them = place.classes_per_client, Environment.classes_per_client
    skewed = place.split == "classes" and thresholds.non_iid(held, all_of_them)
    return skewed or place.split in ("dirichlet", "natural")


def iid(place: Environment) -> bool:
    """Whether clients hold samples of all data."""
    return not non_iid(place)


def small_batches(place: Environment) -> bool:
    """Whether batches are smaller than the paper's base has them."""
    return thresholds.small_batches(place.batch_size)


def low_participation(place: Environment) -> bool:
    """Whether fewer than a tenth of the clients take part in a round."""
    return thresholds.low_participation(place.participation)


def _compared(
    scene: Scene, what: str, ours: Standing | None, other: Standing | None
) -> Iterator[Comparison]:
    """Which is higher, by the seeds that both were run with."""
    if ours is None or other is None:
        return
    if seeds := sorted(ours.best.keys() & other.best.keys()):
        first, second = ours.only(seeds), other.only(seeds)
        margins = [ours.best[seed] - other.best[seed] for seed in seeds]
        noise = noise_of(scene.key.task, first.accuracy, second.accuracy)
        yield judged(scene, what, first.words, second.words, margins, noise)


def above(rival: str, fits: Where, scenes: Scenes) -> Iterator[Comparison]:
    """STC against a rival, each with the momentum that suits it better."""
    for scene in scenes.values():
        if fits(scene.key.environment):
            pair = METHODS["STC"], METHODS[rival]
            shared = set.intersection(*map(scene.seeds, pair))
            both = (scene.better(method, shared) for method in pair)
            yield from _compared(scene, f"STC above {rival}", *both)


def without_momentum(scenes: Scenes) -> Iterator[Comparison]:
    """Momentum off against on, where the paper would avoid it."""
    for scene in scenes.values():
        place = scene.key.environment
        skewed = non_iid(place)
        if thresholds.momentum_harms(place.batch_size, place.participation, non_iid=skewed):
            for name in ("STC", "FedAvg"):
                both = (scene.standing(METHODS[name], m) for m in (0.0, 0.9))
                yield from _compared(scene, f"{name} without momentum above with it", *both)


def signs_with_momentum(scenes: Scenes) -> Iterator[Comparison]:
    """Momentum on against off for signSGD, everywhere."""
    for scene in scenes.values():
        both = (scene.standing(METHODS["signSGD"], m) for m in (0.9, 0.0))
        yield from _compared(scene, "signSGD with momentum above without", *both)


def cheaper(
    ours: Kind,
    rival: Kind,
    amounts: Mapping[str, Callable[[Evaluation], float]],
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
                yield judged(scene, title, a.words, b.words, margins)


def compressed(scenes: Scenes) -> Iterator[Comparison]:
    """What STC sends and receives, against uncompressed training."""
    for scene in scenes.values():
        ends = [rounds[-1] for cell, rounds in scene.runs if cell.method == METHODS["STC"]]
        if ends:
            dense = sum(r.dense_bytes for r in ends)
            up = dense / max(sum(r.up_bytes_mean for r in ends), 1)
            down = dense / max(sum(r.down_bytes_mean for r in ends), 1)
            count = f"{len(ends)} run{'s' * (len(ends) > 1)}"
            first, second = f"up ×{format_number(up)} ({count})", f"down ×{format_number(down)}"
            holds = up > STRONG and down > COMPRESSED
            yield Comparison(scene, "STC compresses both ways", first, second, float("nan"), holds)


BYTES: dict[str, Callable[[Evaluation], float]] = {
    "MB up": lambda r: r.up_bytes_mean / 1e6,
    "MB down": lambda r: r.down_bytes_mean / 1e6,
}
ROUNDS: dict[str, Callable[[Evaluation], float]] = {"rounds": lambda r: r.round}
