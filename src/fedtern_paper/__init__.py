"""The paper's tables and figures, each a grid of runs and what is made of it.

Adding one is a module and a row of ``ARTEFACTS``.
"""

from __future__ import annotations

from fedtern_paper.artefact import Artefact, Table
from fedtern_paper.catalogue import ARTEFACTS
from fedtern_paper.grid import run_cells
from fedtern_paper.results import Results
from fedtern_paper.settings import Settings

__all__ = [
    "ARTEFACTS",
    "Artefact",
    "Results",
    "Settings",
    "Table",
    "run_cells",
]
