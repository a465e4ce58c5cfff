"""Statements of the paper about single figures, and whether finished runs confirm them."""

from __future__ import annotations

import math
from statistics import fmean
from typing import NamedTuple

from fedtern_paper import figure3, table4
from fedtern_paper.convergence import FIGURE_2, FIGURE_10
from fedtern_paper.heatmaps import FIGURE_4, FIGURE_5, FIGURE_12, PLACES, HeatMap
from fedtern_paper.published import DOWNLOAD_COST
from fedtern_paper.results import Results, Score
from fedtern_paper.settings import IID, NON_IID, Settings
from fedtern_paper.thresholds import SLIGHT_DIFFERENCE

_SLIGHT_POINTS = 100 * SLIGHT_DIFFERENCE
_DOWNLOAD_POINTS = 100 * DOWNLOAD_COST


def _finding(statement: str, holds: bool, evidence: str) -> list[str]:
    return [f"The paper: {statement}. {'Held' if holds else 'Did not hold'} here. {evidence}."]


def topk_suffers_least(settings: Settings, results: Results) -> list[str]:
    """Figure 2: loss of accuracy due to non-iid data."""
    if settings.places or settings.methods:  # a part of the figure cannot show it
        return []
    hard_places = [place for place in FIGURE_2.places if place != IID]
    methods = [method for method in FIGURE_2.methods if method != "sgd"]
    losses: dict[str, list[float]] = {}
    for method in methods:
        easy, *hard = (
            Score.of(results, FIGURE_2.with_seeds(settings, place, method)).value
            for place in (IID, *hard_places)
        )
        if easy is not None:
            losses[method] = [100 * (easy - reached) for reached in hard if reached is not None]
    if any(len(losses.get(method, ())) < len(hard_places) for method in methods):
        return []
    least = [min(methods, key=lambda method: losses[method][i]) for i in range(len(hard_places))]
    costs = [
        f"{settings.label(method)} {' and '.join(f'{loss:z.1f}' for loss in losses[method])}"
        for method in methods
    ]
    holds = all(method.startswith("topk") for method in least)
    evidence = f"Points lost with two classes and with one class per client: {', '.join(costs)}"
    return _finding("top-k suffers least from non-iid data", holds, evidence)


class _Convergence(NamedTuple):
    """Uploaded bytes per iteration, and iterations to the target (inf if a seed missed it)."""

    bytes_up: float
    iterations: float

    @classmethod
    def of(cls, method: str, settings: Settings, results: Results) -> _Convergence | None:
        runs = [
            evaluations
            for cell in settings.with_seeds(method)
            if (evaluations := results.evaluations(cell))
        ]
        if not runs:
            return None
        at_target = table4.evaluations_at_target(method, settings, results)
        iterations = [evaluation.iteration for evaluation in at_target]
        bytes_up = fmean(run[-1].up_bytes_mean / run[-1].iteration for run in runs)
        return cls(bytes_up, fmean(iterations) if len(iterations) == len(runs) else math.inf)

    def __str__(self) -> str:
        return f"{self.iterations:,.0f}" if math.isfinite(self.iterations) else "n.a."


def stc_needs_fewer_iterations(settings: Settings, results: Results) -> list[str]:
    """Figure 10: STC compared with the FedAvg that uploads about as much per iteration."""
    if settings.methods:  # a part of the figure cannot show it
        return []
    measured = {
        method: found
        for method in FIGURE_10.methods
        if (found := _Convergence.of(method, settings, results))
    }
    stc = [method for method in measured if method.startswith("stc")]
    fedavg = [method for method in measured if method.startswith("fedavg")]
    if not fedavg:
        return []
    pairs = []
    holds = True
    for method in stc:
        ours = measured[method]
        rival = min(fedavg, key=lambda m: abs(math.log(measured[m].bytes_up / ours.bytes_up)))
        theirs = measured[rival]
        if min(ours.iterations, theirs.iterations) < math.inf:
            holds = holds and ours.iterations < theirs.iterations
            pairs.append(f"{settings.label(method)} {ours} ({settings.label(rival)}: {theirs})")
    if not pairs:
        return []
    statement = "STC takes fewer iterations than FedAvg with a comparable compression rate"
    target = 100 * table4.target(settings, results)
    evidence = (
        f"Iterations to {target:g} %, each compared with the FedAvg whose uploads per iteration are"
        f" closest: {', '.join(pairs)}"
    )
    return _finding(statement, holds, evidence)


