"""How the paper's claims fare, in finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedtern.runs import Evaluation, Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.claims import CLAIMS, NOTES, Claim
from fedtern_paper.comparison_groups import gather
from fedtern_paper.judgements import Judgement
from fedtern_paper.results import Results

Recorded = Iterable[tuple[Experiment, list[Evaluation]]]


def judge(recorded: Recorded) -> list[Judgement]:
    """Every claim in every place that finished runs have anything to say about."""
    scenes = gather(recorded)
    return [Judgement.of(claim, found) for claim in CLAIMS for found in claim.comparisons(scenes)]


def verdict(found: Sequence[Judgement]) -> str:
    """How a claim fared, in the words of a reader."""
    held = sum(each.holds for each in found)
    if not found:
        return "nothing to compare yet"
    if held == len(found):
        return "held"
    return "held in part" if held else "did not hold here"


def verdicts(results: Results, cells: Sequence[Experiment]) -> list[str]:
    """A line for each claim that some cells have anything to say about."""
    recorded = {c.digest: (c, rounds) for c in cells if (rounds := results.rounds(c))}
    every = judge(recorded.values())
    asked = {claim: found for claim in CLAIMS if (found := _about(claim, every))}
    return [f"{c.name} ({c.statement}): {_words(found)}." for c, found in asked.items()]


def _words(found: Sequence[Judgement]) -> str:
    """How a claim fared, with its counts; shorter runs decide nothing."""
    full, short = _by_length(found)
    told = [f"{verdict(full)}, in {_count(full)} comparisons{_close(full)}"] if full else []
    told += [f"in {_count(short)} comparisons of shorter runs{_close(short)}"] if short else []
    return "; ".join(told)


def _by_length(found: Sequence[Judgement]) -> tuple[list[Judgement], list[Judgement]]:
    """Those of runs as long as their task has them, and the others."""
    return [e for e in found if not e.short], [e for e in found if e.short]


def check(judgements: Iterable[Judgement]) -> tuple[Table, Table]:
    """A row for each claim, and a row for each judgement that went into them."""
    every = sorted(judgements, key=lambda each: each.order)  # and otherwise as they come
    rows = [_summed(claim, _about(claim, every)) for claim in CLAIMS]
    values, shown = [row for row, _ in rows], [row for _, row in rows]
    summary = Table("The paper's claims", values, shown, NOTES)
    details = [each._asdict() for each in every]
    return summary, Table("Each comparison", details, [each.shown for each in every])


def _about(claim: Claim, every: Sequence[Judgement]) -> list[Judgement]:
    return [e for e in every if (e.claim, e.statement) == (claim.name, claim.statement)]


def _count(found: Sequence[Judgement]) -> str:
    return f"{sum(each.holds for each in found)} of {len(found)}"


def _close(found: Sequence[Judgement]) -> str:
    """How many verdicts are within the noise, if there are any."""
    number = sum(each.close for each in found)
    return f", {number} of them close" if number else ""


def _summed(claim: Claim, found: Sequence[Judgement]) -> tuple[dict[str, Any], dict[str, str]]:
    """A claim's row, for programs and for people."""
    full, short = _by_length(found)
    said = verdict(full) if full or not short else "in shorter runs only"
    close = sum(each.close for each in full)
    head = {"claim": claim.name, "statement": claim.statement, "verdict": said}
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
