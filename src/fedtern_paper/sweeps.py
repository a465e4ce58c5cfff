"""Figures 6 to 9 and 13 to 16: three methods while one property of the environment varies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedtern import Environment
from fedtern.report import format_iterations, join_words
from fedtern.runs import Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import add_title, legend_below, method_style, tidy
from fedtern_paper.published import ACCURACY, SWEEP_NOTES
from fedtern_paper.results import Results, Score, spread
from fedtern_paper.settings import IID, NON_IID, Settings

METHODS = ("stc", "fedavg:local_steps=400", "signsgd")
MOMENTUM = (0.0, 0.9)

_PUBLISHED_LABEL = "the paper's numbers"

NOTES = (
    "Accuracy in per cent: the best of each run, as in the paper, and the final one in brackets.",
    "m: momentum of each client's SGD. All runs of a task have the same learning rate.",
)


@dataclass(frozen=True)
class Sweep:
    """The property that varies, its values, and the environments in which it varies.

    Args:
        name: Name of the property, and of its column in tables.
        title: Title of the figure.
        axis: Label of the horizontal axis.
        values: Values of the property.
        places: Environments by name, before the property is set.
        vary: Sets the property of an environment.
        tick: Formats a value for the axis.
        logarithmic: Whether the axis is logarithmic.

    """

    name: str
    title: str
    axis: str
    values: tuple[float, ...]
    places: Mapping[str, Environment]
    vary: Callable[[Environment, float], Environment]
    tick: Callable[[float], str] = "{:g}".format
    logarithmic: bool = False

    def points(self, settings: Settings) -> Iterator[Point]:
        """Return all points for one task."""
        for place, base in settings.choose_places(self.places).items():
            for value in settings.values or self.values:
                environment = self.vary(base, value)
                for method in settings.choose_methods(METHODS):
                    for momentum in settings.momentum or MOMENTUM:
                        yield Point(place, value, method, momentum, environment)


class Point(NamedTuple):
    """A method at one value in one place."""

    place: str
    value: float
    method: str
    momentum: float
    environment: Environment

    def cells(self, settings: Settings) -> list[Experiment]:
        """Return the experiments of the point, one per seed."""
        return settings.with_seeds(self.method, self.environment, self.momentum)

    def score(self, settings: Settings, results: Results) -> Score:
        """Return the accuracies of its finished runs."""
        return Score.of(results, self.cells(settings))


def _integer(name: str, value: float, minimum: int = 1) -> int:
    if value != int(value) or value < minimum:
        raise ValueError(f"{name} must be whole numbers of at least {minimum}, got {value:g}")
    return int(value)


def _classes(place: Environment, value: float) -> Environment:
    return replace(place, classes_per_client=_integer("classes per client", value))


def _batch(place: Environment, value: float) -> Environment:
    return replace(place, batch_size=_integer("batch sizes", value))


def _participation(place: Environment, value: float) -> Environment:
    """Return an environment with this number of clients, five of which take part."""
    clients = _integer("numbers of clients", value, _COHORT)
    return replace(place, clients=clients, participation=_COHORT / clients)


def _balance(place: Environment, value: float) -> Environment:
    if not 0 < value <= 1:
        raise ValueError(f"values of gamma must be in (0, 1], got {value:g}")
    return replace(place, gamma=value)


_COHORT = 5
_TEN_OF_TEN = Environment(clients=10, participation=1.0)
_BATCHES_OF_40 = Environment(batch_size=40)

CLASSES = Sweep(
    "classes",
    "Classes for each client",
    "classes for each client",
    (1, 2, 3, 5, 10),
    {"10/10": _TEN_OF_TEN, "10/100": Environment()},
    _classes,
)
BATCH = Sweep(
    "batch",
    "Batch size",
    "batch size (10 of 10 clients)",
    (1, 4, 10, 20, 40),
    {NON_IID: replace(_TEN_OF_TEN, classes_per_client=2), IID: _TEN_OF_TEN},
    _batch,
    logarithmic=True,
)
PARTICIPATION = Sweep(
    "participation",
    "Participation",
    "clients that take part, of all",
    (5, 10, 25, 50, 100, 200, 400),
    {NON_IID: replace(_BATCHES_OF_40, classes_per_client=2), IID: _BATCHES_OF_40},
    _participation,
    tick="5/{:g}".format,
    logarithmic=True,
)
BALANCE = Sweep(
    "balance",
    "Balancedness",
    "γ (1: all clients hold the same number of examples)",
    (0.9, 0.925, 0.95, 0.975, 1.0),
    {"5/200": Environment(clients=200, participation=5 / 200)},
    _balance,
)

_PANEL_TITLES = {
    "10/10": "10 of 10 clients",
    "10/100": "10 of 100 clients",
    "5/200": "5 of 200 clients",
    NON_IID: "2 classes for each client",
    IID: "iid data",
}


def cells(sweep: Sweep, settings: Settings) -> list[Experiment]:
    """Return the experiments of all points, for every task and seed."""
    return [
        cell
        for task_settings in settings.per_task
        for point in sweep.points(task_settings)
        for cell in point.cells(task_settings)
    ]


def table(sweep: Sweep, settings: Settings, results: Results) -> Table:
    """Return one row per environment, with the accuracies of all methods."""
    values: list[dict[str, Any]] = []
    rows: dict[tuple[str, str, float], dict[str, str]] = {}
    published: dict[tuple[str, str, float], dict[str, str]] = {}
    for task_settings in settings.per_task:
        task = task_settings.task
        for point in sweep.points(task_settings):
            score = point.score(task_settings, results)
            paper = published_accuracy(sweep, task_settings, point)
            values.append({
                "task": task,
                "place": point.place,
                sweep.name: point.value,
                "method": point.method,
                "momentum": point.momentum,
                **score.columns(),
                "paper": paper,
            })  # fmt: skip
            key = (task, point.place, point.value)
            label = task_settings.label(point.method)
            start = {"task": task, "where": point.place, sweep.name: sweep.tick(point.value)}
            rows.setdefault(key, start)[f"{label}, m={point.momentum:g}"] = score.shown
            if paper is not None:
                published.setdefault(key, {})[label] = f"{label}: {100 * paper:.1f}"
    if published:
        for key, row in rows.items():
            row["paper"] = ", ".join(published.get(key, {}).values())
    return Table(_title(sweep, settings), values, list(rows.values()), _notes(sweep, settings))


def published_accuracy(sweep: Sweep, settings: Settings, point: Point) -> float | None:
    """Return the accuracy that the paper prints for a point, if any.

    Where the paper does not say which momentum it used, its number stands beside all of them.
    """
    papers_methods = [settings.experiment(method).method for method in METHODS]
    if settings.experiment(point.method).method not in papers_methods:
        return None  # for example STC with another sparsity
    name = point.method.partition(":")[0]
    published = ACCURACY.get(settings.task, {})
    key = (sweep.name, point.place, point.value, name)
    accuracy, momentum = published.get(key, (None, None))
    return accuracy if momentum in (None, point.momentum) else None


def _title(sweep: Sweep, settings: Settings) -> str:
    return sweep.title + (" (quick)" if settings.quick else "")


def _notes(sweep: Sweep, settings: Settings) -> list[str]:
    several_seeds = ["± is the standard deviation over seeds."] if settings.seeds > 1 else []
    return [*NOTES, *several_seeds, SWEEP_NOTES[sweep.name]]


def draw(sweep: Sweep, settings: Settings, results: Results, figure: Any) -> None:
    """Draw a row of panels per task, a panel per place and a line per method."""
    places = list(settings.choose_places(sweep.places))
    tasks = settings.per_task
    figure.set_size_inches(max(4.4 * len(places), 5.5), 0.9 + 3.1 * len(tasks))
    grid = figure.subplots(len(tasks), len(places), squeeze=False)
    for task_settings, panels in zip(tasks, grid, strict=True):
        for place, axes in zip(places, panels, strict=True):
            _draw_panel(axes, sweep, task_settings, results, place)
            axes.set_title(f"{task_settings.task}, {_PANEL_TITLES[place]}", fontsize=10)
        panels[0].set_ylabel("maximum accuracy in %")
    for axes in grid[-1]:
        axes.set_xlabel(sweep.axis)
    seeds = f"{settings.seeds} seeds" if settings.seeds > 1 else "seed 0"
    points = [
        (task_settings, point) for task_settings in tasks for point in sweep.points(task_settings)
    ]
    momenta = sorted({f"{point.momentum:g}" for _, point in points if point.momentum})
    dashed = f" (dashed: momentum {join_words(momenta)})" if momenta else ""
    add_title(figure, _title(sweep, settings), f"{_describe_iterations(tasks)}, {seeds}{dashed}")
    some_published = any(
        published_accuracy(sweep, task_settings, point) is not None
        for task_settings, point in points
    )
    # Each column holds both momenta of a method; the paper's stars have a column of their own.
    columns = 2 if len(places) == 1 else 3 + some_published
    legend_below(figure, grid, columns=columns, last=_PUBLISHED_LABEL)


def _describe_iterations(tasks: Sequence[Settings]) -> str:
    """Return the iterations of each task's runs; of shortened runs, also those of the task."""
    complete = all(each.run_iterations == each.task_iterations for each in tasks)
    if len(tasks) > 1 and complete:
        return "iterations as each task has"
    lengths = [format_iterations(each.run_iterations, each.task_iterations) for each in tasks]
    return f"{join_words(lengths)} iterations"


