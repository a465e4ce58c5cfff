"""The paper's claims, and the comparisons of finished runs that test them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedtern_paper import comparisons, degradation
from fedtern_paper.comparison_groups import Groups, is_fedavg, is_stc
from fedtern_paper.comparisons import EnvironmentPredicate
from fedtern_paper.published import CNN, LOGISTIC
from fedtern_paper.significance import TEST_EXAMPLES, Comparison, standard_error
from fedtern_paper.thresholds import (
    DOWNLOAD_COMPRESSION,
    LOW_PARTICIPATION,
    SLIGHT_DIFFERENCE,
    SMALL_BATCH,
    STRONG_COMPRESSION,
)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Args:
        name: Where the paper makes it.
        statement: The statement in a few words.
        compare: Returns the comparisons that test it.

    """

    name: str
    statement: str
    compare: Callable[[Groups], Iterator[Comparison]]

    def comparisons(self, groups: Groups) -> list[Comparison]:
        """Return the comparisons that test the claim.

        If an environment was run with several numbers of iterations, only the task's own number
        counts, or else the largest.
        """
        kept: dict[tuple[Any, ...], Comparison] = {}
        for comparison in sorted(self.compare(groups), key=_length):
            key = comparison.group.key._replace(iterations=0)
            kept[(*key, comparison.what)] = comparison
        return sorted(kept.values(), key=_order)


def _length(comparison: Comparison) -> tuple[bool, int]:
    key = comparison.group.key
    return key.iterations == key.task_iterations, key.iterations


def _order(comparison: Comparison) -> tuple[Any, ...]:
    """Sort by task, then by what is compared, then from easy to hard environments."""
    key = comparison.group.key
    place = key.environment
    hardness = (place.clients, -place.classes_per_client, -place.batch_size, -place.gamma)
    return key.task, comparison.what, hardness, comparison.group.description


def _stc_above(name: str, rival: str, where: str, applies: EnvironmentPredicate) -> Claim:
    statement = f"{where}: STC above {rival}"
    return Claim(name, statement, partial(comparisons.stc_above, rival, applies))


def _signsgd_degrades_least(groups: Groups) -> Iterator[Comparison]:
    for other in ("STC", "FedAvg"):
        yield from degradation.degrades_less(
            "signSGD", other, degradation.PARTIAL_PARTICIPATION, comparisons.iid, groups
        )


CLAIMS = (
    _stc_above("Lesson 1", "FedAvg", "non-iid data", comparisons.non_iid),
    _stc_above("Lesson 2", "FedAvg", "small batches", comparisons.small_batches),
    _stc_above("Lesson 3", "FedAvg", "low participation", comparisons.low_participation),
    _stc_above("Section VI", "FedAvg", "every environment", comparisons.anywhere),
    _stc_above("Section VI", "signSGD", "non-iid data", comparisons.non_iid),
    _stc_above("Extra", "signSGD", "small batches", comparisons.small_batches),
    _stc_above("Extra", "signSGD", "low participation", comparisons.low_participation),
    Claim(
        "Lesson 4",
        "iid data: STC sends the least until a target accuracy",
        partial(comparisons.cheaper, is_stc, is_fedavg, comparisons.BYTES),
    ),
    Claim(
        "Lesson 5",
        "iid data: FedAvg takes the fewest rounds to a target (latency)",
        partial(comparisons.cheaper, is_fedavg, is_stc, comparisons.ROUNDS),
    ),
    Claim(
        "Lesson 6",
        "small batches, or non-iid data at low participation: better without momentum",
        comparisons.without_momentum,
    ),
    Claim(
        "Section VI",
        "momentum is always better for signSGD",
        comparisons.signsgd_with_momentum,
    ),
    Claim(
        "Section VI",
        "iid data: signSGD loses less to partial participation than STC and FedAvg",
        _signsgd_degrades_least,
    ),
    Claim(
        "Section VI",
        "unbalanced data has no significant effect on any method",
        partial(degradation.hardly_degrades, degradation.UNBALANCED),
    ),
    Claim("R1", "STC compresses up and down", comparisons.stc_compresses),
    Claim(
        "R2",
        "non-iid data, small batches, unbalanced data: STC loses less than FedAvg",
        partial(
            degradation.degrades_less,
            "STC",
            "FedAvg",
            degradation.DIFFICULTIES,
            comparisons.anywhere,
        ),
    ),
    Claim(
        "R3",
        "partial participation: STC loses less than FedAvg",
        partial(
            degradation.degrades_less,
            "STC",
            "FedAvg",
            degradation.PARTIAL_PARTICIPATION,
            comparisons.anywhere,
        ),
    ),
)
"""The paper's orderings, its six lessons, and its three requirements R1 to R3."""

_LOGISTIC_ERROR = 100 * standard_error(LOGISTIC, 0.92, 0.92)
_CNN_ERROR = 100 * standard_error(CNN, 0.9, 0.9)

NOTES = (
    "All finished runs at the learning rate of their task count, whichever command made them. If"
    " an environment was run with several numbers of iterations, only the task's own number"
    " counts, or else the largest. Verdicts use runs of the task's own length. Shorter runs are"
    " counted separately, because FedAvg with n = 400 has few rounds in them, also on iid data."
    " Rounds are not split: if the number of iterations is not a multiple of n, FedAvg trains up"
    " to the next multiple.",
    "Accuracy is the best of each run, averaged over the seeds that both methods have, ± the"
    " standard deviation. This favours methods that are evaluated more often: a run has 50"
    " evaluations, but FedAvg has at most one per round. As in the paper, each method counts with"
    " its better momentum, where both were run.",
    "Close: the difference is smaller than its standard deviation over seeds, or than its standard"
    f" error due to the number of test examples: {_LOGISTIC_ERROR:.1g} points for two accuracies of"
    f" 92 % on 10,000 examples, {_CNN_ERROR:.1g} points for two accuracies of 90 % on the"
    f" {TEST_EXAMPLES[CNN]:,} examples of {CNN}. Other seeds may decide otherwise. A comparison"
    " with one seed may be off by more.",
    "Lessons 4 and 5 compare the cheapest settings that reached the target with every seed: STC"
    " without delay at any p, and FedAvg with any n, with and without momentum, as far as they"
    " were run.",
    f"Non-iid: fewer than 10 classes per client. Small batches: batch size below {SMALL_BATCH}. Low"
    f" participation: below {100 * LOW_PARTICIPATION:g} %; for Lesson 6 also"
    f" {100 * LOW_PARTICIPATION:g} %. No significant effect: less than"
    f" {100 * SLIGHT_DIFFERENCE:g} points.",
    f"R1: uploads are compressed by more than ×{STRONG_COMPRESSION:g} and downloads by more than"
    f" ×{DOWNLOAD_COMPRESSION:g}. R2 and R3 ask for robustness; tested here is whether a difficulty"
    " costs STC less than FedAvg, each compared with itself without the difficulty.",
    "Held: in all comparisons. Held in part: in some. Did not hold here: in none. Extra: not"
    " claimed by the paper; with few clients per round, it puts STC above signSGD on non-iid data"
    " only.",
)
