"""Table IV: bytes sent in both directions until a target accuracy is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedtern.report import format_number
from fedtern.runs import Evaluation, Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import add_title, method_style, tidy
from fedtern_paper.published import BASE_ACCURACY, LOGISTIC, TARGETS, TRAFFIC
from fedtern_paper.results import Results, Score, format_percent, mean
from fedtern_paper.settings import Settings

METHODS = tuple(TRAFFIC)
_OWN_TARGETS = {LOGISTIC: 0.91, "logistic-digits": 0.90, "mlp-digits": 0.90}
_BELOW_DENSE = 0.013  # the paper's targets are 1.2 to 1.5 points below Table II's accuracies

NOTES = (
    "MB: millions of bytes per participating client (the mean over a round's clients), summed over"
    " rounds until the first evaluation at the target. Only messages that the other side decoded"
    " count. A download contains all updates that the client missed. The last broadcast before the"
    " target is not counted, because clients download it later; with few rounds, as with FedAvg,"
    " down is therefore less than up. Runs are evaluated 50 times, FedAvg at most once per round.",
    "By formula: the same count by the paper's formulas instead of bytes, with the actual number"
    " of rounds that each client missed. For signSGD this gives less than the mean number of"
    " missed rounds, which the paper uses.",
    "The paper counts in the same unit: its 36,696 MB for uncompressed training are 10,600 times"
    " the 3.46 MB of VGG11*. Its numbers of iterations differ from ours: for example, 1,606 MB of"
    " FedAvg n=100 are 464 rounds of 100 iterations, more than twice as many as in its Table II.",
    "n.a.: the target was not reached.",
)


def methods(settings: Settings) -> list[str]:
    """Return the methods in the rows."""
    return settings.choose_methods(METHODS)


def cells(settings: Settings) -> list[Experiment]:
    """Return the experiments: every method in the base configuration, with every seed."""
    return [cell for method in methods(settings) for cell in settings.with_seeds(method)]


def task_target(task: str, dense_accuracy: float | None) -> float:
    """Return the target accuracy of a task.

    It is the paper's, or one of ours, or a little below the accuracy of uncompressed SGD.

    Args:
        task: Name of the task.
        dense_accuracy: Accuracy of uncompressed SGD; None if it is not known.

    Returns:
        The target; infinity if there is none.

    >>> task_target("cnn-kws", None), task_target("my-task", 0.955), task_target("my-task", None)
    (0.9, 0.94, inf)
    """
    known = TARGETS.get(task, _OWN_TARGETS.get(task))
    if known is not None:
        return known
    if dense_accuracy is None:
        return math.inf
    return math.floor(100 * (dense_accuracy - _BELOW_DENSE)) / 100


def target(settings: Settings, results: Results) -> float:
    """Return the target accuracy, from finished uncompressed runs if it depends on them."""
    return task_target(settings.task, Score.of(results, settings.with_seeds("sgd")).value)


def describe_target(settings: Settings, results: Results) -> str:
    """Return the target as the end of a sentence.

    >>> from pathlib import Path
    >>> describe_target(Settings("cnn-kws"), Results(Path("runs")))
    'until 90 %'
    """
    accuracy = target(settings, results)
    return f"until {100 * accuracy:g} %" if math.isfinite(accuracy) else "until the target"


def first_reaching(evaluations: Sequence[Evaluation], accuracy: float) -> Evaluation | None:
    """Return the first evaluation with at least this accuracy."""
    return next((e for e in evaluations if e.accuracy >= accuracy), None)


def evaluations_at_target(method: str, settings: Settings, results: Results) -> list[Evaluation]:
    """Return the first evaluation at the target of each seed that reached it."""
    accuracy = target(settings, results)
    runs = [results.evaluations(cell) for cell in settings.with_seeds(method)]
    return [found for run in runs if (found := first_reaching(run, accuracy))]


def table(settings: Settings, results: Results) -> Table:
    """Return our megabytes beside the paper's."""
    rows = [_row(method, settings, results) for method in methods(settings)]
    accuracy = target(settings, results)
    known = math.isfinite(accuracy)
    words = f"{100 * accuracy:g} %" if known else "unknown without uncompressed SGD"
    source = "the paper's" if settings.task in TARGETS else "ours: the paper has none for this task"
    notes = [f"Target accuracy: {words} ({source}).", *NOTES]
    if (published := BASE_ACCURACY.get(settings.task)) is not None:
        notes.append(
            f"Uncompressed training reaches {100 * published:.2f} % in the paper (Table II)."
        )
    if settings.seeds > 1:
        notes.append(
            "± is the standard deviation over seeds; MB are means over the seeds that reached the"
            " target."
        )
    title = "Table IV: MB until the target is reached" + (" (quick)" if settings.quick else "")
    return Table(title, [values for values, _ in rows], [shown for _, shown in rows], notes)


