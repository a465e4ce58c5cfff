"""The paper's tables and figures, each a grid of runs and what is made of it.

Adding one is a module and a row of ``ARTEFACTS``.
"""

from __future__ import annotations

from fedtern.reproduce import table1
from fedtern.reproduce.artefact import Artefact, Settings, Table
from fedtern.reproduce.grid import run_cells
from fedtern.reproduce.results import Results

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for artefact in (
        Artefact(
            "table1",
            "every method: accuracy iid and non-iid, compression each way, Table I's verdicts",
            table1.cells,
            table1.table,
            table1.draw,
        ),
    )
}
"""Every table and figure by the name it has on the command line."""

__all__ = [
    "ARTEFACTS",
    "Artefact",
    "Results",
    "Settings",
    "Table",
    "run_cells",
]
