"""Figure 11, the summary: STC and FedAvg in three hard environments, and what they send."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fedtern.report.formatting import format_number
from fedtern.runs import Experiment
from fedtern_paper import table4
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import head, method_look, tidy
from fedtern_paper.results import Results
from fedtern_paper.scores import Score, mean, percent
from fedtern_paper.settings import Settings
from fedtern_paper.sweeps import BATCH, CLASSES, MOMENTUM, PARTICIPATION, Sweep
from fedtern_paper.traffic import draw_traffic
from fedtern_paper.verdicts import IID

METHODS = ("stc", "fedavg:local_steps=400")
SENDERS = tuple(m for m in table4.METHODS if m.partition(":")[0] in ("fedavg", "stc"))

NOTES = (
    "The paper does not say which three environments it shows; these are those of its lessons"
    " 1 to 3: non-iid data (2 classes for each of 100 clients), small batches (of 1, 10 of 10"
    " clients), low participation (5 of 400 clients).",
    "Accuracy: the highest, of the better of momentum 0 and 0.9, as the paper compares.",
    "MB: what one client of each round sends and receives until the target of Table IV is reached.",
)


class Scene(NamedTuple):
    """An environment of one of the sweeps."""

    name: str
    sweep: Sweep
    place: str
    value: float


SCENES = (
    Scene("non-iid data", CLASSES, "10/100", 2),
    Scene("small batches", BATCH, IID, 1),
    Scene("low participation", PARTICIPATION, IID, 400),
)


def _seeds(scene: Scene, method: str, momentum: float, settings: Settings) -> list[Experiment]:
    environment = scene.sweep.vary(scene.sweep.places[scene.place], scene.value)
    return settings.with_seeds(method, environment, momentum)


def cells(settings: Settings) -> list[Experiment]:
    """Runs of Figures 6 to 8 and of Table IV; uncompressed ones where they set the target."""
    hard = [
        cell
        for scene in SCENES
        for method in METHODS
        for momentum in MOMENTUM
        for cell in _seeds(scene, method, momentum, settings)
    ]
    unset = math.isinf(table4.goal(settings.task, None))
    senders = (*SENDERS, "sgd") if unset else SENDERS
    return hard + [cell for method in senders for cell in settings.with_seeds(method)]


def _better(scene: Scene, method: str, settings: Settings, results: Results) -> Score:
    both = [Score.of(results, _seeds(scene, method, m, settings)) for m in MOMENTUM]
    return max(both, key=lambda score: -1.0 if score.value is None else score.value)


def table(settings: Settings, results: Results) -> Table:
    """Accuracies first, then megabytes."""
    values: list[dict[str, Any]] = []
    shown: list[dict[str, str]] = []
    for scene in SCENES:
        for method in METHODS:
            score = _better(scene, method, settings, results)
            head = {"shows": scene.name, "method": method}
            values.append({**head, **score.columns(), "up_mb": None, "down_mb": None})
            label = settings.label(method)
            shown.append(_row(scene.name, label, percent(score.best), "", ""))
    until = table4.until(settings, results)
    for method in SENDERS:
        there = table4.traffic(method, settings, results)
        score = Score.of(results, settings.with_seeds(method))
        up = mean([r.up_bytes_mean / 1e6 for r in there])
        down = mean([r.down_bytes_mean / 1e6 for r in there])
        head = {"shows": "traffic", "method": method}
        values.append({**head, **score.columns(), "up_mb": up, "down_mb": down})
        label, best = settings.label(method), percent(score.best)
        missing = "n.a." if score.best else "–"
        amounts = (format_number(up), format_number(down)) if there else (missing, missing)
        shown.append(_row(f"{until}, iid", label, best, *amounts))
    title = "Figure 11: summary" + (" (quick)" if settings.quick else "")
    return Table(title, values, shown, NOTES)


def _row(scene: str, method: str, accuracy: str, up: str, down: str) -> dict[str, str]:
    cells = {"shows": scene, "method": method, "accuracy": accuracy}
    return {**cells, "MB up": up, "MB down": down}


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """Bars: accuracies on the left, megabytes on the right."""
    figure.set_size_inches(11, 4.6)
    left, right = figure.subplots(1, 2)
    for place, method in enumerate(METHODS):
        heights = [_better(s, method, settings, results).value for s in SCENES]
        x = [i + 0.4 * place - 0.2 for i in range(len(SCENES))]
        colour = method_look(settings.experiment(method).method)["color"]
        bars = left.bar(x, [100 * (h or 0) for h in heights], 0.38, color=colour,
                        label=settings.label(method))  # fmt: skip
        left.bar_label(bars, ["–" if h is None else f"{100 * h:.1f}" for h in heights], fontsize=9)
    left.set_xticks(range(len(SCENES)), [scene.name for scene in SCENES])
    left.set(ylabel="accuracy in %", ylim=(0, 108))
    left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    draw_traffic(right, SENDERS, settings, results)
    for axes in (left, right):
        tidy(axes)
    head(figure, "Figure 11: summary", settings.note)
