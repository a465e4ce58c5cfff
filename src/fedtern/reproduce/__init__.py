"""The paper's tables and figures, each a grid of runs and what is made of it.

Adding one is a module and a row of ``ARTEFACTS``.
"""

from __future__ import annotations

from fedtern.reproduce.artefact import Artefact, Table
from fedtern.reproduce.catalogue import ARTEFACTS
from fedtern.reproduce.grid import run_cells
from fedtern.reproduce.results import Results
from fedtern.reproduce.settings import Settings

__all__ = [
    "ARTEFACTS",
    "Artefact",
    "Results",
    "Settings",
    "Table",
    "run_cells",
]
