"""Table IV: what has to be sent, up and down, until a target accuracy is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedtern.report.formatting import format_number
from fedtern.runs import Evaluation, Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.paper import BASE_ACCURACY, TARGETS, TRAFFIC
from fedtern_paper.results import Results
from fedtern_paper.scores import Score, mean, percent
from fedtern_paper.settings import Settings

METHODS = tuple(TRAFFIC)
_OWN_TARGETS = {"logistic-mnist": 0.91, "logistic-digits": 0.90, "mlp-digits": 0.90}
_BELOW = 0.013  # the paper's targets are 1.2 to 1.5 points below Table II's accuracies

NOTES = (
    "MB (millions of bytes) are those of one of the clients that take part in a round, summed over"
    " rounds until the first evaluation that reaches the target: the mean over each round's"
    " clients, of messages that the other side decoded. A download counts all that its client had"
    " missed when it takes part; the broadcast that reaches the target, which clients download"
    " later, is not in it. Where there are few rounds, as with FedAvg, down is thus below up."
    " Evaluations are a fiftieth of a run apart.",
    "By formula: the same count by the paper's formulas in place of bytes, with the rounds that"
    " each client was in fact away. For signSGD that comes to less than with their mean, which the"
    " paper takes.",
    "The paper's unit is the same, as its uncompressed row shows: 36,696 MB are 10,600 times the"
    " 3.46 MB of VGG11*. Its iterations are not ours, though: 1,606 MB of FedAvg n=100, for one,"
    " are 464 rounds of 100 iterations each, more than twice what Table II has.",
    "n.a.: the target was not reached.",
)


def methods(settings: Settings) -> list[str]:
    """The rows."""
    return settings.choose_methods(METHODS)


def cells(settings: Settings) -> list[Experiment]:
    """Every method in the paper's base configuration, with every seed."""
    return [cell for method in methods(settings) for cell in settings.with_seeds(method)]


def goal(task: str, dense: float | None) -> float:
    """The accuracy to reach: the paper's, one of ours, or a little less than uncompressed SGD's.

    Where there is none of them, nothing can be reached.

    >>> goal("cnn-kws", None), goal("my-task", 0.955), goal("my-task", None)
    (0.9, 0.94, inf)
    """
    known = {**_OWN_TARGETS, **TARGETS}.get(task)
    if known is not None:
        return known
    return math.inf if dense is None else math.floor(100 * (dense - _BELOW)) / 100


def target(settings: Settings, results: Results) -> float:
    """The accuracy to reach, by uncompressed runs of the same settings where it takes them."""
    return goal(settings.task, Score.of(results, settings.with_seeds("sgd")).value)


def until(settings: Settings, results: Results) -> str:
    """How long bytes are counted, in words.

    >>> from pathlib import Path
    >>> until(Settings("cnn-kws"), Results(Path("runs")))
    'until 90 %'
    """
    least = target(settings, results)
    return f"until {100 * least:g} %" if math.isfinite(least) else "until the target"


def reached(rounds: list[Evaluation], accuracy: float) -> Evaluation | None:
    """The first evaluation that is as good."""
    return next((r for r in rounds if r.accuracy >= accuracy), None)


def traffic(method: str, settings: Settings, results: Results) -> list[Evaluation]:
    """Where each seed that got there reached the target."""
    least = target(settings, results)
    runs = (results.rounds(cell) for cell in settings.with_seeds(method))
    return [found for rounds in runs if (found := reached(rounds, least))]


def table(settings: Settings, results: Results) -> Table:
    """Ours and the paper's megabytes, side by side."""
    rows = [_row(method, settings, results) for method in methods(settings)]
    least = target(settings, results)
    words = f"{100 * least:g} %" if math.isfinite(least) else "unknown without uncompressed SGD"
    source = "the paper's" if settings.task in TARGETS else "ours: the paper has none for this task"
    notes = [f"Target accuracy: {words} ({source}).", *NOTES]
    if (known := BASE_ACCURACY.get(settings.task)) is not None:
        notes.append(f"Uncompressed training reaches {100 * known:.2f} % in the paper (Table II).")
    if settings.seeds > 1:
        notes.append(
            "± is the standard deviation over seeds; MB are means of those that got there."
        )
    title = "Table IV: MB until the target is reached" + (" (quick)" if settings.quick else "")
    return Table(title, [v for v, _ in rows], [s for _, s in rows], notes)


def _row(
    method: str, settings: Settings, results: Results
) -> tuple[dict[str, Any], dict[str, str]]:
    score = Score.of(results, settings.with_seeds(method))
    there = traffic(method, settings, results)
    paper = TRAFFIC.get(method, {}).get(settings.task)
    known = settings.task in TRAFFIC.get(method, {})
    amounts = {
        "up_mb": mean([r.up_bytes_mean / 1e6 for r in there]),
        "down_mb": mean([r.down_bytes_mean / 1e6 for r in there]),
        "up_mb_formula": mean([r.up_bytes_paper / 1e6 for r in there]),
        "down_mb_formula": mean([r.down_bytes_paper / 1e6 for r in there]),
    }
    values = {
        "method": method,
        "target": target(settings, results),
        "reached": len(there),
        "iterations_to_target": mean([r.iteration for r in there]),
        "rounds_to_target": mean([r.round for r in there]),
        **amounts,
        "paper_up_mb": paper[0] if paper else None,
        "paper_down_mb": paper[1] if paper else None,
        **score.columns(),
    }
    iterations = values["iterations_to_target"]
    shown = {
        "method": settings.label(method),
        "best": percent(score.best),
        "final": percent(score.final),
        "iterations": f"{iterations:,.0f}" if there else absent(score),
        "MB up / down": _pair(amounts["up_mb"], amounts["down_mb"], score),
        "by formula": _pair(amounts["up_mb_formula"], amounts["down_mb_formula"], score),
        "paper": f"{paper[0]:,g} / {paper[1]:,g}" if paper else ("n.a." if known else "–"),
    }
    if there:
        shown["iterations"] += some_of(there, score)
    return values, shown


def some_of(there: Sequence[Evaluation], score: Score) -> str:
    """How many seeds got there, if not all did."""
    return f" ({len(there)} of {len(score.best)} seeds)" if len(there) < len(score.best) else ""


def _pair(up: float | None, down: float | None, score: Score) -> str:
    if up is None or down is None:
        return absent(score)
    return f"{format_number(up)} / {format_number(down)}"


def absent(score: Score) -> str:
    """Not run, or run and not reached."""
    return "n.a." if score.best else "–"
