"""Figure 11, the summary: STC and FedAvg in three hard environments, and their traffic."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fedtern.report import format_number
from fedtern.runs import Experiment
from fedtern_paper import table4
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import add_title, method_style, tidy
from fedtern_paper.results import Results, Score, format_percent, mean
from fedtern_paper.settings import IID, Settings
from fedtern_paper.sweeps import BATCH, CLASSES, MOMENTUM, PARTICIPATION, Sweep

METHODS = ("stc", "fedavg:local_steps=400")
TRAFFIC_METHODS = tuple(m for m in table4.METHODS if m.partition(":")[0] in ("fedavg", "stc"))

NOTES = (
    "The paper does not say which three environments it shows. Here they are those of its lessons"
    " 1 to 3: non-iid data (2 classes per client, 10 of 100 clients), small batches (batch size 1,"
    " 10 of 10 clients), low participation (5 of 400 clients).",
    "Accuracy: the best, with the better of momentum 0 and 0.9, as in the paper.",
    "MB: per participating client, summed over rounds until the target of Table IV.",
)


class HardEnvironment(NamedTuple):
    """An environment, as a point of one of the sweeps."""

    name: str
    sweep: Sweep
    place: str
    value: float

    def cells(self, method: str, momentum: float, settings: Settings) -> list[Experiment]:
        """Return the experiments of a method, one per seed."""
        environment = self.sweep.vary(self.sweep.places[self.place], self.value)
        return settings.with_seeds(method, environment, momentum)

    def score(self, method: str, settings: Settings, results: Results) -> Score:
        """Return the accuracies of a method with the better momentum."""
        scores = [Score.of(results, self.cells(method, m, settings)) for m in MOMENTUM]
        return max(scores, key=lambda score: -1.0 if score.value is None else score.value)


HARD_ENVIRONMENTS = (
    HardEnvironment("non-iid data", CLASSES, "10/100", 2),
    HardEnvironment("small batches", BATCH, IID, 1),
    HardEnvironment("low participation", PARTICIPATION, IID, 400),
)


def cells(settings: Settings) -> list[Experiment]:
    """Return experiments of Figures 6 to 8 and of Table IV.

    Uncompressed SGD is included for tasks whose target depends on it.
    """
    hard = [
        cell
        for environment in HARD_ENVIRONMENTS
        for method in METHODS
        for momentum in MOMENTUM
        for cell in environment.cells(method, momentum, settings)
    ]
    needs_dense = math.isinf(table4.task_target(settings.task, None))
    methods = (*TRAFFIC_METHODS, "sgd") if needs_dense else TRAFFIC_METHODS
    return hard + [cell for method in methods for cell in settings.with_seeds(method)]


def table(settings: Settings, results: Results) -> Table:
    """Return the accuracies, then the megabytes."""
    values: list[dict[str, Any]] = []
    shown: list[dict[str, str]] = []
    for environment in HARD_ENVIRONMENTS:
        for method in METHODS:
            score = environment.score(method, settings, results)
            head = {"shows": environment.name, "method": method}
            values.append({**head, **score.columns(), "up_mb": None, "down_mb": None})
            label = settings.label(method)
            shown.append(_row(environment.name, label, format_percent(score.best), "", ""))
    until = table4.describe_target(settings, results)
    for method in TRAFFIC_METHODS:
        at_target = table4.evaluations_at_target(method, settings, results)
        score = Score.of(results, settings.with_seeds(method))
        up = mean([e.up_bytes_mean / 1e6 for e in at_target])
        down = mean([e.down_bytes_mean / 1e6 for e in at_target])
        head = {"shows": "traffic", "method": method}
        values.append({**head, **score.columns(), "up_mb": up, "down_mb": down})
        missing = table4.placeholder(score)
        amounts = (format_number(up), format_number(down)) if at_target else (missing, missing)
        best = format_percent(score.best)
        shown.append(_row(f"{until}, iid", settings.label(method), best, *amounts))
    title = "Figure 11: summary" + (" (quick)" if settings.quick else "")
    return Table(title, values, shown, NOTES)


def _row(shows: str, method: str, accuracy: str, up: str, down: str) -> dict[str, str]:
    return {
        "shows": shows,
        "method": method,
        "accuracy": accuracy,
        "MB up": up,
        "MB down": down,
    }


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """Draw bars: accuracies on the left, megabytes on the right."""
    figure.set_size_inches(11, 4.6)
    left, right = figure.subplots(1, 2)
    for position, method in enumerate(METHODS):
        scores = [each.score(method, settings, results) for each in HARD_ENVIRONMENTS]
        heights = [score.value for score in scores]
        x = [i + 0.4 * position - 0.2 for i in range(len(HARD_ENVIRONMENTS))]
        colour = method_style(settings.experiment(method).method)["color"]
        bars = left.bar(x, [100 * (h or 0) for h in heights], 0.38, color=colour,
                        label=settings.label(method))  # fmt: skip
        left.bar_label(bars, ["–" if h is None else f"{100 * h:.1f}" for h in heights], fontsize=9)
    names = [environment.name for environment in HARD_ENVIRONMENTS]
    left.set_xticks(range(len(names)), names)
    left.set(ylabel="accuracy in %", ylim=(0, 108))
    left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    table4.draw_traffic(right, TRAFFIC_METHODS, settings, results)
    for axes in (left, right):
        tidy(axes)
    add_title(figure, "Figure 11: summary", settings.note)
