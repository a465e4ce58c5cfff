"""The title and the summary of a report, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtern.report.formatting import (
    format_bytes,
    format_metric,
    format_number,
    format_value,
    join_words,
)
from fedtern.report.groups import Group
from fedtern.report.headline import spread
from fedtern.report.results import result

_MOST_SENTENCES = 5
_SPLITS = {
    "iid": "with i.i.d. data",
    "dirichlet": "with data split by a Dirichlet distribution",
    "natural": "with data split by its source",
}


def title(groups: Sequence[Group]) -> str:
    """Return the names of the tasks."""
    tasks = _distinct(groups, "task")
    return join_words([format_value(task) for task in tasks]) if tasks else "federated learning"


def summary(groups: Sequence[Group]) -> str:
    """Return one paragraph: the setting, then each method's quality and traffic, best first."""
    ranked = sorted(groups, key=lambda group: group.metric.rank(_mean(group, "final_metric")))
    sentences = [_setting(groups), *(_outcome(group) for group in ranked[:_MOST_SENTENCES])]
    if more := len(ranked[_MOST_SENTENCES:]):
        others = f"{more} are" if more > 1 else "one is"
        sentences.append(f"The other {others} in the table.")
    return " ".join(sentences)


def _setting(groups: Sequence[Group]) -> str:
    count = len(groups)
    runs = sum(len(group.runs) for group in groups)
    configurations = f"{count} configuration{'s' if count > 1 else ''}"
    if runs > count:
        configurations += f" in {runs} runs"
    sizes = _distinct(groups, "parameters")
    model = f" ({sizes[0]:,} parameters)" if len(sizes) == 1 and isinstance(sizes[0], int) else ""
    environment = _environment(_distinct(groups, "environment"))
    iterations = _iterations(groups)
    sentence = f"{configurations} of {title(groups)}{model}{environment}{iterations}."
    if any(group.evaluated for group in groups):
        sentence += " Traffic is per participating client, summed over rounds."
    return sentence


def _iterations(groups: Sequence[Group]) -> str:
    planned = _distinct(groups, "iterations")
    if len(planned) == 1 and isinstance(planned[0], int):
        return f", for {planned[0]:,} iterations"
    return ""


def _environment(environments: list[Any]) -> str:
    if len(environments) > 1:
        return " in several environments"
    if not environments or not isinstance(environments[0], dict):
        return ""
    environment = environments[0]
    clients = environment.get("clients")
    participation = environment.get("participation")
    if not isinstance(clients, int):
        return ""
    words = f" on {clients:,} clients"
    if isinstance(participation, (int, float)):
        words += f", {round(clients * participation):,} per round"
    return words + _split(environment)


def _split(environment: dict[str, Any]) -> str:
    """Describe how the examples are split among clients."""
    split = environment.get("split", "classes")
    classes = environment.get("classes_per_client")
    public = environment.get("public")
    words = _SPLITS.get(split, f"with split {format_value(split)}")
    if split == "classes":
        if not isinstance(classes, int):
            return ""
        words = f"with {classes} class{'es' if classes > 1 else ''} per client"
    if split == "dirichlet":
        words += f" with concentration {format_value(environment.get('concentration'))}"
    if isinstance(public, (int, float)) and public > 0:
        words += f" and {100 * public:g} % of the data shared by all clients"
    return f", {words}"


def _outcome(group: Group) -> str:
    # "signSGD" keeps its lower-case initial at the start of a sentence.
    name = group.label.replace("uncompressed", "Uncompressed", 1)
    quality = _mean(group, "final_metric")
    if not group.evaluated or quality is None:
        return f"{name} has no evaluation yet."
    metric = group.metric
    over_seeds = spread(group, "final_metric")
    mean_of = ""
    if over_seeds is not None and over_seeds.deviation is not None:
        deviation = over_seeds.deviation * (100 if metric.is_share else 1)
        mean_of = f" (mean of {over_seeds.seeds} seeds, ± {format_number(deviation, 2)})"
    unit = "" if metric.is_share else f"{'a ' if metric.name == 'loss' else ''}{metric.name} "
    sentence = f"{name} reached {unit}{format_metric(metric.name, quality)}{mean_of}"
    up = _mean(group, "up_bytes")
    down = _mean(group, "down_bytes")
    if up is not None and down is not None:
        sentence += f" with {format_bytes(up)} up and {format_bytes(down)} down"
        sentence += _reduction(_mean(group, "up_ratio"), _mean(group, "down_ratio"))
    return f"{sentence}."


def _reduction(up: float | None, down: float | None) -> str:
    """Compare the traffic with uncompressed training, given the two ratios."""
    if up is None or down is None:
        return ""
    # Headers and checksums make even uncompressed messages a little larger than the model.
    if 0.9 < up < 1.1 and 0.9 < down < 1.1:
        return ", about the same as without compression"
    ratios = join_words(list(dict.fromkeys([format_number(up), format_number(down)])))
    return f": {ratios} times less than without compression"


def _mean(group: Group, name: str) -> float | None:
    """Return the mean of a field of ``Result`` over the evaluated runs that have it."""
    measured = [getattr(result(run, group.label), name) for run in group.evaluated]
    values = [value for value in measured if value is not None]
    return sum(values) / len(values) if values else None


def _distinct(groups: Sequence[Group], key: str) -> list[Any]:
    """Return the different values of a setting, in order of appearance."""
    values: list[Any] = []
    for run in (run for group in groups for run in group.runs):
        value = run.config.get(key)
        if value is not None and value not in values:
            values.append(value)
    return values
