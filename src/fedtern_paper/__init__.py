"""Reproduction of the paper: its tables, figures, claims and lessons.

Sattler, Wiedemann, Müller and Samek, "Robust and Communication-Efficient Federated Learning from
Non-IID Data" (2019). A table or figure is an ``Artefact``: a grid of runs, and the table and
picture made from them. This package uses only the public API of ``fedtern``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedtern_paper.artefact import Artefact, Table
    from fedtern_paper.catalogue import ARTEFACTS
    from fedtern_paper.grid import run_cells
    from fedtern_paper.lessons import GUIDANCE
    from fedtern_paper.results import Results
    from fedtern_paper.settings import Settings

_MODULES = {
    "ARTEFACTS": "catalogue",
    "Artefact": "artefact",
    "GUIDANCE": "lessons",
    "Results": "results",
    "Settings": "settings",
    "Table": "artefact",
    "run_cells": "grid",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: most of them need torch, the lessons do not."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedtern_paper' has no attribute {name!r}")
    return getattr(import_module(f"fedtern_paper.{_MODULES[name]}"), name)


__all__ = [
    "ARTEFACTS",
    "GUIDANCE",
    "Artefact",
    "Results",
    "Settings",
    "Table",
    "run_cells",
]
