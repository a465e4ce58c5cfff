"""Table I, measured: which methods compress both ways, strongly, and are robust to non-iid data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from fedtern import METHODS, Environment
from fedtern.report import format_number
from fedtern.runs import Evaluation, Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import rank_style
from fedtern_paper.published import COMPRESSION_VERDICTS
from fedtern_paper.results import Results, format_percent, mean, spread
from fedtern_paper.settings import IID, NON_IID, Settings
from fedtern_paper.thresholds import DOWNLOAD_COMPRESSION, ROBUST_GAP, STRONG_COMPRESSION

BASELINE = "sgd"
DELAYED = "stc:p_up=1/25,p_down=1/25,local_steps=25"  # Appendix C
PLACES = {IID: Environment(), NON_IID: Environment(classes_per_client=1)}

NOTES = (
    "iid, non-iid: final accuracy with ten classes per client and with one; drop: the difference"
    " in points; up, down: the compression in each direction.",
    "Bytes are those of messages that the other side decoded: the mean over a round's clients,"
    " summed over rounds and over both environments.",
    "Up: the bytes of an uncompressed update in every iteration, divided by the uploaded bytes.",
    "Down: the downloaded bytes of the uncompressed run with the same environment and seed,"
    " divided by the downloaded bytes. Both include the updates that clients missed.",
    f"Down?: whether downloads are compressed by more than ×{DOWNLOAD_COMPRESSION:g}. Rate: strong"
    f" if uploads are compressed by more than ×{STRONG_COMPRESSION:g}, the paper's threshold;"
    " otherwise weak.",
    f"Robust: on non-iid data, the final accuracy is at most {100 * ROBUST_GAP:g} points below that"
    " of uncompressed training with the same seed.",
    "Paper: the verdicts of its Table I in the same order (down?/rate/robust); ≠ marks those that"
    " differ from ours.",
)

PlaceAndSeed = tuple[str, int]


class Verdict(NamedTuple):
    """A row of the paper's Table I."""

    down: bool
    strong: bool
    robust: bool

    def words(self) -> tuple[str, str, str]:
        """Return the words that the paper prints."""
        return _yes_or_no(self.down), "strong" if self.strong else "weak", _yes_or_no(self.robust)

    def differing(self, other: Verdict) -> list[str]:
        """Return the names of the columns in which two verdicts differ."""
        names = ("down", "rate", "robust")
        return [name for name, a, b in zip(names, self, other, strict=True) if a != b]


def published_verdict(method: str) -> Verdict | None:
    """Return the paper's verdict on a method with default parameters, if it has one."""
    values = COMPRESSION_VERDICTS.get(method)
    return None if values is None else Verdict(*values)


@dataclass(frozen=True)
class Row:
    """Final evaluations of a method in both environments, and of uncompressed training."""

    name: str
    label: str
    runs: Mapping[PlaceAndSeed, Evaluation]
    dense: Mapping[PlaceAndSeed, Evaluation]

    def accuracies(self, place: str) -> list[float]:
        """Return the final accuracy of each seed."""
        return [run.accuracy for (where, _), run in self.runs.items() if where == place]

    def up(self, *places: str) -> float | None:
        """Return the compression of uploads, relative to a dense update in every iteration."""
        runs = [r for (place, _), r in self.runs.items() if place in (places or (IID, NON_IID))]
        return _ratio(sum(r.dense_bytes for r in runs), sum(r.up_bytes_mean for r in runs))

    def down(self) -> float | None:
        """Return the compression of downloads, relative to the uncompressed run."""
        pairs = [(run, self.dense[key]) for key, run in self.runs.items() if key in self.dense]
        dense = sum(d.down_bytes_mean * r.iteration / d.iteration for r, d in pairs)
        return _ratio(dense, sum(r.down_bytes_mean for r, _ in pairs))

    def drop(self) -> float | None:
        """Return the loss of accuracy from iid to non-iid data."""
        iid = self.accuracies(IID)
        non_iid = self.accuracies(NON_IID)
        return fmean(iid) - fmean(non_iid) if iid and non_iid else None

    def gap(self) -> float | None:
        """Return how far below uncompressed training it ends on non-iid data, for equal seeds."""
        keys = [key for key in self.runs if key[0] == NON_IID and key in self.dense]
        gaps = [self.dense[key].accuracy - self.runs[key].accuracy for key in keys]
        return fmean(gaps) if gaps else None

    def verdict(self) -> Verdict | None:
        """Return the measured verdict; None if runs are missing."""
        up = self.up()
        down = self.down()
        gap = self.gap()
        if up is None or down is None or gap is None or not self.accuracies(IID):
            return None
        # A gap of exactly five points is robust, whatever the rounding of floats.
        robust = gap <= ROBUST_GAP + 1e-9
        return Verdict(down > DOWNLOAD_COMPRESSION, up > STRONG_COMPRESSION, robust)


def _ratio(dense: float, sent: float) -> float | None:
    if not dense:
        return None
    return dense / sent if sent else math.inf


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def methods(settings: Settings) -> list[str]:
    """Return the methods in the rows: SGD, then all methods or those that the user asked for."""
    # topk with its default parameters equals gradient_dropping, stc_plus is stc with other
    # parameters, and grid is for few rounds only.
    others = (BASELINE, "topk", "stc_plus", "grid")
    available = [name for name in METHODS if name not in others] + [DELAYED]
    return settings.choose_methods(available, always=[BASELINE])


