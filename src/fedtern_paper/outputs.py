"""Write artefacts as files: CSV, Markdown and pictures."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

from fedtern.core.extras import require
from fedtern.store import write_atomic
from fedtern_paper.artefact import Artefact, Table
from fedtern_paper.results import Results
from fedtern_paper.settings import Settings

CLAIMS_CSV = "claims.csv"

_WORD = re.compile(r"[^\W\d_]{4}")  # not units and abbreviations such as MB or n.a.


def to_csv(table: Table) -> str:
    """Return the exact values of a table as CSV.

    >>> to_csv(Table("t", [{"method": "sgd", "drop": None}], [])).splitlines()
    ['method,drop', 'sgd,']
    """
    text = io.StringIO()
    writer = csv.DictWriter(
        text, list(table.values[0]) if table.values else [], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(table.values)
    return text.getvalue()


def to_markdown(table: Table, *, lead: str = "", picture: str | None = None, level: int = 1) -> str:
    """Return the formatted values of a table as Markdown, with its notes.

    Args:
        table: The table.
        lead: Text between the title and the table.
        picture: Path of a picture to include below the notes.
        level: Level of the heading.

    >>> print(to_markdown(Table("T", [], [{"method": "sgd", "up": "×1"}], ["Up: sent up."])))
    # T
    <BLANKLINE>
    | method | up |
    |---|---:|
    | sgd | ×1 |
    <BLANKLINE>
    - Up: sent up.
    <BLANKLINE>
    """
    columns = list(table.shown[0]) if table.shown else []
    lines = [f"{'#' * level} {table.title}", "", *([lead, ""] if lead else [])]
    if columns:
        sides = [
            "---",
            *("---" if _contains_words(table, name) else "---:" for name in columns[1:]),
        ]
        lines += [_line(columns), f"|{'|'.join(sides)}|"]
        lines += [_line(list(row.values())) for row in table.shown]
    lines += ["", *(f"- {note}" for note in table.notes), ""]
    if picture is not None:
        lines += [f"![{table.title}]({picture})", ""]
    return "\n".join(lines)


def _contains_words(table: Table, column: str) -> bool:
    """Return whether a column contains words: they are aligned left, numbers right."""
    return any(_WORD.search(row[column]) for row in table.shown)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def write_table(
    table: Table, stem: Path, *, lead: str = "", pictures: list[Path] | None = None
) -> list[Path]:
    """Write ``stem``.csv and ``stem``.md, and return their paths."""
    picture = next((p.name for p in pictures or [] if p.suffix == ".svg"), None)
    texts = {".csv": to_csv(table), ".md": to_markdown(table, lead=lead, picture=picture)}
    written = []
    for suffix, text in texts.items():
        written.append(stem.with_name(stem.name + suffix))
        write_atomic(written[-1], [text.encode()])
    return written


def write_claims(summary: Table, details: Table, directory: Path, *, lead: str) -> list[Path]:
    """Write both tables to claims.md and the details to claims.csv, and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    page = to_markdown(summary, lead=lead) + "\n" + to_markdown(details, level=2)
    texts = {directory / "claims.md": page, directory / CLAIMS_CSV: to_csv(details)}
    for path, text in texts.items():
        write_atomic(path, [text.encode()])
    return list(texts)


def write_pictures(
    artefact: Artefact, settings: Settings, results: Results, stem: Path
) -> list[Path]:
    """Draw ``stem``.png and ``stem``.svg, and return their paths.

    The same runs give the same bytes.
    """
    if artefact.draw is None:
        return []
    matplotlib: Any = require("matplotlib", "report", "drawing")
    figure = require("matplotlib.figure", "report", "drawing").Figure(layout="constrained")
    written = []
    with matplotlib.rc_context({"svg.hashsalt": "fedtern", "font.size": 10}):
        artefact.draw(settings, results, figure)
        for suffix, extra in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
            picture = io.BytesIO()
            figure.savefig(picture, format=suffix[1:], **extra)
            written.append(stem.with_name(stem.name + suffix))
            write_atomic(written[-1], [picture.getvalue()])
    return written
