"""What the paper claims, held against every finished run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedtern.advice.hardships import LOW_PARTICIPATION as LOW
from fedtern.advice.hardships import SMALL_BATCH
from fedtern.engines.local import Round
from fedtern.experiments import Experiment
from fedtern.reproduce import comparisons as ask
from fedtern.reproduce.artefact import Table
from fedtern.reproduce.comparisons import Comparison, Scenes
from fedtern.reproduce.results import Results
from fedtern.reproduce.scenes import FEDAVG, SIGNSGD, gather, often, seldom
from fedtern.reproduce.verdicts import COMPRESSED, STRONG
from fedtern.training.tasks import TASKS


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and how finished runs are asked about it."""

    name: str
    statement: str
    ask: Callable[[Scenes], Iterator[Comparison]]

    def comparisons(self, scenes: Scenes) -> list[Comparison]:
        """All there are; of shorter and longer runs in one place, only the longest count."""
        kept: dict[tuple[Any, ...], Comparison] = {}
        for found in sorted(self.ask(scenes), key=lambda c: c.scene.key.iterations):
            key = found.scene.key
            kept[(key.task, key.environment, found.what)] = found
        return sorted(kept.values(), key=_order)


def _order(found: Comparison) -> tuple[Any, ...]:
    """Tasks together, then like comparisons, then environments from gentle to hard."""
    task, place = found.scene.key.task, found.scene.key.environment
    hardness = (place.clients, -place.classes_per_client, -place.batch_size, -place.gamma)
    return task, found.what, hardness, found.scene.words


def verdict(found: Sequence[Comparison]) -> str:
    """How a claim fared, in the words of a reader."""
    held = sum(c.holds for c in found)
    if not found:
        return "not yet run"
    if held == len(found):
        return "held"
    return "held in part" if held else "did not hold here"


_HARD = {
    "Lesson 1": ("non-iid data", ask.non_iid),
    "Lesson 2": ("small batches", ask.small_batches),
    "Lesson 3": ("low participation", ask.low_participation),
}

CLAIMS = (
    *(
        Claim(name, f"{where}: STC above FedAvg", partial(ask.above, FEDAVG, fits))
        for name, (where, fits) in _HARD.items()
    ),
    *(
        Claim("Section VI", f"{where}: STC above signSGD", partial(ask.above, SIGNSGD, fits))
        for where, fits in _HARD.values()
    ),
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
    Claim("R1", "STC compresses up and down", ask.compressed),
    Claim(
        "R2",
        "non-iid data, small batches, unbalanced data: STC loses less than FedAvg",
        partial(ask.falls_less, ask.HARDSHIPS),
    ),
    Claim(
        "R3",
        "partial participation: STC loses less than FedAvg",
        partial(ask.falls_less, ask.PARTIAL),
    ),
)
"""The paper's orderings, its six lessons and the three requirements it sets itself."""

NOTES = (
    "Every finished run at its task's own learning rate counts, whoever asked for it; where one"
    " place was run for several numbers of iterations, the longest runs. Accuracies are the highest"
    " of each run, on average over the seeds that both sides have, ± their standard deviation; of"
    " momentum on and off, the better one of each method, as in the paper.",
    "Close: the difference is smaller than its standard deviation over seeds, or than the standard"
    f" error of its test: {100 * ask.noise_of('logistic-mnist'):g} points on 10,000 examples,"
    f" {100 * ask.noise_of('cnn-kws'):.1g} on the 2,567 of cnn-kws; other seeds may well decide"
    " otherwise.",
    "Lessons 4 and 5: the cheapest of a kind, among those that reached the target with every seed:"
    " STC without delay at any p, FedAvg with any n, each with and without momentum, as far as they"
    " were run.",
    f"Non-iid: fewer than 10 classes for each client. Small batches: below {SMALL_BATCH}. Low"
    f" participation: below {100 * LOW:g} %; for Lesson 6, {100 * LOW:g} % as well.",
    f"R1: up by more than ×{STRONG:g} and down by more than ×{COMPRESSED:g}. R2 and R3: against"
    " the same environment without the hardship.",
    "Held: in all comparisons. Held in part: in some. Did not hold here: in none.",
)


def verdicts(results: Results, cells: Sequence[Experiment]) -> list[str]:
    """A line for each claim that some cells have anything to say about."""
    recorded = {c.digest: (c, rounds) for c in cells if (rounds := results.rounds(c))}
    scenes = gather(recorded.values())
    asked = [(claim, claim.comparisons(scenes)) for claim in CLAIMS]
    return [
        f"{claim.name} ({claim.statement}): {verdict(found)}, in"
        f" {sum(c.holds for c in found)} of {len(found)} comparisons{_close(found)}."
        for claim, found in asked
        if found
    ]


def _close(found: Sequence[Comparison]) -> str:
    """How many verdicts are within the noise, if there are any."""
    number = sum(c.close for c in found)
    return f", {number} of them close" if number else ""


def check(recorded: Iterable[tuple[Experiment, list[Round]]]) -> tuple[Table, Table]:
    """A row for each claim, and a row for each comparison that went into them."""
    scenes = gather(recorded)
    asked = [(claim, claim.comparisons(scenes)) for claim in CLAIMS]
    values: list[dict[str, Any]] = [
        {
            "claim": claim.name,
            "statement": claim.statement,
            "verdict": verdict(found),
            "holds": sum(c.holds for c in found),
            "comparisons": len(found),
            "close": sum(c.close for c in found),
        }
        for claim, found in asked
    ]
    shown = [
        {
            "claim": row["claim"],
            "statement": row["statement"],
            "verdict": row["verdict"],
            "holds in": f"{row['holds']} of {row['comparisons']}",
            "close": str(row["close"] or ""),
        }
        for row in values
    ]
    summary = Table("The paper's claims", values, shown, NOTES)
    rows = [(claim, c) for claim, found in asked for c in found]
    details = [_values(claim, c) for claim, c in rows]
    return summary, Table("Each comparison", details, [_shown(claim, c) for claim, c in rows])


def _values(claim: Claim, found: Comparison) -> dict[str, Any]:
    key = found.scene.key
    return {
        "claim": claim.name,
        "statement": claim.statement,
        "task": key.task,
        "environment": found.scene.words,
        "iterations": key.iterations,
        "what": found.what,
        "ours": found.ours,
        "other": found.other,
        "margin": found.margin if math.isfinite(found.margin) else None,
        "spread": found.spread,
        "holds": found.holds,
    }


def _shown(claim: Claim, found: Comparison) -> dict[str, str]:
    key = found.scene.key
    return {
        "claim": claim.name,
        "task": key.task,
        "environment": found.scene.words,
        "iterations": _of_all(key.task, key.iterations),
        "what": found.what,
        "first": found.ours,
        "second": found.other,
        "verdict": ("holds" if found.holds else "does not hold") + ", close" * found.close,
    }


def _of_all(task: str, iterations: int) -> str:
    """How long runs were, and for how long the task would have them if that is longer."""
    own = TASKS[task].iterations if task in TASKS else 0
    return f"{iterations:,}" + (f" of {own:,}" if iterations < own else "")
