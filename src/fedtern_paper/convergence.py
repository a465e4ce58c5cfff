"""Figures 2 and 10: accuracy while training goes on, against iterations and against bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedtern.data.environment import Environment
from fedtern.runs import Evaluation, Experiment
from fedtern_paper import table4
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import head, legend_below, method_look, tidy
from fedtern_paper.results import Results
from fedtern_paper.scores import Score, mean, percent
from fedtern_paper.settings import Settings
from fedtern_paper.verdicts import IID

Axis = tuple[str, Callable[[Evaluation], float], bool]  # its label, what it shows, and if by powers

ITERATIONS: Axis = ("iterations", lambda r: r.iteration, False)
UPLOADED: Axis = (
    "bits that one client of each round has uploaded",
    lambda r: 8 * r.up_bytes_mean,
    True,
)


@dataclass(frozen=True)
class Curves:
    """Methods that train side by side: a panel for each place and each axis.

    ``momentum`` None stands for the task's own. Curves are drawn as means of ``window`` values.
    """

    title: str
    methods: tuple[str, ...]
    places: Mapping[str, Environment]
    axes: tuple[Axis, ...] = (ITERATIONS,)
    momentum: float | None = None
    window: int = 1
    targets: bool = False
    notes: tuple[str, ...] = ()

    def cells(self, settings: Settings) -> list[Experiment]:
        """Every method in every place, with every seed."""
        return [
            cell
            for place in settings.choose_places(self.places)
            for method in settings.choose_methods(self.methods)
            for cell in self.seeds(settings, place, method)
        ]

    def seeds(self, settings: Settings, place: str, method: str) -> list[Experiment]:
        """The runs of one curve."""
        return settings.with_seeds(method, self.places[place], self.momentum_of(settings))

    def momentum_of(self, settings: Settings) -> float | None:
        """The momentum that was asked for, or else the figure's; None for the task's own."""
        if len(settings.momentum) > 1:
            raise ValueError(
                f"a curve has one momentum, got {len(settings.momentum)}: ask for one at a time"
            )
        return settings.momentum[0] if settings.momentum else self.momentum


FIGURE_2 = Curves(
    "Convergence, iid and non-iid",
    ("sgd", "signsgd", "fedavg:local_steps=100", "topk:p_up=1/100"),
    {
        IID: Environment(clients=10, participation=1.0),
        "2-classes": Environment(clients=10, participation=1.0, classes_per_client=2),
        "1-class": Environment(clients=10, participation=1.0, classes_per_client=1),
    },
    momentum=0.9,
    notes=(
        "non-iid (2): two classes for each client; non-iid (1): one. The words are the paper's.",
        "10 clients that all take part, with a momentum of {momentum:g}. The paper does not say"
        " which delay and which sparsity it uses here: n=100 and p=1/100 are ours.",
        "The paper's rows are VGG11* on CIFAR-10 and logistic regression on MNIST and, by its"
        " caption, on Fashion-MNIST; here each task is a figure of its own.",
        "The paper prints no numbers here: all methods are close to uncompressed SGD on iid data,"
        " all suffer from non-iid data, and top-k the least.",
    ),
)
FIGURE_10 = Curves(
    "Convergence in iterations and in uploaded bits",
    table4.METHODS,
    {IID: Environment()},
    (ITERATIONS, UPLOADED),
    window=5,
    targets=True,
    notes=(
        "The paper's base configuration, iid: the runs of Table IV. Curves are drawn as running"
        " means of five evaluations, as in the paper; the numbers are as they were measured.",
        "The paper prints no numbers here but those of Table IV.",
    ),
)

_PANELS = {IID: "iid", "2-classes": "non-iid (2)", "1-class": "non-iid (1)"}


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Running means, over fewer values where the curve begins and ends.

    >>> smooth([0, 3, 6, 3], 3)
    [0.0, 3.0, 4.0, 4.5]
    """
    last, half = len(values) - 1, window // 2
    # Where it begins and is steep, as far ahead as back, or it would bend; where it ends and is
    # flat, only back, or the last value would stick out.
    parts = [(min(half, i), min(half, i, last - i)) for i in range(last + 1)]
    return [fmean(values[i - back : i + ahead + 1]) for i, (back, ahead) in enumerate(parts)]


