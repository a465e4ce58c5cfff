"""Judgements: what each comparison says about a claim, and how many of them support it."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtern import StoreError
from fedtern.report import format_iterations
from fedtern.runs import Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.claims import CLAIMS, NOTES, Claim
from fedtern_paper.comparison_groups import FinishedRuns, group_runs
from fedtern_paper.results import Results
from fedtern_paper.significance import Comparison

_ORDER = {(claim.name, claim.statement): i for i, claim in enumerate(CLAIMS)}


class Judgement(NamedTuple):
    """A row of claims.csv: a comparison, and the claim that it tests."""

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
    def of(cls, claim: Claim, comparison: Comparison) -> Judgement:
        """Return the judgement of a comparison on a claim."""
        key = comparison.group.key
        return cls(
            claim=claim.name,
            statement=claim.statement,
            task=key.task,
            environment=comparison.group.description,
            iterations=key.iterations,
            task_iterations=key.task_iterations,
            what=comparison.what,
            ours=comparison.first,
            other=comparison.second,
            margin=comparison.margin if math.isfinite(comparison.margin) else None,
            spread=comparison.spread,
            holds=comparison.holds,
            close=comparison.close,
        )

    @property
    def short(self) -> bool:
        """Whether its runs have fewer iterations than the task."""
        return self.iterations < self.task_iterations

    @property
    def order(self) -> tuple[int, str]:
        """Sort key: claims in the paper's order, then tasks by name."""
        return _ORDER[self.claim, self.statement], self.task

    @property
    def shown(self) -> dict[str, str]:
        """The row for people."""
        verdict = "holds" if self.holds else "does not hold"
        return {
            "claim": self.claim,
            "task": self.task,
            "environment": self.environment,
            "iterations": format_iterations(self.iterations, self.task_iterations),
            "what": self.what,
            "first": self.ours,
            "second": self.other,
            "verdict": f"{verdict}, close" if self.close else verdict,
        }


def read_judgements(path: Path) -> list[Judgement]:
    """Read the claims.csv of an earlier check; [] if there is none.

    Raises:
        StoreError: The file was not written by this version.

    """
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [_parse(row) for row in csv.DictReader(file, strict=True)]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise StoreError(
            f"{path} was not written by this version of `fedtern reproduce --check` ({error}); move"
            " it away, or check all tasks together, without --task"
        ) from error


def _parse(row: Mapping[str, Any]) -> Judgement:
    if (row["claim"], row["statement"]) not in _ORDER:
        raise ValueError(f"unknown claim {row['statement']!r}")
    return Judgement(**{
        **row,
        "iterations": int(row["iterations"]),
        "task_iterations": int(row["task_iterations"]),
        **{name: float(row[name]) if row[name] else None for name in ("margin", "spread")},
        **{name: _BOOLS[row[name]] for name in ("holds", "close")},
    })  # fmt: skip


_BOOLS = {"True": True, "False": False}


def judge(finished: FinishedRuns) -> list[Judgement]:
    """Test every claim in every environment that the finished runs allow."""
    groups = group_runs(finished)
    return [
        Judgement.of(claim, comparison)
        for claim in CLAIMS
        for comparison in claim.comparisons(groups)
    ]


def verdict(judgements: Sequence[Judgement]) -> str:
    """Return the verdict on a claim in words."""
    held = sum(judgement.holds for judgement in judgements)
    if not judgements:
        return "nothing to compare yet"
    if held == len(judgements):
        return "held"
    return "held in part" if held else "did not hold here"


def verdicts(results: Results, cells: Sequence[Experiment]) -> list[str]:
    """Return a sentence for each claim that the finished runs of some cells can test."""
    finished = {
        cell.digest: (cell, evaluations)
        for cell in cells
        if (evaluations := results.evaluations(cell))
    }
    judgements = judge(finished.values())
    tested = {claim: found for claim in CLAIMS if (found := _about(claim, judgements))}
    return [
        f"{claim.name} ({claim.statement}): {_describe(found)}." for claim, found in tested.items()
    ]


def _describe(judgements: Sequence[Judgement]) -> str:
    """Return the verdict with its counts; shortened runs do not count for the verdict."""
    full, short = _by_length(judgements)
    parts = []
    if full:
        parts.append(f"{verdict(full)}, in {_count(full)} comparisons{_count_close(full)}")
    if short:
        parts.append(f"in {_count(short)} comparisons of shorter runs{_count_close(short)}")
    return "; ".join(parts)


def _by_length(judgements: Sequence[Judgement]) -> tuple[list[Judgement], list[Judgement]]:
    """Separate judgements by full runs from those by shortened runs."""
    full = [judgement for judgement in judgements if not judgement.short]
    short = [judgement for judgement in judgements if judgement.short]
    return full, short


def summarise(judgements: Iterable[Judgement]) -> tuple[Table, Table]:
    """Return a table with a row for each claim, and one with a row for each judgement."""
    ordered = sorted(judgements, key=lambda judgement: judgement.order)
    rows = [_summary_row(claim, _about(claim, ordered)) for claim in CLAIMS]
    summary = Table(
        "The paper's claims", [values for values, _ in rows], [shown for _, shown in rows], NOTES
    )
    details = Table(
        "Each comparison", [each._asdict() for each in ordered], [each.shown for each in ordered]
    )
    return summary, details


def _about(claim: Claim, judgements: Sequence[Judgement]) -> list[Judgement]:
    key = (claim.name, claim.statement)
    return [each for each in judgements if (each.claim, each.statement) == key]


def _count(judgements: Sequence[Judgement]) -> str:
    return f"{sum(each.holds for each in judgements)} of {len(judgements)}"


def _count_close(judgements: Sequence[Judgement]) -> str:
    """Return the number of close judgements, or "" if there are none."""
    number = sum(each.close for each in judgements)
    return f", {number} of them close" if number else ""


def _summary_row(
    claim: Claim, judgements: Sequence[Judgement]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a claim's row for programs and for people."""
    full, short = _by_length(judgements)
    close = sum(each.close for each in full)
    head = {
        "claim": claim.name,
        "statement": claim.statement,
        "verdict": verdict(full) if full or not short else "in shorter runs only",
    }
    values = {
        **head,
        "holds": sum(each.holds for each in full),
        "comparisons": len(full),
        "close": close,
        "holds_shorter": sum(each.holds for each in short),
        "comparisons_shorter": len(short),
    }
    shown = {
        **head,
        "holds in": _count(full) if full else "",
        "close": str(close or ""),
        "in shorter runs": _count(short) if short else "",
    }
    return values, shown