def larger_batches_help_only_iid(settings: Settings, results: Results) -> list[str]:
    """Figure 3: larger batches help only if they are iid."""
    measured = figure3.measure(settings, results)
    iid = [fmean(seeds) for seeds in figure3.alphas(measured, IID)]
    non_iid = [fmean(seeds) for seeds in figure3.alphas(measured, NON_IID)]
    largest = measured[0].sizes[-1]
    iid_gain = iid[-1] - iid[0]
    non_iid_gain = non_iid[-1] - non_iid[0]
    evidence = (
        f"Up to batches of {largest}, it grows by {iid_gain:.2f} on iid data and by"
        f" {non_iid_gain:.2f} on one class"
    )
    statement = "α grows with iid batches and stays low with batches of one class"
    holds = iid_gain > 0 and non_iid_gain < iid_gain / 4 and non_iid[-1] < iid[-1]
    return _finding(statement, holds, evidence)


def sparse_downloads_cost_little(settings: Settings, results: Results) -> list[str]:
    """Figure 4: loss of accuracy due to sparse downloads."""
    grids = _grids(FIGURE_4, settings, results)
    costs = [row[0] - cell for grid in grids.values() for row in grid for cell in row[1:]]
    if not _complete(costs):
        return []
    statement = f"sparse downloads cost at most {_DOWNLOAD_POINTS:g} points"
    evidence = f"The largest cost is {max(costs):z.1f} points"
    return _finding(statement, max(costs) <= _DOWNLOAD_POINTS, evidence)


def ternary_values_cost_little(settings: Settings, results: Results) -> list[str]:
    """Figure 5: loss of accuracy, or gain, due to ternary values."""
    grids = _grids(FIGURE_5, settings, results)
    costs = [cell for grid in grids.values() for row in grid for cell in row]
    if not _complete(costs):
        return []
    statement = "ternary values have a very minor effect, and sometimes help"
    holds = max(map(abs, costs)) <= _SLIGHT_POINTS and min(costs) < 0
    return _finding(
        statement,
        holds,
        f"At most {max(costs):z.1f} points worse, at most {-min(costs):z.1f} points better",
    )


def sparsity_beats_delay(settings: Settings, results: Results) -> list[str]:
    """Figure 12: STC at p = 1/n compared with FedAvg with n local steps."""
    grids = _grids(FIGURE_12, settings, results)
    steps = FIGURE_12.rows.values
    rates = FIGURE_12.columns.values
    # A round is never split: other runs have been trained for longer.
    divisors = [n for n in steps if n > 1 and settings.run_iterations % n == 0]
    pairs = [(steps.index(n), rates.index(1 / n)) for n in divisors if 1 / n in rates]
    differences = {
        place: [grid[0][column] - grid[row][0] for row, column in pairs]
        for place, grid in grids.items()
    }
    sentences: list[str] = []
    for place, statement, holds in (
        (IID, "on iid data, sparsity and delay perform alike", lambda d: abs(d) <= _SLIGHT_POINTS),
        (NON_IID, "on non-iid data, sparsity is better than a comparable delay", lambda d: d > 0),
    ):
        found = differences.get(place, [])
        if _complete(found):
            listed = [
                f"{difference:+.1f} (p = 1/{steps[row]:g})"
                for difference, (row, _) in zip(found, pairs, strict=True)
            ]
            evidence = f"Points of STC above FedAvg with n = 1/p: {', '.join(listed)}"
            sentences += _finding(statement, all(map(holds, found)), evidence)
    return sentences


def _grids(heat_map: HeatMap, settings: Settings, results: Results) -> dict[str, list[list[float]]]:
    places = settings.choose_places(PLACES)
    return {place: heat_map.grid(settings, results, place) for place in places}


def _complete(values: list[float]) -> bool:
    return bool(values) and all(map(math.isfinite, values))
