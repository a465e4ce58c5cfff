"""What happened, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtern.report.groups import Group
from fedtern.report.results import Result, result
from fedtern.report.words import digits, listed, percent, plain, size

_MOST = 5  # more sentences than this nobody reads


def title(groups: Sequence[Group]) -> str:
    """What was trained."""
    tasks = _distinct(groups, "task")
    return listed([plain(task) for task in tasks]) if tasks else "federated learning"


def summary(groups: Sequence[Group]) -> str:
    """One paragraph: the setting, then each method's accuracy and traffic, the best first."""
    ranked = sorted(groups, key=lambda group: -(_mean(group, "final_accuracy") or -1.0))
    sentences = [_setting(groups), *(_outcome(group) for group in ranked[:_MOST])]
    if len(ranked) > _MOST:
        sentences.append(f"The other {len(ranked) - _MOST} are in the table.")
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
    return f"{what} of {title(groups)}{model}{where}."


def _environment(environments: list[Any]) -> str:
    if len(environments) != 1 or not isinstance(environments[0], dict):
        return " in several environments" if len(environments) > 1 else ""
    found = environments[0]
    clients, share = found.get("clients"), found.get("participation")
    classes = found.get("classes_per_client")
    words = ""
    if isinstance(clients, int):
        words = f" on {clients:,} clients"
        if isinstance(share, (int, float)):
            words += f", {round(clients * share):,} of them in each round"
        if isinstance(classes, int):
            words += f", each holding {classes} class{'es' if classes > 1 else ''}"
    return words


def _outcome(group: Group) -> str:
    accuracy = _mean(group, "final_accuracy")
    if not group.evaluated or accuracy is None:
        return f"{group.label} has no evaluation yet."
    seeds = len(group.evaluated)
    over = f" (mean of {seeds} seeds)" if seeds > 1 else ""
    iterations = digits(_mean(group, "iterations"))
    up, down = _mean(group, "up_bytes"), _mean(group, "down_bytes")
    words = f"{group.label} reached {percent(accuracy)}{over} after {iterations} iterations"
    if up is None or down is None:
        return words + "."
    return (
        f"{words}; a client that always takes part sent {size(up)}"
        f"{_less(_mean(group, 'up_ratio'))} and received {size(down)}"
        f"{_less(_mean(group, 'down_ratio'))}."
    )


def _less(ratio: float | None) -> str:
    if ratio is None or 0.995 < ratio < 1.005:
        return ""
    if ratio < 1:
        return f" ({digits(1 / ratio)} times as much as uncompressed)"
    return f" ({digits(ratio)} times less than uncompressed)"


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
