"""All tables and figures, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fedtern_paper import (
    convergence,
    figure3,
    figure11,
    findings,
    heatmaps,
    sweeps,
    table1,
    table4,
)
from fedtern_paper.artefact import Artefact, Table
from fedtern_paper.convergence import FIGURE_2, FIGURE_10, Curves
from fedtern_paper.heatmaps import FIGURE_4, FIGURE_5, FIGURE_12, HeatMap
from fedtern_paper.results import Results
from fedtern_paper.settings import ALL_TASKS, Settings
from fedtern_paper.sweeps import BALANCE, BATCH, CLASSES, PARTICIPATION, Sweep


def _numbered(
    name: str, table: Callable[[Settings, Results], Table]
) -> Callable[[Settings, Results], Table]:
    """Return a function that puts the figure's number before the title of its table."""

    def numbered(settings: Settings, results: Results) -> Table:
        made = table(settings, results)
        number = name.removeprefix("fig")
        title = made.title[0].lower() + made.title[1:]
        return replace(made, title=f"Figure {number}: {title}")

    return numbered


def _sweep(name: str, sweep: Sweep, about: str, task: str = Settings.task) -> Artefact:
    return Artefact(
        name,
        about,
        partial(sweeps.cells, sweep),
        _numbered(name, partial(sweeps.table, sweep)),
        partial(sweeps.draw, sweep),
        restricted_by=("methods", "values", "places", "momentum"),
        task=task,
    )


def _curves(
    name: str,
    curves: Curves,
    about: str,
    findings_of: Callable[[Settings, Results], list[str]],
    *restricted_by: str,
) -> Artefact:
    return Artefact(
        name,
        about,
        curves.cells,
        _numbered(name, partial(convergence.table, curves)),
        partial(convergence.draw, curves),
        restricted_by=("methods", *restricted_by),
        findings=findings_of,
    )


def _heat_map(
    name: str,
    heat_map: HeatMap,
    about: str,
    iteration_share: float,
    findings_of: Callable[[Settings, Results], list[str]],
) -> Artefact:
    return Artefact(
        name,
        about,
        heat_map.cells,
        _numbered(name, partial(heatmaps.table, heat_map)),
        partial(heatmaps.draw, heat_map),
        restricted_by=("places",),
        iteration_share=iteration_share,
        findings=findings_of,
    )


_FIGURE_3 = Artefact(
    "fig3",
    "agreement of gradient signs, iid and non-iid (needs no runs)",
    figure3.cells,
    _numbered("fig3", figure3.table),
    figure3.draw,
    restricted_by=(),
    findings=findings.larger_batches_help_only_iid,
    prepare=figure3.measure,
)
_FIGURE_2 = _curves(
    "fig2",
    FIGURE_2,
    "convergence, iid and non-iid",
    findings.topk_suffers_least,
    "places",
    "momentum",
)
_FIGURE_4 = _heat_map(
    "fig4",
    FIGURE_4,
    "accuracy against upload and download sparsity",
    4 / 5,
    findings.sparse_downloads_cost_little,
)
_FIGURE_5 = _heat_map(
    "fig5",
    FIGURE_5,
    "sparse minus ternary updates, by upload and download sparsity",
    4 / 5,
    findings.ternary_values_cost_little,
)
_FIGURE_12 = _heat_map(
    "fig12",
    FIGURE_12,
    "accuracy against sparsity and delay",
    1 / 2,
    findings.sparsity_beats_delay,
)
_TABLE4 = Artefact(
    "table4",
    "MB up and down until a target accuracy, beside the paper's numbers",
    table4.cells,
    table4.table,
    table4.draw,
)
_FIGURE_10 = _curves(
    "fig10",
    FIGURE_10,
    "convergence in iterations and in uploaded bits",
    findings.stc_needs_fewer_iterations,
)
_FIGURE_11 = Artefact(
    "fig11",
    "summary: STC and FedAvg in three hard environments, and MB until a target",
    figure11.cells,
    figure11.table,
    figure11.draw,
    restricted_by=(),
)
_TABLE1 = Artefact(
    "table1",
    "accuracy and compression of every method, iid and non-iid, and Table I's verdicts",
    table1.cells,
    table1.table,
    table1.draw,
)

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for artefact in (
        _TABLE1,
        _TABLE4,
        _FIGURE_2,
        _FIGURE_3,
        _FIGURE_4,
        _FIGURE_5,
        _sweep("fig6", CLASSES, "accuracy against classes per client, 10/10 and 10/100"),
        _sweep("fig7", BATCH, "accuracy against batch size, 2 classes per client and iid"),
        _sweep("fig8", PARTICIPATION, "accuracy against participation, 5/5 to 5/400 clients"),
        _sweep("fig9", BALANCE, "accuracy against balancedness, 5/200 clients"),
        _FIGURE_10,
        _FIGURE_11,
        _FIGURE_12,
        _sweep("fig13", CLASSES, "Figure 6 for all four tasks", ALL_TASKS),
        _sweep("fig14", PARTICIPATION, "Figure 8 for all four tasks", ALL_TASKS),
        _sweep("fig15", BATCH, "Figure 7 for all four tasks", ALL_TASKS),
        _sweep("fig16", BALANCE, "Figure 9 for all four tasks", ALL_TASKS),
    )
}
"""All artefacts by name, in the order of ``fedtern reproduce --list``."""