def _row(
    method: str, settings: Settings, results: Results
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a method's row for programs and for people."""
    score = Score.of(results, settings.with_seeds(method))
    at_target = evaluations_at_target(method, settings, results)
    paper = TRAFFIC.get(method, {}).get(settings.task)
    in_paper = settings.task in TRAFFIC.get(method, {})
    amounts = {
        "up_mb": mean([e.up_bytes_mean / 1e6 for e in at_target]),
        "down_mb": mean([e.down_bytes_mean / 1e6 for e in at_target]),
        "up_mb_formula": mean([e.up_bytes_paper / 1e6 for e in at_target]),
        "down_mb_formula": mean([e.down_bytes_paper / 1e6 for e in at_target]),
    }
    values = {
        "method": method,
        "target": target(settings, results),
        "reached": len(at_target),
        "iterations_to_target": mean([e.iteration for e in at_target]),
        "rounds_to_target": mean([e.round for e in at_target]),
        **amounts,
        "paper_up_mb": paper[0] if paper else None,
        "paper_down_mb": paper[1] if paper else None,
        **score.columns(),
    }
    iterations = values["iterations_to_target"]
    shown = {
        "method": settings.label(method),
        "best": format_percent(score.best),
        "final": format_percent(score.final),
        "iterations": f"{iterations:,.0f}" if at_target else placeholder(score),
        "MB up / down": _format_pair(amounts["up_mb"], amounts["down_mb"], score),
        "by formula": _format_pair(amounts["up_mb_formula"], amounts["down_mb_formula"], score),
        "paper": f"{paper[0]:,g} / {paper[1]:,g}" if paper else ("n.a." if in_paper else "–"),
    }
    if at_target:
        shown["iterations"] += seeds_at_target(at_target, score)
    return values, shown


def seeds_at_target(at_target: Sequence[Evaluation], score: Score) -> str:
    """Return how many seeds reached the target, in brackets; "" if all did."""
    total = len(score.best)
    return f" ({len(at_target)} of {total} seeds)" if len(at_target) < total else ""


def _format_pair(up: float | None, down: float | None, score: Score) -> str:
    if up is None or down is None:
        return placeholder(score)
    return f"{format_number(up)} / {format_number(down)}"


def placeholder(score: Score) -> str:
    """Return what stands for a missing amount: "n.a." if the target was missed, "–" if not run."""
    return "n.a." if score.best else "–"


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """Draw Table IV as bars."""
    shown = methods(settings)
    figure.set_size_inches(2.5 + 1.0 * len(shown), 4.6)
    draw_traffic(figure.add_subplot(), shown, settings, results)
    add_title(figure, "Table IV: traffic until the target", settings.note)


def draw_traffic(axes: Any, shown: Sequence[str], settings: Settings, results: Results) -> None:
    """Draw two bars for each method, megabytes up and down; stars are the paper's numbers."""
    labels = []
    for position, method in enumerate(shown):
        at_target = evaluations_at_target(method, settings, results)
        score = Score.of(results, settings.with_seeds(method))
        seeds = seeds_at_target(at_target, score) if at_target else ""
        labels.append(settings.label(method).replace(" ", "\n") + seeds.replace(" (", "\n("))
        colour = method_style(settings.experiment(method).method)["color"]
        up = mean([e.up_bytes_mean for e in at_target])
        down = mean([e.down_bytes_mean for e in at_target])
        paper_up, paper_down = TRAFFIC.get(method, {}).get(settings.task) or (None, None)
        for x, amount, alpha, text_colour, star in (
            (position - 0.2, up, 1, "white", paper_up),
            (position + 0.2, down, 0.45, "black", paper_down),
        ):
            if amount:
                axes.bar(x, amount / 1e6, 0.38, color=colour, alpha=alpha)
                # At the bottom, where no star can be.
                _write_at_bottom(axes, x, format_number(amount / 1e6), text_colour)
            if star:
                axes.plot(x, star, "*", color="#444444", markeredgecolor="white",
                          markersize=11, zorder=5)  # fmt: skip
        if not at_target:
            _write_at_bottom(axes, position, placeholder(score), "black")
    axes.set_xticks(range(len(shown)), labels, fontsize=9)
    in_paper = any(settings.task in tasks for tasks in TRAFFIC.values())
    axes.set(yscale="log", ylabel=f"MB {describe_target(settings, results)}")
    axes.set_xlabel("dark: up, pale: down" + ("; stars: the paper's" if in_paper else ""))
    axes.set_xlim(-0.6, len(shown) - 0.4)  # even if the first or last method has no bars
    if axes.patches or axes.lines:
        low, high = axes.get_ylim()
        axes.set_ylim(low / 4, high)  # room for the numbers
    else:
        axes.set_yticks([], minor=False)
        axes.set_yticks([], minor=True)
    tidy(axes)


def _write_at_bottom(axes: Any, x: float, text: str, colour: str) -> None:
    axes.text(x, 0.02, text, ha="center", va="bottom", rotation=90, fontsize=8, color=colour,
              transform=axes.get_xaxis_transform())  # fmt: skip
