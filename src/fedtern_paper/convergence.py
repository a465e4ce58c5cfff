"""Figures 2 and 10: accuracy during training, against iterations and against uploaded bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from fedtern import Environment
from fedtern.runs import Evaluation, Experiment
from fedtern_paper import table4
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import add_title, legend_below, method_style, tidy
from fedtern_paper.results import Results, Score, format_percent, mean
from fedtern_paper.settings import IID, Settings


class Axis(NamedTuple):
    """A horizontal axis: its label, its value at an evaluation, and whether it is logarithmic."""

    label: str
    value: Callable[[Evaluation], float]
    logarithmic: bool


ITERATIONS = Axis("iterations", lambda evaluation: evaluation.iteration, logarithmic=False)
UPLOADED = Axis(
    "bits that one client of each round has uploaded",
    lambda evaluation: 8 * evaluation.up_bytes_mean,
    logarithmic=True,
)


@dataclass(frozen=True)
class Curves:
    """Training curves of several methods, with a panel for each place and each axis.

    Args:
        title: Title of the figure.
        methods: Methods, as typed on the command line.
        places: Environments by name.
        axes: Horizontal axes.
        momentum: Momentum of the clients; the task's if None.
        window: Number of evaluations that a drawn point averages.
        targets: Whether to draw the target of Table IV.
        notes: Sentences below the table; ``{momentum}`` is replaced.

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
        """Return the experiments: every method in every place, with every seed."""
        return [
            cell
            for place in settings.choose_places(self.places)
            for method in settings.choose_methods(self.methods)
            for cell in self.with_seeds(settings, place, method)
        ]

    def with_seeds(self, settings: Settings, place: str, method: str) -> list[Experiment]:
        """Return the experiments of one curve."""
        return settings.with_seeds(method, self.places[place], self.chosen_momentum(settings))

    def chosen_momentum(self, settings: Settings) -> float | None:
        """Return the momentum of the settings, or else the figure's; None for the task's.

        Raises:
            ValueError: The settings have several.

        """
        if len(settings.momentum) > 1:
            raise ValueError(f"a curve has one momentum, got {len(settings.momentum)}; choose one")
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
        "non-iid (2): two classes per client; non-iid (1): one class per client. These are the"
        " paper's terms.",
        "All 10 clients take part in each round; momentum {momentum:g}. The paper does not state"
        " its delay and sparsity here; n=100 and p=1/100 are our choice.",
        "The paper shows VGG11* on CIFAR-10, and logistic regression on MNIST and, according to"
        " its caption, on Fashion-MNIST. Here each task has its own figure.",
        "The paper prints no numbers here. It says that all methods are close to uncompressed SGD"
        " on iid data, and that all suffer from non-iid data, top-k the least.",
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
        "The runs of Table IV: the paper's base configuration, iid data. As in the paper, curves"
        " are running means of five evaluations; the numbers in the table are not averaged.",
        "The paper prints no numbers here other than those of Table IV.",
    ),
)

