"""Bytes until a target accuracy: stc_plus beside the paper's STC and FedAvg, from recorded runs.

`python benchmarks/beyond_the_paper.py` prints the tables of docs/results/beyond-the-paper.md and
draws its picture, unless `--no-picture` is given. It trains nothing: the runs are in
docs/results/beyond-the-paper and in the records of `fedtern advise`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import pyplot as plt

from fedtern.advice import Point, Record, load_records
from fedtern.core.methods import stc_plus
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import TASK_DEFAULTS
from fedtern.report import load_run, method_label
from fedtern.runs import RecordedRun

DOCS = Path(__file__).parents[1] / "docs" / "results"
RUNS = DOCS / "beyond-the-paper"
PICTURE = DOCS / "beyond-the-paper.svg"


@dataclass(frozen=True)
class Cell:
    """A task and an environment, with the target accuracy.

    On iid data, the target is that of Table IV or, where STC or stc_plus does not reach it, a lower
    one. Elsewhere it is the highest whole percent that STC with the paper's p = 1/400 reaches; for
    lstm-fashion, that all runs of stc_plus reach, too.
    """

    title: str
    task: str
    environment: Environment
    target: float


class Cost(NamedTuple):
    """The cost of a method until the target, as a mean over seeds."""

    label: str
    momentum: str
    iteration: float
    up: float
    down: float
    seeds: int
    totals: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        """Bytes in both directions."""
        return self.up + self.down


TWO = Environment(classes_per_client=2)
ONE = Environment(classes_per_client=1)
UNBALANCED = Environment(clients=200, participation=0.025, gamma=0.9)
CELLS = (
    Cell("logistic-mnist, iid", "logistic-mnist", Environment(), 0.91),
    Cell("logistic-mnist, two classes", "logistic-mnist", TWO, 0.89),
    Cell("logistic-mnist, one class", "logistic-mnist", ONE, 0.90),
    Cell("logistic-mnist, 5 of 200, unbalanced", "logistic-mnist", UNBALANCED, 0.87),
    Cell("cnn-kws, iid", "cnn-kws", Environment(), 0.89),
    Cell("cnn-kws, iid", "cnn-kws", Environment(), 0.90),
    Cell("cnn-kws, two classes", "cnn-kws", TWO, 0.90),
    Cell("lstm-fashion, iid", "lstm-fashion", Environment(), 0.85),
    Cell("lstm-fashion, iid", "lstm-fashion", Environment(), 0.88),
    Cell("lstm-fashion, two classes", "lstm-fashion", TWO, 0.83),
)


# The ablation: each part of stc_plus switched off in turn, as changed parameters.
ABLATION = Cell("cnn-kws, iid", "cnn-kws", Environment(), 0.84)
ABLATION_ITERATIONS = 1_200  # of these runs, which have the same seed and --evaluate-every 40
PARTS: Mapping[str, Mapping[str, Any]] = {
    "stc_plus": {},
    'without adaptive codes: `codec="golomb"`': {"codec": "golomb"},
    'without magnitudes on a grid: `magnitudes="mean"`': {"magnitudes": "mean"},
    "with as many values down as up: `p_down=1/400`": {"p_down": 1 / 400},
    "with twice as many values: `p_up=1/200`": {"p_up": 1 / 200},
    "with local steps: `local_steps=25`": {"local_steps": 25},
}


def is_paper_stc(method: Mapping[str, Any]) -> bool:
    """Return whether a method is the paper's STC with equal rates."""
    return bool(
        method["name"] == "stc"
        and method["local_steps"] == 1
        and method["p_up"] == method["p_down"]
        and method.get("codec", "golomb") == "golomb"
        and method.get("magnitudes", "mean") == "mean"
    )


def is_fedavg(method: Mapping[str, Any]) -> bool:
    return bool(method["name"] == "fedavg")


def is_plus(method: Mapping[str, Any], **changed: Any) -> bool:
    """Return whether a method is stc_plus with its defaults, except for some parameters."""
    expected = {**stc_plus.defaults, **changed}
    return method["name"] == "stc_plus" and all(
        method.get(key) == value for key, value in expected.items() if key != "participation"
    )


OURS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "stc_plus": is_plus,
    "stc_plus with 25 local steps": partial(is_plus, local_steps=25),
}


