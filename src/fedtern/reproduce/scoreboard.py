"""How the paper's claims fare, in finished runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fedtern.engines.local import Round
from fedtern.experiments import Experiment
from fedtern.reproduce.artefact import Table
from fedtern.reproduce.claims import CLAIMS, NOTES, Claim
from fedtern.reproduce.margins import Comparison
from fedtern.reproduce.results import Results
from fedtern.reproduce.scenes import gather


def verdict(found: Sequence[Comparison]) -> str:
    """How a claim fared, in the words of a reader."""
    held = sum(c.holds for c in found)
    if not found:
        return "not yet run"
    if held == len(found):
        return "held"
    return "held in part" if held else "did not hold here"


def verdicts(results: Results, cells: Sequence[Experiment]) -> list[str]:
    """A line for each claim that some cells have anything to say about."""
    recorded = {c.digest: (c, rounds) for c in cells if (rounds := results.rounds(c))}
    scenes = gather(recorded.values())
    asked = [(claim, claim.comparisons(scenes)) for claim in CLAIMS]
    return [
        f"{claim.name} ({claim.statement}): {verdict(found)}, in"
        f" {_count(found)} comparisons{_close(found)}."
        for claim, found in asked
        if found
    ]


def _count(found: Sequence[Comparison]) -> str:
    return f"{sum(c.holds for c in found)} of {len(found)}"


def _close(found: Sequence[Comparison]) -> str:
    """How many verdicts are within the noise, if there are any."""
    number = sum(c.close for c in found)
    return f", {number} of them close" if number else ""


def check(recorded: Iterable[tuple[Experiment, list[Round]]]) -> tuple[Table, Table]:
    """A row for each claim, and a row for each comparison that went into them."""
    scenes = gather(recorded)
    asked = [(claim, claim.comparisons(scenes)) for claim in CLAIMS]
    rows = [_summed(claim, found) for claim, found in asked]
    values, shown = [row for row, _ in rows], [row for _, row in rows]
    summary = Table("The paper's claims", values, shown, NOTES)
    each = [(claim, c) for claim, found in asked for c in found]
    details = [_values(claim, c) for claim, c in each]
    return summary, Table("Each comparison", details, [_shown(claim, c) for claim, c in each])


def _summed(claim: Claim, found: Sequence[Comparison]) -> tuple[dict[str, Any], dict[str, str]]:
    """A claim's row, for programs and for people."""
    full = [c for c in found if not c.scene.key.short]
    short = [c for c in found if c.scene.key.short]
    said = verdict(full) if full or not short else "in shorter runs only"
    close = sum(c.close for c in full)
    head = {"claim": claim.name, "statement": claim.statement, "verdict": said}
    values = {
        **head,
        "holds": sum(c.holds for c in full),
        "comparisons": len(full),
        "close": close,
        "holds_shorter": sum(c.holds for c in short),
        "comparisons_shorter": len(short),
    }
    shown = {
        **head,
        "holds in": _count(full) if full else "",
        "close": str(close or ""),
        "in shorter runs": _count(short) if short else "",
    }
    return values, shown


def _values(claim: Claim, found: Comparison) -> dict[str, Any]:
    key = found.scene.key
    return {
        "claim": claim.name,
        "statement": claim.statement,
        "task": key.task,
        "environment": found.scene.words,
        "iterations": key.iterations,
        "task_iterations": key.own_iterations,
        "what": found.what,
        "ours": found.ours,
        "other": found.other,
        "margin": found.margin if math.isfinite(found.margin) else None,
        "spread": found.spread,
        "holds": found.holds,
    }


def _shown(claim: Claim, found: Comparison) -> dict[str, str]:
    key = found.scene.key
    return {
        "claim": claim.name,
        "task": key.task,
        "environment": found.scene.words,
        "iterations": f"{key.iterations:,}" + f" of {key.own_iterations:,}" * key.short,
        "what": found.what,
        "first": found.ours,
        "second": found.other,
        "verdict": ("holds" if found.holds else "does not hold") + ", close" * found.close,
    }
