"""Table I, measured: which methods compress both ways, strongly, and bear non-iid data."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from fedtern.core.methods import METHODS
from fedtern.data.environment import Environment
from fedtern.report.formatting import format_number
from fedtern.runs import Evaluation, Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import look
from fedtern_paper.results import Results
from fedtern_paper.scores import mean, percent, spread
from fedtern_paper.settings import Settings
from fedtern_paper.verdicts import COMPRESSED, IID, NEAR, NON_IID, PAPER, STRONG, Key, Row

BASELINE = "sgd"
DELAYED = "stc:p_up=1/25,p_down=1/25,local_steps=25"  # Appendix C
PLACES = {IID: Environment(), NON_IID: Environment(classes_per_client=1)}

NOTES = (
    "iid, non-iid: the accuracy at the end, where clients hold ten classes each and where they"
    " hold one; drop: the points between; up, down: the compression each way.",
    "Bytes are those of messages that the other side decoded: the mean of each round's clients,"
    " summed over rounds and over both environments.",
    "Up: what uncompressed training sends at every iteration, over what was sent.",
    "Down: the same for downloads, against the downloads of the uncompressed run of"
    " the same environment and seed, so that both pay for the rounds that a client missed.",
    f"Down?: compressed by more than ×{COMPRESSED:g}. Rate: strong if up by more than"
    f" ×{STRONG:g}, as the paper has it, else weak.",
    f"Robust: the non-iid run ends at most {100 * NEAR:g} points below the uncompressed non-iid"
    " run of the same seed.",
    "Paper: its Table I in the same order (down?/rate/robust); ≠ names where the"
    " measured verdict is another.",
)


def methods(settings: Settings) -> list[str]:
    """The rows: every method by default and STC with delay, or what was asked for, and SGD."""
    # topk is gradient_dropping by another name.
    every = [name for name in METHODS if name not in (BASELINE, "topk")] + [DELAYED]
    return settings.choose_methods(every, always=[BASELINE])


def cells(settings: Settings) -> list[Experiment]:
    """Every method, iid and non-iid, with every seed."""
    return [
        settings.experiment(method, environment, seed)
        for method in methods(settings)
        for environment in PLACES.values()
        for seed in range(settings.seeds)
    ]


def rows(settings: Settings, results: Results) -> list[Row]:
    """What the finished runs say, a row for each method."""
    dense = _runs(BASELINE, settings, results)
    return [
        Row(name, settings.label(name), _runs(name, settings, results), dense)
        for name in methods(settings)
    ]


def _runs(method: str, settings: Settings, results: Results) -> dict[Key, Evaluation]:
    found = {}
    for place, environment in PLACES.items():
        for seed in range(settings.seeds):
            if rounds := results.rounds(settings.experiment(method, environment, seed)):
                found[place, seed] = rounds[-1]
    return found


def table(settings: Settings, results: Results) -> Table:
    """The measured table, the paper's verdicts beside ours."""
    found = rows(settings, results)
    title = "Table I, measured" + (" (quick)" if settings.quick else "")
    several = ("± is the standard deviation over seeds.",) if settings.seeds > 1 else ()
    return Table(title, [_values(r) for r in found], [_shown(r) for r in found], NOTES + several)


def _values(row: Row) -> dict[str, Any]:
    ours, paper = row.verdict(), PAPER.get(row.name)
    accuracies = [(place, row.accuracies(place)) for place in PLACES]
    return {
        "method": row.name,
        "iterations": max((r.iteration for r in row.runs.values()), default=None),
        **{f"accuracy_{_key(p)}": mean(a) for p, a in accuracies},
        **{f"accuracy_{_key(p)}_std": spread(a) for p, a in accuracies},
        **{f"seeds_{_key(p)}": len(a) for p, a in accuracies},
        "drop": row.drop(),
        "below_uncompressed_non_iid": row.gap(),
        "compression_up": row.up(),
        **{f"compression_up_{_key(p)}": row.up(p) for p in PLACES},
        "compression_down": row.down(),
        **dict(zip(_COLUMNS, ours.words() if ours else ("",) * 3, strict=True)),
        **dict(zip(_PAPERS, paper.words() if paper else ("",) * 3, strict=True)),
        "differs": " ".join(ours.differing(paper)) if ours and paper else "",
    }


_COLUMNS = ("down_compressed", "rate", "robust")
_PAPERS = tuple(f"paper_{column}" for column in _COLUMNS)


def _shown(row: Row) -> dict[str, str]:
    ours, paper, drop = row.verdict(), PAPER.get(row.name), row.drop()
    differing = ours.differing(paper) if ours and paper else []
    down, rate, robust = ours.words() if ours else ("–",) * 3
    return {
        "method": row.label,
        "iid": percent(row.accuracies(IID)),
        "non-iid": percent(row.accuracies(NON_IID)),
        "drop": "–" if drop is None else f"{100 * drop:z.1f}",
        "up": _times(row.up()),
        "down": _times(row.down()),
        "down?": down,
        "rate": rate,
        "robust": robust,
        "paper": "/".join(paper.words()) if paper else "–",
        "": f"≠ {', '.join(differing)}" if differing else "",
    }


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """Compression up against accuracy; a method's fall from iid to non-iid is a line."""
    figure.set_size_inches(10, 6)
    axes = figure.add_subplot()
    found = [row for row in rows(settings, results) if row.runs]
    for rank, row in enumerate(found):
        points = {p: (row.up(p), 100 * fmean(a)) for p in PLACES if (a := row.accuracies(p))}
        line = {"label": row.label, **look(rank)}
        axes.plot(*zip(*points.values(), strict=True), **line)
        if NON_IID in points:
            hollow = {**look(rank), "markerfacecolor": "white", "linestyle": "none"}
            axes.plot(*points[NON_IID], **hollow)
    dotted = {"color": "#888888", "linewidth": 1, "linestyle": ":"}
    axes.axvline(STRONG, **dotted)
    dense = [r.accuracy for row in found[:1] for (p, _), r in row.dense.items() if p == NON_IID]
    if dense:
        axes.axhline(100 * (fmean(dense) - NEAR), **dotted)
    axes.set(
        xscale="log",
        xlabel=f"compression up: uncompressed bytes / bytes sent (dotted: ×{STRONG:g})",
        ylabel=f"accuracy in % (dotted: {100 * NEAR:g} points below uncompressed, non-iid)",
        title=f"Table I, measured (filled: iid, white: one class for each client)\n{settings.note}",
    )
    axes.xaxis.set_major_formatter(lambda x, _place: f"×{x:g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if found:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return "nothing sent" if math.isinf(ratio) else f"×{format_number(ratio)}"


def _key(place: str) -> str:
    return place.replace("-", "_")
