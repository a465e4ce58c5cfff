"""What the paper claims, and how finished runs are asked about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedtern_paper import comparisons as ask
from fedtern_paper import degradation
from fedtern_paper.comparison_groups import often, seldom
from fedtern_paper.comparisons import Scenes
from fedtern_paper.significance import Comparison, noise_of
from fedtern_paper.thresholds import LOW_PARTICIPATION as LOW
from fedtern_paper.thresholds import SMALL_BATCH
from fedtern_paper.verdicts import COMPRESSED, STRONG


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and how finished runs are asked about it."""

    name: str
    statement: str
    ask: Callable[[Scenes], Iterator[Comparison]]

    def comparisons(self, scenes: Scenes) -> list[Comparison]:
        """All there are; of several lengths of runs in one place, the task's own or the longest."""
        kept: dict[tuple[Any, ...], Comparison] = {}
        for found in sorted(self.ask(scenes), key=_length):
            kept[(*found.scene.key._replace(iterations=0), found.what)] = found
        return sorted(kept.values(), key=_order)


def _length(found: Comparison) -> tuple[bool, int]:
    key = found.scene.key
    return key.iterations == key.own_iterations, key.iterations


def _order(found: Comparison) -> tuple[Any, ...]:
    """Tasks together, then like comparisons, then environments from gentle to hard."""
    task, place = found.scene.key.task, found.scene.key.environment
    hardness = (place.clients, -place.classes_per_client, -place.batch_size, -place.gamma)
    return task, found.what, hardness, found.scene.words


_NON_IID, _SMALL, _LOW = (
    ("non-iid data", ask.non_iid),
    ("small batches", ask.small_batches),
    ("low participation", ask.low_participation),
)


def _above(name: str, rival: str, where: str, fits: ask.Where) -> Claim:
    return Claim(name, f"{where}: STC above {rival}", partial(ask.above, rival, fits))


def _signs_fall_least(scenes: Scenes) -> Iterator[Comparison]:
    for other in ("STC", "FedAvg"):
        yield from degradation.falls_less("signSGD", other, degradation.PARTIAL, ask.iid, scenes)


CLAIMS = (
    _above("Lesson 1", "FedAvg", *_NON_IID),
    _above("Lesson 2", "FedAvg", *_SMALL),
    _above("Lesson 3", "FedAvg", *_LOW),
    _above("Section VI", "FedAvg", "every environment", ask.anywhere),
    _above("Section VI", "signSGD", *_NON_IID),
    _above("Besides", "signSGD", *_SMALL),
    _above("Besides", "signSGD", *_LOW),
    Claim(
        "Lesson 4",
        "iid data: STC sends the least until a target accuracy",
        partial(ask.cheaper, often, seldom, ask.BYTES),
    ),
    Claim(
        "Lesson 5",
        "iid data: FedAvg takes the fewest rounds to a target (latency)",
        partial(ask.cheaper, seldom, often, ask.ROUNDS),
    ),
    Claim(
        "Lesson 6",
        "small batches, or non-iid data at low participation: no momentum is better",
        ask.without_momentum,
    ),
    Claim("Section VI", "momentum is always better for signSGD", ask.signs_with_momentum),
    Claim(
        "Section VI",
        "iid data: signSGD loses less to partial participation than STC and FedAvg",
        _signs_fall_least,
    ),
    Claim(
        "Section VI",
        "unbalanced data has no significant effect on any method",
        partial(degradation.hardly_falls, degradation.UNBALANCED),
    ),
    Claim("R1", "STC compresses up and down", ask.compressed),
    Claim(
        "R2",
        "non-iid data, small batches, unbalanced data: STC loses less than FedAvg",
        partial(degradation.falls_less, "STC", "FedAvg", degradation.HARDSHIPS, ask.anywhere),
    ),
    Claim(
        "R3",
        "partial participation: STC loses less than FedAvg",
        partial(degradation.falls_less, "STC", "FedAvg", degradation.PARTIAL, ask.anywhere),
    ),
)
"""The paper's orderings, its six lessons and the three requirements it sets itself."""

NOTES = (
    "Every finished run at its task's own learning rate counts, whoever asked for it; where one"
    " place was run for several numbers of iterations, the task's own or else the longest runs."
    " Verdicts go by runs of the task's own length. Shorter ones are counted apart: FedAvg with"
    " n = 400 has few rounds in them, on iid data as well. A round is never split: where the"
    " iterations are no multiple of n, FedAvg is trained to the next one.",
    "Accuracies are the highest of each run, on average over the seeds that both sides have, ±"
    " their standard deviation. That favours who is tested more often: 50 times, but FedAvg not"
    " more than once a round. Of momentum on and off the better one counts for each method, as in"
    " the paper, where both were run.",
    "Close: the difference is smaller than its standard deviation over seeds, or than the standard"
    f" error of its tests: {100 * noise_of('logistic-mnist', 0.92, 0.92):.1g} points between two"
    f" accuracies of 92 % on 10,000 examples, {100 * noise_of('cnn-kws', 0.9, 0.9):.1g} between two"
    " of 90 % on the 2,567 of cnn-kws; other seeds may well decide otherwise. What has one seed"
    " only may be off by more.",
    "Lessons 4 and 5: the cheapest of a kind, among those that reached the target with every seed:"
    " STC without delay at any p, FedAvg with any n, each with and without momentum, as far as they"
    " were run.",
    f"Non-iid: fewer than 10 classes for each client. Small batches: below {SMALL_BATCH}. Low"
    f" participation: below {100 * LOW:g} %; for Lesson 6, {100 * LOW:g} % as well. No significant"
    f" effect: less than {100 * degradation.SLIGHT:g} points.",
    f"R1: up by more than ×{STRONG:g} and down by more than ×{COMPRESSED:g}. R2 and R3 ask for"
    " robustness; here, whether a hardship costs STC less than FedAvg, each against itself without"
    " the hardship.",
    "Held: in all comparisons. Held in part: in some. Did not hold here: in none. Besides: what a"
    " reader may ask, though the paper does not claim it; where few clients take part, it does so"
    " for non-iid data only.",
)
