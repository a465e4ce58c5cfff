"""Callbacks of a simulation: functions that are called while it trains, and may stop it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation

if TYPE_CHECKING:
    from torch import Tensor

    from fedtern.transports.local.simulation import Simulation


class Callback:
    """Base class of callbacks: override the methods that you need.

    Any object with at least one of these methods is a callback. To end the training, call
    ``simulation.stop()``.

    >>> class Print(Callback):
    ...     def on_evaluation(self, simulation, evaluation):
    ...         print(evaluation.iteration, simulation.metric.name)
    >>> from fedtern import simulate
    >>> simulation = simulate("logistic-digits", iterations=20, evaluate_every=10,
    ...                       callbacks=[Print()])
    >>> _ = list(simulation)
    10 accuracy
    20 accuracy
    """

    def on_round(self, simulation: Simulation) -> None:
        """Do something after a round."""

    def on_evaluation(self, simulation: Simulation, evaluation: Evaluation) -> None:
        """Do something after an evaluation."""

    def on_checkpoint(self, simulation: Simulation, path: Path) -> None:
        """Do something after a checkpoint was written."""

    def on_replay(self, simulation: Simulation, evaluation: Evaluation) -> None:
        """Do something with an evaluation of a run that is resumed, before training continues.

        It is called for each recorded evaluation, in order. ``simulation.weights`` are those of the
        checkpoint, or of the end of a finished run.
        """


METHODS = ("on_round", "on_evaluation", "on_checkpoint", "on_replay")


class EarlyStopping(Callback):
    """Stop when a metric has not improved for some evaluations; keep the best model.

    Args:
        patience: number of evaluations without an improvement after which training stops.
        min_delta: smallest change that counts as an improvement.
        metric: name of one of the task's metrics, or "loss"; by default the primary metric. The
            metric itself says which of its values are better.

    Attributes:
        best_value: the best value so far; None before the first evaluation.
        best_iteration: the iteration of the best value.
        best_weights: the state dict of the best model. It is empty if the best evaluation was
            recorded before the run was resumed, because a run keeps only its last weights.

    Raises:
        ValueError: an argument is out of range.

    """

    def __init__(
        self,
        patience: int = 5,
        *,
        min_delta: float = 0.0,
        metric: str | None = None,
    ) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"min_delta must not be negative, got {min_delta}")
        self.patience = patience
        self.min_delta = min_delta
        self.metric = metric
        self.best_value: float | None = None
        self.best_iteration = 0
        self.best_weights: dict[str, Tensor] = {}
        self._since = 0  # evaluations since the best one

    def _spec(self, simulation: Simulation) -> MetricSpec:
        if self.metric is None:
            return simulation.metric
        known = {spec.name: spec for spec in (MetricSpec("loss", "lower"), *simulation.metrics)}
        if self.metric not in known:
            raise ValueError(
                f"early stopping needs the metric {self.metric!r}, but evaluations have"
                f" {', '.join(known)}"
            )
        return known[self.metric]

    def _is_improvement(self, value: float, spec: MetricSpec) -> bool:
        # Nothing is better than NaN by comparison, so that training would never recover from it.
        if self.best_value is None:
            return True
        if math.isnan(self.best_value):
            return not math.isnan(value)
        margin = self.min_delta if spec.best == "higher" else -self.min_delta
        return spec.is_better(value, self.best_value + margin)

    def on_evaluation(self, simulation: Simulation, evaluation: Evaluation) -> None:
        """Compare an evaluation with the best one.

        Raises:
            ValueError: evaluations do not have the metric.

        """
        spec = self._spec(simulation)
        value = {"loss": evaluation.loss, **evaluation.metrics}[spec.name]
        if self._is_improvement(value, spec):
            self.best_value = value
            self.best_iteration = evaluation.iteration
            # A replayed evaluation is older than the weights, except for the last one.
            is_current = evaluation.iteration == simulation.iteration
            self.best_weights = simulation.weights if is_current else {}
            self._since = 0
            return
        self._since += 1
        if self._since >= self.patience:
            simulation.stop()

    def on_replay(self, simulation: Simulation, evaluation: Evaluation) -> None:
        """Count an evaluation of a run that is resumed, as if it had just been made."""
        self.on_evaluation(simulation, evaluation)


def check_callbacks(callbacks: Sequence[Any]) -> list[Any]:
    """Return callbacks as a list.

    Raises:
        ValueError: one of them has none of the methods of a callback.

    """
    if not isinstance(callbacks, Sequence):
        raise ValueError(f"callbacks must be a list of callbacks, got {callbacks!r}")
    for callback in callbacks:
        if isinstance(callback, type) or not any(hasattr(callback, name) for name in METHODS):
            raise ValueError(
                f"a callback needs one of the methods {', '.join(METHODS)}, got {callback!r}"
            )
    return list(callbacks)