def records_of(
    cell: Cell, records: Iterable[Record], chosen: Callable[[Mapping[str, Any]], bool]
) -> list[Record]:
    return [
        record
        for record in records
        if record.task == cell.task and record.environment == cell.environment
        if chosen(record.method)
    ]


Group = Sequence[Record]
"""Records that differ only in their seeds and in when they end, or one mean over seeds."""

Key = tuple[str, Environment, str, float, float, float]


def group_key(record: Record) -> Key:
    label = method_label(record.method)
    rates = record.learning_rate, record.momentum
    between = record.points[1].iteration - record.points[0].iteration
    return record.task, record.environment, label, *rates, between


def groups_of(records: Iterable[Record]) -> list[Group]:
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(group_key(record), []).append(record)
    return list(groups.values())


def describe_momentum(record: Record) -> str:
    """Return the momentum of training if it is not the task's."""
    if record.momentum == TASK_DEFAULTS[record.task].momentum:
        return ""
    return f", momentum {record.momentum:g}"


def label_of(record: Record) -> str:
    return method_label(record.method) + describe_momentum(record)


def cost_of(group: Group, target: float) -> Cost | None:
    """Return the mean over seeds; None if a seed does not reach the target.

    For a record that is the mean over seeds, this is the cost at which its mean curve reaches it.
    """
    points = [point for record in group if (point := record.reaching(target)) is not None]
    if len(points) < len(group):
        return None
    return Cost(
        method_label(group[0].method),
        describe_momentum(group[0]),
        statistics.fmean(point.iteration for point in points),
        statistics.fmean(point.up for point in points),
        statistics.fmean(point.down for point in points),
        sum(record.seeds for record in group),
        tuple(point.up + point.down for point in points),
    )


def cheapest(records: Iterable[Record], target: float) -> Cost | None:
    """Return the lowest total among methods that reach the target."""
    costs = [cost for group in groups_of(records) if (cost := cost_of(group, target))]
    return min(costs, key=lambda cost: cost.total, default=None)


def final_accuracy(record: Record) -> float:
    """Return the mean of the last three evaluations."""
    return statistics.fmean(point.accuracy for point in record.points[-3:])


def describe_ends(records: Iterable[Record]) -> str:
    """Return the accuracy at the end of the longest runs of each method."""
    by_label: dict[str, list[Record]] = {}
    for record in records:
        by_label.setdefault(label_of(record), []).append(record)
    texts = []
    for label, found in by_label.items():
        last = max(record.points[-1].iteration for record in found)
        ends = [final_accuracy(record) for record in found if record.points[-1].iteration == last]
        text = f"{label} {100 * statistics.fmean(ends):.1f} %"
        if len(ends) > 1:
            text += f" ({100 * min(ends):.1f} to {100 * max(ends):.1f})"
        texts.append(f"{text} after {last:,}")
    return "\nAccuracy at the end, after so many iterations: " + ", ".join(texts) + "."


def record_of(run: RecordedRun) -> Record:
    """Return the evaluations of one run, which may have been stopped early."""
    config = run.config
    points = tuple(
        Point(row["iteration"], row["accuracy"], row["up_bytes_mean"], row["down_bytes_mean"])
        for row in run.evaluations
    )
    return Record(
        task=config["task"],
        parameters=config["parameters"],
        method=config["method"],
        momentum=config["momentum"],
        learning_rate=config["learning_rate"],
        weight_decay=config["weight_decay"],
        environment=Environment(**config["environment"]),
        iterations=config["iterations"],
        own_iterations=config["iterations"],
        seeds=1,
        points=points,
    )


def megabytes(value: float) -> str:
    return f"{value / 1e6:.3g}"


def with_label(title: str, cost: Cost | None) -> str:
    return title if cost is None else f"{title}: {cost.label}{cost.momentum}"


def row(title: str, cost: Cost | None, reference: Cost | None) -> str:
    if cost is None:
        return f"| {title} | not reached | | | | | |"
    ratio = ""
    if reference is not None and reference is not cost:
        factor = cost.total / reference.total
        ratio = f"{factor:.1f} times" if factor > 1 else f"1/{1 / factor:.1f}"
    total = megabytes(cost.total)
    if len(cost.totals) > 1:
        total += f" ({megabytes(min(cost.totals))} to {megabytes(max(cost.totals))})"
    cells = (
        *(title, f"{cost.iteration:,.0f}"),
        *(megabytes(cost.up), megabytes(cost.down), total, ratio, str(cost.seeds)),
    )
    return "| " + " | ".join(cells) + " |"


