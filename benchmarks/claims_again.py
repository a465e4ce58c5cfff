"""Claims of the paper that held in part, once more for stc_plus, from recorded runs.

`python benchmarks/claims_again.py` prints the table of docs/results/beyond-the-paper.md. It trains
nothing: all runs are in the records of `fedtern advise`. FedAvg and STC are those of the paper's
figures, with the better of two momenta and three seeds; stc_plus has no momentum and mostly one
seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beyond_the_paper import is_fedavg, is_paper_stc, is_plus
from fedtern.advice import Record, load_records
from fedtern.data.environment import Environment
from fedtern_paper import degradation
from fedtern_paper.comparisons import low_participation
from fedtern_paper.significance import standard_error

TASK = "logistic-mnist"
ITERATIONS = 5_000
Accuracies = Mapping[Environment, float]
"""The highest accuracy of a method in each environment."""


@dataclass(frozen=True)
class Margin:
    """A comparison with FedAvg: how much better a method is, in accuracy."""

    environment: Environment
    value: float
    error: float  # of the test set

    @property
    def holds(self) -> bool:
        return self.value > 0

    @property
    def is_close(self) -> bool:
        return abs(self.value) <= self.error


def accuracies(
    records: Iterable[Record], chosen: Callable[[Mapping[str, Any]], bool]
) -> dict[Environment, float]:
    best: dict[Environment, float] = {}
    for record in records:
        if record.task == TASK and record.iterations == ITERATIONS and chosen(record.method):
            found = best.get(record.environment, 0.0)
            best[record.environment] = max(found, record.best)
    return best


def is_papers_fedavg(method: Mapping[str, Any]) -> bool:
    return is_fedavg(method) and method["local_steps"] == 400


def is_papers_stc(method: Mapping[str, Any]) -> bool:
    return is_paper_stc(method) and method["p_up"] == 1 / 400


def above(ours: Accuracies, fedavg: Accuracies) -> Iterator[Margin]:
    """Compare accuracies where less than a tenth of the clients take part in a round."""
    for environment in sorted(ours.keys() & fedavg.keys(), key=str):
        if low_participation(environment):
            first, second = ours[environment], fedavg[environment]
            yield Margin(environment, first - second, standard_error(TASK, first, second))


def loses_less(
    ours: Accuracies, fedavg: Accuracies, difficulties: Iterable[degradation.Easier]
) -> Iterator[Margin]:
    """Compare what methods lose to a difficulty."""
    for easier in difficulties:
        for hard in sorted(ours.keys() & fedavg.keys(), key=str):
            easy = easier(hard)
            if easy == hard or not (easy in ours and easy in fedavg):
                continue
            values = ours[easy], ours[hard], fedavg[easy], fedavg[hard]
            loss, other = values[0] - values[1], values[2] - values[3]
            yield Margin(hard, other - loss, standard_error(TASK, *values))


def count(margins: Sequence[Margin]) -> str:
    held = sum(margin.holds for margin in margins)
    close = sum(margin.is_close for margin in margins)
    return f"{held} of {len(margins)} ({close} close)"


def describe(environment: Environment) -> str:
    text = f"{environment.cohort_size}/{environment.clients} clients"
    text += f", {environment.classes_per_client} classes, batch {environment.batch_size}"
    return text + (f", γ={environment.gamma:g}" if environment.gamma != 1 else "")


def main() -> None:
    records = load_records()
    fedavg = accuracies(records, is_papers_fedavg)
    plus = accuracies(records, is_plus)
    # Only environments in which all three methods were run.
    stc = {e: value for e, value in accuracies(records, is_papers_stc).items() if e in plus}
    plus = {e: value for e, value in plus.items() if e in stc}
    partial = list(degradation.PARTIAL_PARTICIPATION.values())
    hard = list(degradation.DIFFICULTIES.values())
    claims: dict[str, Callable[[Accuracies], list[Margin]]] = {
        "Lesson 3, low participation: above FedAvg": lambda ours: list(above(ours, fedavg)),
        "R2, non-iid data, small batches, unbalanced data: loses less than FedAvg": lambda ours: (
            list(loses_less(ours, fedavg, hard))
        ),
        "R3, partial participation: loses less than FedAvg": lambda ours: list(
            loses_less(ours, fedavg, partial)
        ),
    }
    print("| claim | the paper's STC | stc_plus |\n|---|---|---|")
    for claim, margins in claims.items():
        print(f"| {claim} | {count(margins(stc))} | {count(margins(plus))} |")
    print("\n| environment | FedAvg | the paper's STC | stc_plus |\n|---|---:|---:|---:|")
    for environment in sorted(plus.keys() & fedavg.keys(), key=lambda e: (describe(e), str(e))):
        if low_participation(environment):
            values = (source[environment] for source in (fedavg, stc, plus))
            cells = (f"{100 * value:.1f} %" for value in values)
            print(f"| {describe(environment)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
