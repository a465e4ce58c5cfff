"""Callbacks that need the weights: early stopping and checkpoints of the model."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedtern.core.errors import StoreError
from fedtern.core.snapshot import Snapshot
from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation
from fedtern.runs.callbacks import Callback, Training
from fedtern.store.files import write_atomic
from fedtern.training.flat import state_arrays

if TYPE_CHECKING:
    from torch import Tensor

    from fedtern.transports.local.simulation import Simulation


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
        spec = find_metric(simulation, self.metric, "early stopping")
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


class ModelCheckpoint(Callback):
    """Save the model while it trains: the best one, the last one, or one for each evaluation.

    The files are safetensors files, as ``model.safetensors`` of a run. To resume a run, use
    ``simulate(out=..., resume=True)`` instead: a model does not contain the clients' states.

    Args:
        directory: directory to write to; created if it does not exist.
        save: "best" writes ``best.safetensors``, "last" writes ``last.safetensors``, "all" writes a
            file named by the iteration.
        metric: metric of the best model, or "loss"; by default the primary metric.

    Attributes:
        best_value: the value of the best model that was saved; None before the first one.

    Raises:
        ValueError: ``save`` is unknown.

    """

    def __init__(
        self,
        directory: str | PathLike[str],
        save: Literal["best", "last", "all"] = "best",
        *,
        metric: str | None = None,
    ) -> None:
        if save not in ("best", "last", "all"):
            raise ValueError(f'save must be "best", "last" or "all", got {save!r}')
        self.directory = Path(directory)
        self.save = save
        self.metric = metric
        self.best_value: float | None = None

    def on_evaluation(self, simulation: Training, evaluation: Evaluation) -> None:
        """Save the model if it is the best one, or if each one is saved.

        Raises:
            StoreError: the file cannot be written.

        """
        name = self.save if self.save != "all" else str(evaluation.iteration)
        if self._improves(simulation, evaluation) or self.save != "best":
            path = self.directory / f"{name}.safetensors"
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                write_atomic(path, Snapshot(state_arrays(simulation.weights), {}).chunks())
            except OSError as error:
                raise StoreError(f"cannot write {path}: {error.strerror}") from error

    def on_replay(self, simulation: Training, evaluation: Evaluation) -> None:
        """Remember the best value; the weights of a recorded evaluation are not known."""
        self._improves(simulation, evaluation)

    def _improves(self, simulation: Training, evaluation: Evaluation) -> bool:
        spec = find_metric(simulation, self.metric, "a checkpoint")
        value = {"loss": evaluation.loss, **evaluation.metrics}[spec.name]
        if math.isnan(value):
            return False
        if self.best_value is not None and not spec.is_better(value, self.best_value):
            return False
        self.best_value = value
        return True


def find_metric(simulation: Training, name: str | None, user: str) -> MetricSpec:
    """Return a metric of the task by its name; the primary one for None.

    Raises:
        ValueError: evaluations do not have the metric.

    """
    if name is None:
        return simulation.metric
    known = {spec.name: spec for spec in (MetricSpec("loss", "lower"), *simulation.metrics)}
    if name not in known:
        raise ValueError(
            f"{user} needs the metric {name!r}, but evaluations have {', '.join(known)}"
        )
    return known[name]
