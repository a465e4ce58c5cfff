"""The rules by which a row of Table I is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from fedtern.runs import Evaluation

IID, NON_IID = "iid", "non-iid"
STRONG, COMPRESSED, NEAR = 32.0, 2.0, 0.05

Key = tuple[str, int]  # environment and seed


class Verdict(NamedTuple):
    """A row of the paper's Table I."""

    down: bool
    strong: bool
    robust: bool

    def words(self) -> tuple[str, str, str]:
        """As the paper prints it."""
        return _yes(self.down), "strong" if self.strong else "weak", _yes(self.robust)

    def differing(self, other: Verdict) -> list[str]:
        """The columns in which two verdicts are not the same."""
        names = ("down", "rate", "robust")
        return [n for n, a, b in zip(names, self, other, strict=True) if a != b]


PAPER = {
    **dict.fromkeys(("terngrad", "qsgd", "atomo"), Verdict(False, False, False)),
    "signsgd": Verdict(True, False, False),
    **dict.fromkeys(("gradient_dropping", "dgc", "variance", "strom"), Verdict(False, True, True)),
    "fedavg": Verdict(True, True, False),
    "stc": Verdict(True, True, True),
}
"""The paper's Table I by the rows' names: methods as they are by default."""


@dataclass(frozen=True)
class Row:
    """How a method ended in both environments, next to uncompressed training."""

    name: str
    label: str
    runs: Mapping[Key, Evaluation]
    dense: Mapping[Key, Evaluation]

    def accuracies(self, place: str) -> list[float]:
        """The final accuracy of each seed."""
        return [found.accuracy for (where, _), found in self.runs.items() if where == place]

    def up(self, *places: str) -> float | None:
        """How many times less is sent up than by uncompressed training."""
        found = [r for (place, _), r in self.runs.items() if place in (places or (IID, NON_IID))]
        return _ratio(sum(r.dense_bytes for r in found), sum(r.up_bytes_mean for r in found))

    def down(self) -> float | None:
        """How many times less is sent down than in the uncompressed run beside it."""
        pairs = [(r, self.dense[key]) for key, r in self.runs.items() if key in self.dense]
        dense = sum(d.down_bytes_mean * r.iteration / d.iteration for r, d in pairs)
        return _ratio(dense, sum(r.down_bytes_mean for r, _ in pairs))

    def drop(self) -> float | None:
        """How much of the accuracy non-iid data takes."""
        iid, skewed = self.accuracies(IID), self.accuracies(NON_IID)
        return fmean(iid) - fmean(skewed) if iid and skewed else None

    def gap(self) -> float | None:
        """How far below uncompressed training it ends on non-iid data, over shared seeds."""
        keys = [key for key in self.runs if key[0] == NON_IID and key in self.dense]
        gaps = [self.dense[key].accuracy - self.runs[key].accuracy for key in keys]
        return fmean(gaps) if gaps else None

    def verdict(self) -> Verdict | None:
        """What Table I would say; None where runs are missing."""
        up, down, gap = self.up(), self.down(), self.gap()
        if up is None or down is None or gap is None or not self.accuracies(IID):
            return None
        # A difference of exactly five points is no more than that, whatever floats make of it.
        return Verdict(down > COMPRESSED, up > STRONG, gap <= NEAR + 1e-9)


def _ratio(above: float, below: float) -> float | None:
    if not above:
        return None
    return above / below if below else math.inf


def _yes(value: bool) -> str:
    return "yes" if value else "no"