def cells(settings: Settings) -> list[Experiment]:
    """Return the experiments: every method, iid and non-iid, with every seed."""
    return [
        settings.experiment(method, environment, seed)
        for method in methods(settings)
        for environment in PLACES.values()
        for seed in range(settings.seeds)
    ]


def rows(settings: Settings, results: Results) -> list[Row]:
    """Return the final evaluations of finished runs, one row per method."""
    dense = _final_evaluations(BASELINE, settings, results)
    return [
        Row(name, settings.label(name), _final_evaluations(name, settings, results), dense)
        for name in methods(settings)
    ]


def _final_evaluations(
    method: str, settings: Settings, results: Results
) -> dict[PlaceAndSeed, Evaluation]:
    final = {}
    for place, environment in PLACES.items():
        for seed in range(settings.seeds):
            evaluations = results.evaluations(settings.experiment(method, environment, seed))
            if evaluations:
                final[place, seed] = evaluations[-1]
    return final


def table(settings: Settings, results: Results) -> Table:
    """Return the measured table, with the paper's verdicts beside ours."""
    found = rows(settings, results)
    title = "Table I, measured" + (" (quick)" if settings.quick else "")
    several_seeds = ("± is the standard deviation over seeds.",) if settings.seeds > 1 else ()
    return Table(
        title,
        [_values(row) for row in found],
        [_shown(row) for row in found],
        NOTES + several_seeds,
    )


def _values(row: Row) -> dict[str, Any]:
    ours = row.verdict()
    paper = published_verdict(row.name)
    accuracies = [(place, row.accuracies(place)) for place in PLACES]
    return {
        "method": row.name,
        "iterations": max((run.iteration for run in row.runs.values()), default=None),
        **{f"accuracy_{_column(p)}": mean(a) for p, a in accuracies},
        **{f"accuracy_{_column(p)}_std": spread(a) for p, a in accuracies},
        **{f"seeds_{_column(p)}": len(a) for p, a in accuracies},
        "drop": row.drop(),
        "below_uncompressed_non_iid": row.gap(),
        "compression_up": row.up(),
        **{f"compression_up_{_column(p)}": row.up(p) for p in PLACES},
        "compression_down": row.down(),
        **dict(zip(_VERDICT_COLUMNS, ours.words() if ours else ("",) * 3, strict=True)),
        **dict(zip(_PAPER_COLUMNS, paper.words() if paper else ("",) * 3, strict=True)),
        "differs": " ".join(ours.differing(paper)) if ours and paper else "",
    }


_VERDICT_COLUMNS = ("down_compressed", "rate", "robust")
_PAPER_COLUMNS = tuple(f"paper_{column}" for column in _VERDICT_COLUMNS)


def _shown(row: Row) -> dict[str, str]:
    ours = row.verdict()
    paper = published_verdict(row.name)
    drop = row.drop()
    differing = ours.differing(paper) if ours and paper else []
    down, rate, robust = ours.words() if ours else ("–",) * 3
    return {
        "method": row.label,
        "iid": format_percent(row.accuracies(IID)),
        "non-iid": format_percent(row.accuracies(NON_IID)),
        "drop": "–" if drop is None else f"{100 * drop:z.1f}",
        "up": _format_factor(row.up()),
        "down": _format_factor(row.down()),
        "down?": down,
        "rate": rate,
        "robust": robust,
        "paper": "/".join(paper.words()) if paper else "–",
        "": f"≠ {', '.join(differing)}" if differing else "",
    }


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """Draw accuracy against upload compression; a line joins a method's iid and non-iid runs."""
    figure.set_size_inches(10, 6)
    axes = figure.add_subplot()
    found = [row for row in rows(settings, results) if row.runs]
    for rank, row in enumerate(found):
        points = {p: (row.up(p), 100 * fmean(a)) for p in PLACES if (a := row.accuracies(p))}
        axes.plot(*zip(*points.values(), strict=True), label=row.label, **rank_style(rank))
        if NON_IID in points:
            hollow = {**rank_style(rank), "markerfacecolor": "white", "linestyle": "none"}
            axes.plot(*points[NON_IID], **hollow)
    dotted = {"color": "#888888", "linewidth": 1, "linestyle": ":"}
    axes.axvline(STRONG_COMPRESSION, **dotted)
    dense = [e.accuracy for row in found[:1] for (p, _), e in row.dense.items() if p == NON_IID]
    if dense:
        axes.axhline(100 * (fmean(dense) - ROBUST_GAP), **dotted)
    axes.set(
        xscale="log",
        xlabel=(
            f"compression up: uncompressed bytes / bytes sent (dotted: ×{STRONG_COMPRESSION:g})"
        ),
        ylabel=f"accuracy in % (dotted: {100 * ROBUST_GAP:g} points below uncompressed, non-iid)",
        title=f"Table I, measured (filled: iid, white: one class for each client)\n{settings.note}",
    )
    axes.xaxis.set_major_formatter(lambda x, _position: f"×{x:g}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if found:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _format_factor(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return "nothing sent" if math.isinf(ratio) else f"×{format_number(ratio)}"


def _column(place: str) -> str:
    return place.replace("-", "_")
