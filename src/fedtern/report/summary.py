"""What happened, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtern.report.formatting import (
    format_bytes,
    format_number,
    format_percent,
    format_value,
    join_words,
)
from fedtern.report.groups import Group
from fedtern.report.results import Result, result

_MOST = 5  # more sentences than this nobody reads
_SPLITS = {
    "iid": "data dealt out at random",
    "dirichlet": "data dealt out by a Dirichlet distribution",
    "natural": "data dealt out by who made it",
}


def title(groups: Sequence[Group]) -> str:
    """What was trained."""
    tasks = _distinct(groups, "task")
    return join_words([format_value(task) for task in tasks]) if tasks else "federated learning"


def summary(groups: Sequence[Group]) -> str:
    """One paragraph: the setting, then each method's accuracy and traffic, the best first."""
    ranked = sorted(groups, key=lambda group: -(_mean(group, "final_accuracy") or -1.0))
    sentences = [_setting(groups), *(_outcome(group) for group in ranked[:_MOST])]
    if more := len(ranked[_MOST:]):
        others = f"{more} are" if more > 1 else "one is"
        sentences.append(f"The other {others} in the table.")
    return " ".join(sentences)


def _setting(groups: Sequence[Group]) -> str:
    count = len(groups)
    runs = sum(len(group.runs) for group in groups)
    what = f"{count} configuration{'s' if count > 1 else ''}"
    if runs > count:
        what += f" in {runs} runs"
    sizes = _distinct(groups, "parameters")
    model = f" ({sizes[0]:,} parameters)" if len(sizes) == 1 and isinstance(sizes[0], int) else ""
    where = _environment(_distinct(groups, "environment"))
    iterations = _iterations(groups)
    measured = any(group.evaluated for group in groups)
    whose = (
        " Traffic is the mean over each round's clients, summed over rounds." if measured else ""
    )
    return f"{what} of {title(groups)}{model}{where}{iterations}.{whose}"


def _iterations(groups: Sequence[Group]) -> str:
    planned = _distinct(groups, "iterations")
    if len(planned) == 1 and isinstance(planned[0], int):
        return f", for {planned[0]:,} iterations"
    return ""


def _environment(environments: list[Any]) -> str:
    if len(environments) != 1 or not isinstance(environments[0], dict):
        return " in several environments" if len(environments) > 1 else ""
    found = environments[0]
    clients, share = found.get("clients"), found.get("participation")
    words = ""
    if isinstance(clients, int):
        words = f" on {clients:,} clients"
        if isinstance(share, (int, float)):
            words += f", {round(clients * share):,} of them in each round"
        words += _split(found)
    return words


def _split(environment: dict[str, Any]) -> str:
    """Who holds what, by what the split goes by."""
    classes, public = environment.get("classes_per_client"), environment.get("public")
    split = environment.get("split", "classes")
    words = _SPLITS.get(split, f"split {format_value(split)}")
    if split == "classes":
        if not isinstance(classes, int):
            return ""
        words = f"each holding {classes} class{'es' if classes > 1 else ''}"
    if split == "dirichlet":
        words += f" of concentration {format_value(environment.get('concentration'))}"
    if isinstance(public, (int, float)) and public > 0:
        words += f" beside the {100 * public:g} % of the data that all of them hold"
    return f", {words}"


def _outcome(group: Group) -> str:
    # signSGD is spelt so wherever it stands; a plain word begins a sentence as words do.
    name = group.label.replace("uncompressed", "Uncompressed", 1)
    accuracy = _mean(group, "final_accuracy")
    if not group.evaluated or accuracy is None:
        return f"{name} has no evaluation yet."
    seeds = len(group.evaluated)
    over = f" (mean of {seeds} seeds)" if seeds > 1 else ""
    words = f"{name} reached {format_percent(accuracy)}{over}"
    up, down = _mean(group, "up_bytes"), _mean(group, "down_bytes")
    if up is None or down is None:
        return f"{words}."
    traffic = f"with {format_bytes(up)} up and {format_bytes(down)} down"
    return f"{words} {traffic}{_less(_mean(group, 'up_ratio'), _mean(group, 'down_ratio'))}."


def _less(up: float | None, down: float | None) -> str:
    if up is None or down is None:
        return ""
    # Headers and checksums make the uncompressed baseline itself a little larger than dense.
    if 0.9 < up < 1.1 and 0.9 < down < 1.1:
        return ", about as much as sending everything"
    ratios = (
        format_number(up)
        if format_number(up) == format_number(down)
        else f"{format_number(up)} and {format_number(down)}"
    )
    return f": {ratios} times less than sending everything"


def _mean(group: Group, name: str) -> float | None:
    rows: list[Result] = [result(run, group.label) for run in group.evaluated]
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return sum(values) / len(values) if values else None


def _distinct(groups: Sequence[Group], key: str) -> list[Any]:
    found: list[Any] = []
    for run in (run for group in groups for run in group.runs):
        value = run.config.get(key)
        if value is not None and value not in found:
            found.append(value)
    return found