def table(curves: Curves, settings: Settings, results: Results) -> Table:
    """Every point for programs; for people, what each curve comes to."""
    values: list[dict[str, Any]] = []
    shown: list[dict[str, str]] = []
    for place in settings.choose_places(curves.places):
        for method in settings.choose_methods(curves.methods):
            runs = curves.seeds(settings, place, method)
            values += [
                {
                    "place": place,
                    "method": method,
                    "iteration": points[0].iteration,
                    "accuracy": mean([r.accuracy for r in points]),
                    "loss": mean([r.loss for r in points]),
                    "up_bits": 8 * fmean(r.up_bytes_mean for r in points),
                    "down_bits": 8 * fmean(r.down_bytes_mean for r in points),
                    "seeds": len(points),
                }
                for points in _means(runs, results)
            ]
            score = Score.of(results, runs)
            head = {"where": _PANELS[place], "method": settings.label(method)}
            shown.append({**head, "best": percent(score.best), "final": percent(score.final)})
    title = curves.title + (" (quick)" if settings.quick else "")
    notes = [note.format(momentum=curves.momentum_of(settings)) for note in curves.notes]
    if settings.seeds > 1:
        notes.append(
            "± is the standard deviation over seeds; shaded is from the lowest to the highest."
        )
    return Table(title, values, shown, notes)


def _means(cells: Sequence[Experiment], results: Results) -> list[tuple[Evaluation, ...]]:
    """The evaluations that all finished seeds have, together."""
    runs = [rounds for cell in cells if (rounds := results.rounds(cell))]
    return list(zip(*runs, strict=False))


def draw(curves: Curves, settings: Settings, results: Results, figure: Any) -> None:
    """A panel for each place and axis, a line for each method."""
    places = list(settings.choose_places(curves.places))
    panels = [(place, axis) for place in places for axis in curves.axes]
    figure.set_size_inches(1 + 3.9 * len(panels), 4.6)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    methods = settings.choose_methods(curves.methods)
    for (place, axis), panel in zip(panels, grid.flat, strict=True):
        kinds: Counter[str] = Counter()
        for method in methods:
            cells = curves.seeds(settings, place, method)
            variant = kinds[name := method.partition(":")[0]]
            kinds[name] += 1
            _line(panel, axis, _means(cells, results), curves.window, settings.label(method),
                  method_look(cells[0].method, variant))  # fmt: skip
        if curves.targets and (goal := table4.target(settings, results)) <= 1:
            panel.axhline(100 * goal, color="#888888", linewidth=1, linestyle=":")
        panel.set_xlabel(axis[0])
        panel.set_title(_PANELS[place], fontsize=10)
        if not axis[2]:
            panel.locator_params(axis="x", nbins=5)
            panel.xaxis.set_major_formatter("{x:,.0f}")
        tidy(panel)
    grid.flat[0].set_ylabel("accuracy in %")
    target = f"; dotted: {100 * goal:g} %" if curves.targets and goal <= 1 else ""
    head(figure, curves.title, f"{settings.note}{target}")
    legend_below(figure, grid, columns=4 if len(methods) > 3 else 3)


def _line(
    panel: Any,
    axis: Axis,
    points: list[tuple[Evaluation, ...]],
    window: int,
    label: str,
    look: dict[str, Any],
) -> None:
    if not points:
        return
    _, at, powers = axis
    x = [fmean(at(r) for r in seeds) for seeds in points]
    y = [100 * fmean(r.accuracy for r in seeds) for seeds in points]
    if len(points) > 2:  # fewer make no line to see
        look = {key: value for key, value in look.items() if key != "marker"}
    panel.plot(x, smooth(y, window), label=label, linewidth=1.6, **look)
    if len(points[0]) > 1:
        low = smooth([100 * min(r.accuracy for r in seeds) for seeds in points], window)
        high = smooth([100 * max(r.accuracy for r in seeds) for seeds in points], window)
        panel.fill_between(x, low, high, color=look["color"], alpha=0.12, linewidth=0)
    if powers:
        panel.set_xscale("log")