def describe(cell: Cell, records: Sequence[Record]) -> list[str]:
    """Return the lines of one cell's table."""
    stc = records_of(cell, records, is_paper_stc)
    reference = cheapest(stc, cell.target)
    lines = [
        f"\n### {cell.title}: until {100 * cell.target:.0f} %\n",
        "| | iterations | MB up | MB down | MB total | of STC | seeds |",
        "|---|---:|---:|---:|---:|---:|---:|",
        row(with_label("the paper's STC, best p", reference), reference, None),
    ]
    if found := records_of(cell, records, is_fedavg):
        cost = cheapest(found, cell.target)
        lines.append(row(with_label("FedAvg, best n", cost), cost, reference))
    shown = stc
    for title, chosen in OURS.items():
        if found := records_of(cell, records, chosen):
            cost = cheapest(found, cell.target)
            lines.append(row(title + (cost.momentum if cost else ""), cost, reference))
            shown = [*shown, *found]
    return [*lines, describe_ends(shown)]


def is_of_ablation(record: Record) -> bool:
    """Return whether a run switches off a part, or is the one to compare with."""
    return record.task == ABLATION.task and record.iterations == ABLATION_ITERATIONS


def describe_ablation(plus: Sequence[Record]) -> list[str]:
    """Return the lines of the table of parts."""
    target = ABLATION.target
    found = {
        title: records_of(ABLATION, plus, partial(is_plus, **changed))
        for title, changed in PARTS.items()
    }
    costs = {title: cheapest(records, target) for title, records in found.items() if records}
    whole = costs["stc_plus"]
    assert whole is not None  # it reaches the target
    lines = [
        f"\n### Each part switched off: {ABLATION.title}, until {100 * target:.0f} %\n",
        "| | iterations | MB up | MB down | MB total | of stc_plus |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for title, cost in costs.items():
        if cost is None:
            lines.append(f"| {title} | not reached | | | | |")
            continue
        cells = (
            *(title, f"{cost.iteration:,.0f}", megabytes(cost.up), megabytes(cost.down)),
            *(megabytes(cost.total), f"{cost.total / whole.total:.2f}"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw(records: Sequence[Record], cells: Sequence[Cell]) -> None:
    plt.rcParams.update({"svg.hashsalt": "fedtern", "font.size": 9})
    columns = 4
    lines = -(-len(cells) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(13, 3.1 * lines), layout="constrained")
    styles = (
        (is_fedavg, "#d55e00", "FedAvg"),
        (is_paper_stc, "#0072b2", "the paper's STC"),
        (is_plus, "#009e73", "stc_plus"),
        (OURS["stc_plus with 25 local steps"], "#cc79a7", "stc_plus, 25 steps"),
    )
    for cell, axes in zip(cells, grid.flat, strict=False):
        for chosen, colour, label in styles:
            for i, record in enumerate(records_of(cell, records, chosen)):
                xs = [(point.up + point.down) / 1e6 for point in record.points]
                ys = [100 * point.accuracy for point in record.points]
                name = label if i == 0 else None
                axes.plot(xs, ys, color=colour, linewidth=1.2, alpha=0.8, label=name)
        axes.axhline(100 * cell.target, color="#888888", linewidth=0.8, linestyle=":")
        axes.set(title=cell.title, xscale="log", ylim=(100 * cell.target - 25, None))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid.flat[len(cells) :]:
        axes.set_visible(False)
    grid.flat[0].legend(frameon=False)
    figure.supxlabel("MB up and down per participating client")
    figure.supylabel("test accuracy in %")
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    own = [record_of(load_run(path.parent)) for path in sorted(RUNS.glob("*/config.json"))]
    parts = [record for record in own if is_of_ablation(record)]
    whole = [record for record in own if not is_of_ablation(record)]
    # The records that come with the package contain some of these runs, too.
    known = {group_key(record) for record in whole}
    recorded = [
        record
        for record in load_records()
        if record.method["name"] != "stc_plus" and group_key(record) not in known
    ]
    records = [*recorded, *whole]
    for cell in CELLS:
        print("\n".join(describe(cell, records)))
    print("\n".join(describe_ablation(parts)))
    if "--no-picture" not in sys.argv:
        draw(records, list({cell.title: cell for cell in CELLS}.values()))


if __name__ == "__main__":
    main()