def _draw_panel(axes: Any, sweep: Sweep, settings: Settings, results: Results, place: str) -> None:
    lines: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
    for point in sweep.points(settings):
        if point.place != place:
            continue
        score = point.score(settings, results)
        paper = published_accuracy(sweep, settings, point)
        line = lines.setdefault((point.method, point.momentum), [])
        if score.value is not None:
            line.append((point.value, 100 * score.value, 100 * (spread(score.best) or 0)))
        if paper is not None:
            # Above all lines, several of which may pass through the star.
            colour = method_style(settings.experiment(point.method).method)["color"]
            axes.plot(point.value, 100 * paper, "*", color=colour, markersize=13, zorder=5,
                      markeredgecolor="white", label=_PUBLISHED_LABEL)  # fmt: skip
    for (method, momentum), line in lines.items():
        options = method_style(settings.experiment(method).method)
        options["linestyle"] = "--" if momentum else "-"
        label = f"{settings.label(method)}, m={momentum:g}"
        if line:
            x, y, deviation = zip(*line, strict=True)
            axes.errorbar(x, y, deviation, label=label, capsize=2, markersize=5, **options)
    ticks = sorted(set(settings.values or sweep.values))
    if sweep.logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(ticks, [sweep.tick(tick) for tick in ticks])
    tidy(axes)
