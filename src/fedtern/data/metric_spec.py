"""Name and direction of a task's primary metric. It needs no torch, so that runs can be read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Best = Literal["higher", "lower"]
"""Which values of a metric are better."""

RESERVED_NAMES = frozenset(
    (
        "iteration",
        "round",
        "loss",
        "up_bytes",
        "down_bytes",
        "up_bytes_mean",
        "down_bytes_mean",
        "up_bytes_paper",
        "down_bytes_paper",
        "dense_bytes",
        "seconds",
        "metrics",
        "privacy",
    )
)
"""Fields of an evaluation that no metric may be named after: reports read metrics by name."""


@dataclass(frozen=True)
class MetricSpec:
    """Name of a metric, and which of its values are better.

    Args:
        name: the metric's name, such as "accuracy" or "perplexity".
        best: "higher" or "lower".

    Raises:
        ValueError: the name is empty, or ``best`` is unknown.

    >>> perplexity = MetricSpec("perplexity", "lower")
    >>> perplexity.best_of([30.0, 12.5, 14.0]), perplexity.format(12.5)
    (12.5, '12.50')
    >>> MetricSpec().format(0.876)
    '87.60%'
    """

    name: str = "accuracy"
    best: Best = "higher"

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise ValueError(f"a metric needs a name, got {self.name!r}")
        if self.best not in ("higher", "lower"):
            raise ValueError(
                f'best of metric {self.name!r} must be "higher" or "lower", got {self.best!r}'
            )

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> MetricSpec:
        """Return the primary metric in a run's configuration; accuracy if it names none."""
        found = config.get("metric")
        if not isinstance(found, Mapping):
            return cls()
        best: Best = "lower" if found.get("best") == "lower" else "higher"
        return cls(str(found.get("name") or "accuracy"), best)

    def to_json(self) -> dict[str, Any]:
        """Return the values for a run's configuration."""
        return asdict(self)

    @property
    def is_share(self) -> bool:
        """Whether values are shares of the examples, which are shown in percent."""
        return self.name == "accuracy"

    def value(self, evaluation: Mapping[str, Any]) -> float | None:
        """Return the metric in a line of ``metrics.jsonl``; None if it is missing or not finite."""
        metrics = evaluation.get("metrics")
        found = evaluation.get(self.name)
        if found is None and isinstance(metrics, Mapping):
            found = metrics.get(self.name)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            return None
        return found if math.isfinite(found) else None

    def best_of(self, values: Iterable[float]) -> float | None:
        """Return the best value; None if there is none."""
        choose = max if self.best == "higher" else min
        return choose(values, default=None)

    def is_better(self, value: float, other: float) -> bool:
        """Return whether a value is better than another one; NaN is never better."""
        return value > other if self.best == "higher" else value < other

    def quality(self, value: float | None) -> float:
        """Return a number that is higher for better values; minus infinity unless it is finite.

        >>> MetricSpec("perplexity", "lower").quality(12.5), MetricSpec().quality(None)
        (-12.5, -inf)
        """
        if value is None or not math.isfinite(value):
            return -math.inf
        return value if self.best == "higher" else -value

    def value_of_quality(self, quality: float) -> float:
        """Return the value that has a quality; see ``quality``."""
        return quality if self.best == "higher" else -quality

    def rank(self, value: float | None) -> float:
        """Return a number that is smaller for better values and infinite for None."""
        if value is None:
            return math.inf
        return -value if self.best == "higher" else value

    def format(self, value: float, digits: int = 2) -> str:
        """Return a value as text: shares in percent, other values with four digits."""
        if self.is_share:
            return f"{value:.{digits}%}"
        return f"{value:.4g}" if not 1 <= abs(value) < 1000 else f"{value:.{digits}f}"
