"""A claim of the paper in one place, as it is written down: what was compared, and who won."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedtern.core.errors import StoreError
from fedtern.report.formatting import format_iterations
from fedtern_paper.claims import CLAIMS, Claim
from fedtern_paper.significance import Comparison

_ORDER = {(claim.name, claim.statement): i for i, claim in enumerate(CLAIMS)}


class Judgement(NamedTuple):
    """A row of claims.csv."""

    claim: str
    statement: str
    task: str
    environment: str
    iterations: int
    task_iterations: int
    what: str
    ours: str
    other: str
    margin: float | None
    spread: float | None
    holds: bool
    close: bool

    @classmethod
    def of(cls, claim: Claim, found: Comparison) -> Judgement:
        """What a comparison says of a claim."""
        key = found.scene.key
        return cls(
            claim.name,
            claim.statement,
            key.task,
            found.scene.words,
            key.iterations,
            key.own_iterations,
            found.what,
            found.ours,
            found.other,
            found.margin if math.isfinite(found.margin) else None,
            found.spread,
            found.holds,
            found.close,
        )

    @property
    def short(self) -> bool:
        """Whether its runs ended before the task would have them end."""
        return self.iterations < self.task_iterations

    @property
    def order(self) -> tuple[int, str]:
        """Claims as the paper has them, then tasks by their names."""
        return _ORDER[self.claim, self.statement], self.task

    @property
    def shown(self) -> dict[str, str]:
        """The row for people."""
        return {
            "claim": self.claim,
            "task": self.task,
            "environment": self.environment,
            "iterations": format_iterations(self.iterations, self.task_iterations),
            "what": self.what,
            "first": self.ours,
            "second": self.other,
            "verdict": ("holds" if self.holds else "does not hold") + ", close" * self.close,
        }


def read_judgements(path: Path) -> list[Judgement]:
    """What an earlier check wrote; nothing if there was none."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_judgement(row) for row in csv.DictReader(file, strict=True)]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise StoreError(
            f"{path} is not what this version of `fedtern reproduce --check` writes ({error}): move"
            " it away, or check all tasks together, without --task"
        ) from error
    return rows


def _judgement(row: Mapping[str, Any]) -> Judgement:
    if (row["claim"], row["statement"]) not in _ORDER:
        raise ValueError(f"no claim is {row['statement']!r}")
    return Judgement(**{
        **row,
        "iterations": int(row["iterations"]),
        "task_iterations": int(row["task_iterations"]),
        **{name: float(row[name]) if row[name] else None for name in ("margin", "spread")},
        **{name: _BOOLS[row[name]] for name in ("holds", "close")},
    })  # fmt: skip


_BOOLS = {"True": True, "False": False}
