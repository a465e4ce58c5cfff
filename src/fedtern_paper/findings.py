"""What the paper says of a single figure, and whether its runs show it here as well."""

from __future__ import annotations

import math
from statistics import fmean
from typing import NamedTuple

from fedtern.report.formatting import join_words
from fedtern_paper import figure3, table4
from fedtern_paper.convergence import FIGURE_2, FIGURE_10
from fedtern_paper.degradation import SLIGHT
from fedtern_paper.heatmaps import FIGURE_4, FIGURE_5, FIGURE_12, PLACES, HeatMap, numbers
from fedtern_paper.results import Results
from fedtern_paper.scores import Score
from fedtern_paper.settings import Settings
from fedtern_paper.verdicts import IID, NON_IID

_SLIGHT = 100 * SLIGHT
_COST = 3.0  # points, by the caption of Figure 4


def _finding(statement: str, holds: bool, evidence: str) -> list[str]:
    return [f"The paper: {statement}. {'Held' if holds else 'Did not hold'} here: {evidence}."]


def topk_suffers_least(settings: Settings, results: Results) -> list[str]:
    """Figure 2: what non-iid data costs each method."""
    if settings.places or settings.methods:  # a part of the figure does not show it
        return []
    places = [place for place in FIGURE_2.places if place != IID]
    methods = [method for method in FIGURE_2.methods if method != "sgd"]
    falls: dict[str, list[float]] = {}
    for method in methods:
        easy, *hard = (
            Score.of(results, FIGURE_2.seeds(settings, place, method)).value
            for place in (IID, *places)
        )
        if easy is not None:
            falls[method] = [100 * (easy - reached) for reached in hard if reached is not None]
    if any(len(falls.get(method, ())) < len(places) for method in methods):
        return []
    least = [min(methods, key=lambda method: falls[method][i]) for i in range(len(places))]
    told = [f"{settings.label(m)} {' and '.join(f'{f:z.1f}' for f in falls[m])}" for m in methods]
    holds = all(method.startswith("topk") for method in least)
    said = f"two classes and one class cost {join_words(told)} points"
    return _finding("top-k suffers least from non-iid data", holds, said)


class _Pace(NamedTuple):
    """Bytes that go up in an iteration, and iterations to a target that every seed reaches."""

    bytes_up: float
    iterations: float

    @classmethod
    def of(cls, method: str, settings: Settings, results: Results) -> _Pace | None:
        runs = [rounds for c in settings.with_seeds(method) if (rounds := results.rounds(c))]
        if not runs:
            return None
        there = [r.iteration for r in table4.traffic(method, settings, results)]
        up = fmean(rounds[-1].up_bytes_mean / rounds[-1].iteration for rounds in runs)
        return cls(up, fmean(there) if len(there) == len(runs) else math.inf)

    def __str__(self) -> str:
        return f"{self.iterations:,.0f}" if math.isfinite(self.iterations) else "n.a."


def fewer_iterations_at_like_rates(settings: Settings, results: Results) -> list[str]:
    """Figure 10: STC against FedAvg that sends about as much up in an iteration."""
    if settings.methods:  # a part of the figure does not show it
        return []
    paces = {m: pace for m in FIGURE_10.methods if (pace := _Pace.of(m, settings, results))}
    ours, others = ([m for m in paces if m.startswith(name)] for name in ("stc", "fedavg"))
    told, holds = [], True
    for method in ours if others else ():
        mine = paces[method]
        like = min(others, key=lambda m: abs(math.log(paces[m].bytes_up / mine.bytes_up)))
        theirs = paces[like]
        if min(mine.iterations, theirs.iterations) < math.inf:
            holds = holds and mine.iterations < theirs.iterations
            told.append(f"{settings.label(method)} {mine} ({settings.label(like)}: {theirs})")
    if not told:
        return []
    statement = "STC takes fewer iterations than FedAvg with a comparable compression rate"
    goal = 100 * table4.target(settings, results)
    beside = "beside the FedAvg that uploads most nearly as much in an iteration"
    return _finding(statement, holds, f"to {goal:g} %, {beside}, {join_words(told)}")


def signs_of_one_class_stay_wrong(settings: Settings, results: Results) -> list[str]:
    """Figure 3: larger batches help where they are iid."""
    found = figure3.measure(settings, results)
    iid, skewed = (
        [fmean(seeds) for seeds in figure3.alphas(found, place)] for place in (IID, NON_IID)
    )
    last, gain, other = found[0].sizes[-1], iid[-1] - iid[0], skewed[-1] - skewed[0]
    said = f"up to batches of {last} by {gain:.2f} on iid data, by {other:.2f} on one class"
    statement = "α grows with iid batches and stays low with batches of one class"
    holds = gain > 0 and other < gain / 4 and skewed[-1] < iid[-1]
    return _finding(statement, holds, said)


def downloads_may_be_sparse(settings: Settings, results: Results) -> list[str]:
    """Figure 4: what compressed downloads cost."""
    grids = _grids(FIGURE_4, settings, results)
    costs = [row[0] - cell for grid in grids.values() for row in grid for cell in row[1:]]
    if not _complete(costs):
        return []
    statement = f"sparse downloads cost at most {_COST:g} points"
    return _finding(statement, max(costs) <= _COST, f"{max(costs):z.1f} at most")


def ternary_values_do(settings: Settings, results: Results) -> list[str]:
    """Figure 5: what ternary values cost, or gain."""
    grids = _grids(FIGURE_5, settings, results)
    costs = [cell for grid in grids.values() for row in grid for cell in row]
    if not _complete(costs):
        return []
    statement = "ternary values have a very minor effect, and sometimes help"
    holds = max(map(abs, costs)) <= _SLIGHT and min(costs) < 0
    return _finding(
        statement, holds, f"{max(costs):z.1f} points worse at most, {-min(costs):z.1f} better"
    )


def sparsity_beats_delay(settings: Settings, results: Results) -> list[str]:
    """Figure 12: STC at p = 1/n against FedAvg with n local steps."""
    grids = _grids(FIGURE_12, settings, results)
    steps, rates = FIGURE_12.rows[1], FIGURE_12.columns[1]
    # A round is never split: runs too short for whole ones have been trained for longer.
    whole = [n for n in steps if n > 1 and settings.planned % n == 0]
    pairs = [(steps.index(n), rates.index(1 / n)) for n in whole if 1 / n in rates]
    ahead = {
        place: [grid[0][column] - grid[row][0] for row, column in pairs]
        for place, grid in grids.items()
    }
    lines: list[str] = []
    for place, statement, holds in (
        (IID, "on iid data sparsity and delay do alike", lambda d: abs(d) <= _SLIGHT),
        (NON_IID, "on non-iid data sparsity is better than a comparable delay", lambda d: d > 0),
    ):
        if place in ahead and _complete(found := ahead[place]):
            told = [
                f"{d:+.1f} (p = 1/{steps[row]:g})" for d, (row, _) in zip(found, pairs, strict=True)
            ]
            said = f"STC is {join_words(told)} points from FedAvg with n = 1/p"
            lines += _finding(statement, all(map(holds, found)), said)
    return lines


def _grids(heat: HeatMap, settings: Settings, results: Results) -> dict[str, list[list[float]]]:
    return {p: numbers(heat, settings, results, p) for p in settings.choose_places(PLACES)}


def _complete(values: list[float]) -> bool:
    return bool(values) and all(map(math.isfinite, values))