_PANEL_TITLES = {IID: "iid", "2-classes": "non-iid (2)", "1-class": "non-iid (1)"}


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return running means, over fewer values at the ends of the curve.

    >>> smooth([0, 3, 6, 3], 3)
    [0.0, 3.0, 4.0, 4.5]
    """
    half = window // 2
    last = len(values) - 1
    means = []
    for i in range(last + 1):
        # At the steep start, take as many values after i as before it, or the curve would bend.
        # At the flat end, take values before i only, or the last value would stick out.
        before = min(half, i)
        after = min(half, i, last - i)
        means.append(fmean(values[i - before : i + after + 1]))
    return means


def table(curves: Curves, settings: Settings, results: Results) -> Table:
    """Return every point of the curves for programs, and best and final accuracy for people."""
    values: list[dict[str, Any]] = []
    shown: list[dict[str, str]] = []
    for place in settings.choose_places(curves.places):
        for method in settings.choose_methods(curves.methods):
            cells = curves.with_seeds(settings, place, method)
            values += [
                {
                    "place": place,
                    "method": method,
                    "iteration": seeds[0].iteration,
                    "accuracy": mean([e.accuracy for e in seeds]),
                    "loss": mean([e.loss for e in seeds]),
                    "up_bits": 8 * fmean(e.up_bytes_mean for e in seeds),
                    "down_bits": 8 * fmean(e.down_bytes_mean for e in seeds),
                    "seeds": len(seeds),
                }
                for seeds in _evaluations_by_seed(cells, results)
            ]
            score = Score.of(results, cells)
            shown.append({
                "where": _PANEL_TITLES[place],
                "method": settings.label(method),
                "best": format_percent(score.best),
                "final": format_percent(score.final),
            })  # fmt: skip
    title = curves.title + (" (quick)" if settings.quick else "")
    notes = [note.format(momentum=curves.chosen_momentum(settings)) for note in curves.notes]
    if settings.seeds > 1:
        notes.append(
            "± is the standard deviation over seeds; the shaded area is the range over seeds."
        )
    return Table(title, values, shown, notes)


def _evaluations_by_seed(
    cells: Sequence[Experiment], results: Results
) -> list[tuple[Evaluation, ...]]:
    """Return, for each evaluation that all finished seeds have, those of all seeds."""
    runs = [evaluations for cell in cells if (evaluations := results.evaluations(cell))]
    return list(zip(*runs, strict=False))


def draw(curves: Curves, settings: Settings, results: Results, figure: Any) -> None:
    """Draw a panel for each place and axis, with a line for each method."""
    places = list(settings.choose_places(curves.places))
    panels = [(place, axis) for place in places for axis in curves.axes]
    figure.set_size_inches(1 + 3.9 * len(panels), 4.6)
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    methods = settings.choose_methods(curves.methods)
    target = table4.target(settings, results) if curves.targets else float("inf")
    for (place, axis), panel in zip(panels, grid.flat, strict=True):
        variants: Counter[str] = Counter()
        for method in methods:
            cells = curves.with_seeds(settings, place, method)
            name = method.partition(":")[0]
            options = method_style(cells[0].method, variants[name])
            variants[name] += 1
            points = _evaluations_by_seed(cells, results)
            _draw_line(panel, axis, points, curves.window, settings.label(method), options)
        if target <= 1:
            panel.axhline(100 * target, color="#888888", linewidth=1, linestyle=":")
        panel.set_xlabel(axis.label)
        panel.set_title(_PANEL_TITLES[place], fontsize=10)
        if not axis.logarithmic:
            panel.locator_params(axis="x", nbins=5)
            panel.xaxis.set_major_formatter("{x:,.0f}")
        tidy(panel)
    grid.flat[0].set_ylabel("accuracy in %")
    dotted = f"; dotted: {100 * target:g} %" if target <= 1 else ""
    add_title(figure, curves.title, f"{settings.note}{dotted}")
    legend_below(figure, grid, columns=4 if len(methods) > 3 else 3)


def _draw_line(
    panel: Any,
    axis: Axis,
    points: Sequence[tuple[Evaluation, ...]],
    window: int,
    label: str,
    options: dict[str, Any],
) -> None:
    if not points:
        return
    x = [fmean(axis.value(e) for e in seeds) for seeds in points]
    y = [100 * fmean(e.accuracy for e in seeds) for seeds in points]
    if len(points) > 2:  # markers are only needed where there is hardly a line
        options = {key: value for key, value in options.items() if key != "marker"}
    panel.plot(x, smooth(y, window), label=label, linewidth=1.6, **options)
    if len(points[0]) > 1:
        low = smooth([100 * min(e.accuracy for e in seeds) for seeds in points], window)
        high = smooth([100 * max(e.accuracy for e in seeds) for seeds in points], window)
        panel.fill_between(x, low, high, color=options["color"], alpha=0.12, linewidth=0)
    if axis.logarithmic:
        panel.set_xscale("log")
