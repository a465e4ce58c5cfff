"""What a sweep's runs amount to: rows to read, and panels with a line for each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtern.report.formatting import format_iterations, join_words
from fedtern_paper.artefact import Table
from fedtern_paper.paper import ACCURACY, WORDS
from fedtern_paper.plot_style import head, legend_below, method_look, tidy
from fedtern_paper.results import Results
from fedtern_paper.scores import spread
from fedtern_paper.settings import Settings
from fedtern_paper.sweeps import METHODS, PLACES, Point, Sweep

_STAR = "the paper's numbers"

NOTES = (
    "Accuracy in per cent: the highest of each run, as in the paper, and in brackets the last.",
    "m: the momentum of each client's SGD. All runs of a task have the same learning rate.",
)


def table(sweep: Sweep, settings: Settings, results: Results) -> Table:
    """Each environment with what every method came to."""
    values: list[dict[str, Any]] = []
    rows: dict[tuple[str, str, float], dict[str, str]] = {}
    said: dict[tuple[str, str, float], dict[str, str]] = {}
    for each in settings.each:
        for point in sweep.points(each):
            score, paper = point.score(each, results), printed(sweep, each, point)
            values.append({
                "task": each.task,
                "place": point.place,
                sweep.name: point.value,
                "method": point.method,
                "momentum": point.momentum,
                **score.columns(),
                "paper": paper,
            })  # fmt: skip
            spot, label = (each.task, point.place, point.value), each.label(point.method)
            head = {"task": each.task, "where": point.place, sweep.name: sweep.tick(point.value)}
            rows.setdefault(spot, head)[f"{label}, m={point.momentum:g}"] = score.shown
            if paper is not None:
                said.setdefault(spot, {})[label] = f"{label}: {100 * paper:.1f}"
    for spot, row in rows.items() if said else ():
        row["paper"] = ", ".join(said.get(spot, {}).values())
    return Table(_title(sweep, settings), values, list(rows.values()), _notes(sweep, settings))


def printed(sweep: Sweep, settings: Settings, point: Point) -> float | None:
    """What the paper prints for a point; where it does not say with which momentum, for both."""
    usual = [settings.experiment(method).method for method in METHODS]
    if settings.experiment(point.method).method not in usual:  # such as STC at another sparsity
        return None
    name = point.method.partition(":")[0]
    spots = ACCURACY.get(settings.task, {})
    accuracy, momentum = spots.get((sweep.name, point.place, point.value, name), (None, None))
    return accuracy if momentum in (None, point.momentum) else None


def _title(sweep: Sweep, settings: Settings) -> str:
    return sweep.title + (" (quick)" if settings.quick else "")


def _notes(sweep: Sweep, settings: Settings) -> list[str]:
    several = ["± is the standard deviation over seeds."] if settings.seeds > 1 else []
    return [*NOTES, *several, WORDS[sweep.name]]


def draw(sweep: Sweep, settings: Settings, results: Results, figure: Any) -> None:
    """A row of panels for each task, a panel for each place, a line for each method."""
    places = list(settings.choose_places(sweep.places))
    tasks = settings.each
    figure.set_size_inches(max(4.4 * len(places), 5.5), 0.9 + 3.1 * len(tasks))
    grid = figure.subplots(len(tasks), len(places), squeeze=False)
    for each, panels in zip(tasks, grid, strict=True):
        for place, axes in zip(places, panels, strict=True):
            _panel(axes, sweep, each, results, place)
            axes.set_title(f"{each.task}, {PLACES[place]}", fontsize=10)
        panels[0].set_ylabel("maximum accuracy in %")
    for axes in grid[-1]:
        axes.set_xlabel(sweep.axis)
    seeds = f"{settings.seeds} seeds" if settings.seeds > 1 else "seed 0"
    points = [(each, point) for each in tasks for point in sweep.points(each)]
    momenta = sorted({f"{point.momentum:g}" for _, point in points if point.momentum})
    dashed = f" (dashed: momentum {join_words(momenta)})" * bool(momenta)
    head(figure, _title(sweep, settings), f"{_lengths(tasks)}, {seeds}{dashed}")
    some = any(printed(sweep, each, point) is not None for each, point in points)
    # Columns that hold both momenta of a method, and the paper's stars in one of their own.
    legend_below(figure, grid, columns=2 if len(places) == 1 else 3 + some, last=_STAR)


def _lengths(tasks: Sequence[Settings]) -> str:
    """For how long each task was trained, and how long it should be if that is longer."""
    if len(tasks) > 1 and all(each.planned == each.own_iterations for each in tasks):
        return "iterations as each task has"
    told = [format_iterations(each.planned, each.own_iterations) for each in tasks]
    return f"{join_words(told)} iterations"


def _panel(axes: Any, sweep: Sweep, settings: Settings, results: Results, place: str) -> None:
    lines: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
    for point in sweep.points(settings):
        if point.place != place:
            continue
        score, paper = point.score(settings, results), printed(sweep, settings, point)
        line = lines.setdefault((point.method, point.momentum), [])
        if score.value is not None:
            line.append((point.value, 100 * score.value, 100 * (spread(score.best) or 0)))
        if paper is not None:
            # Above everything: the star is one, however many lines run through it.
            colour = method_look(settings.experiment(point.method).method)["color"]
            axes.plot(point.value, 100 * paper, "*", color=colour, markersize=13, zorder=5,
                      markeredgecolor="white", label=_STAR)  # fmt: skip
    for (method, momentum), line in lines.items():
        look = method_look(settings.experiment(method).method)
        look["linestyle"] = "--" if momentum else "-"
        label = f"{settings.label(method)}, m={momentum:g}"
        if line:
            x, y, deviation = zip(*line, strict=True)
            axes.errorbar(x, y, deviation, label=label, capsize=2, markersize=5, **look)
    ticks = sorted(set(settings.values or sweep.values))
    if sweep.logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(ticks, [sweep.tick(tick) for tick in ticks])
    tidy(axes)
