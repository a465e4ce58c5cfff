"""Objective of a task: a loss to minimise and named metrics of an evaluation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedtern.data.metric_spec import RESERVED_NAMES, Best, MetricSpec
from fedtern.federation.client_session import Scores

Loss = Callable[[Any, Tensor], Tensor]
"""From a batch's outputs and targets to the mean loss of the batch."""


@dataclass(frozen=True)
class Metric:
    """A named measure of a model's quality.

    Args:
        name: the metric's name.
        function: from a batch's outputs and targets to the mean over the batch.
        best: "higher" or "lower": which values are better.
        transform: applied to the mean over all test examples, such as ``math.exp`` for perplexity
            or ``math.sqrt`` for a root-mean-square error.
        reduction: "sum" if ``function`` returns the sum over the examples instead of the mean.

    Raises:
        ValueError: an argument is invalid.

    >>> rmse = Metric("rmse", torch.nn.functional.mse_loss, best="lower", transform=math.sqrt)
    >>> rmse.spec
    MetricSpec(name='rmse', best='lower')
    """

    name: str
    function: Callable[[Any, Tensor], Tensor | float]
    best: Best = "higher"
    transform: Callable[[float], float] | None = None
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        _ = self.spec  # raises if the name or the direction is invalid
        if not callable(self.function):
            raise ValueError(
                f"metric {self.name!r} needs a function of outputs and targets, got"
                f" {self.function!r}"
            )
        if self.name == "loss":
            raise ValueError("'loss' is always reported; choose another name for the metric")
        if self.name in RESERVED_NAMES:
            raise ValueError(
                f"{self.name!r} is a field of every evaluation; choose another name for the metric"
            )
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f'reduction must be "mean" or "sum", got {self.reduction!r}')

    @property
    def spec(self) -> MetricSpec:
        """Name and direction."""
        return MetricSpec(self.name, self.best)

    def total(self, outputs: Any, targets: Tensor) -> float:
        """Return the sum of the metric over a batch's examples."""
        value = float(self.function(outputs, targets))
        return value if self.reduction == "sum" else value * len(targets)

    def finish(self, total: float, num_examples: int) -> float:
        """Return the metric, given its sum over all examples."""
        mean = total / num_examples
        if self.transform is None:
            return mean
        try:
            return float(self.transform(mean))
        except (OverflowError, ValueError):  # exp(1000), sqrt(nan)
            return math.inf if self.best == "lower" else -math.inf


def count_correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the number of examples that are classified correctly.

    Class scores are along the second axis of the outputs. If an example has several labels, such
    as the characters of a text, it counts as its share of correct ones.
    """
    correct = outputs.argmax(1) == labels
    if correct.dim() > 1:
        return correct.reshape(len(labels), -1).to(torch.float64).mean(1).sum()
    return correct.sum()


ACCURACY = Metric("accuracy", count_correct, reduction="sum")

Metrics = Sequence[Metric] | Mapping[str, Metric | Callable[[Any, Tensor], Tensor | float]]
"""Metrics as users give them: a list, or functions by name, where higher values are better."""


class BatchScores(NamedTuple):
    """Sums over the examples of a batch: the loss and each metric, in the objective's order."""

    loss: float
    metrics: tuple[float, ...]


@dataclass(frozen=True)
class Objective:
    """The loss that clients minimise, and the metrics of an evaluation.

    Args:
        loss: from a batch's outputs and targets to the batch's mean loss; None for cross-entropy.
        metrics: metrics, the primary one first. Without metrics, the loss is the primary one.

    Raises:
        ValueError: two metrics have the same name, or an argument has the wrong type.

    """

    loss: Loss | None = None
    metrics: tuple[Metric, ...] = (ACCURACY,)

    @classmethod
    def of(cls, loss: Loss | None = None, metrics: Metrics | None = None) -> Objective:
        """Make an objective from the arguments of a task.

        Args:
            loss: the loss; None for cross-entropy.
            metrics: the metrics; None for accuracy with cross-entropy, and none with another loss.

        """
        if loss is not None and not callable(loss):
            raise ValueError(f"loss must be a function of outputs and targets, got {loss!r}")
        if isinstance(loss, type):
            raise ValueError(
                f"loss must be a function of outputs and targets, got the class {loss.__name__};"
                f" make an object of it: {loss.__name__}()"
            )
        if metrics is None:
            return cls(loss, (ACCURACY,) if loss is None else ())
        return cls(loss, tuple(_as_metrics(metrics)))

    def __post_init__(self) -> None:
        names = [metric.name for metric in self.metrics]
        if len(set(names)) != len(names):
            raise ValueError(f"metrics must have different names, got {', '.join(names)}")

    @property
    def primary(self) -> MetricSpec:
        """Name and direction of the primary metric."""
        return self.metrics[0].spec if self.metrics else MetricSpec("loss", "lower")

    def mean_loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch, for its gradient.

        Raises:
            ValueError: the loss is not a single number.

        """
        if self.loss is None:
            return functional.cross_entropy(outputs, targets)
        loss = self.loss(outputs, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise ValueError(
                f"the loss must be a tensor with one value, the mean of the batch, got {kind}"
            )
        return loss

    def check(self, outputs: Any, targets: Tensor, labels: tuple[int, int] | None = None) -> None:
        """Check that loss and metrics can be computed.

        Args:
            outputs: outputs of the model for a batch.
            targets: targets of the batch.
            labels: the lowest and the highest class number of all examples.

        Raises:
            ValueError: they cannot; the message has the shapes.

        """
        shapes = f"outputs of {describe(outputs)} and targets of {describe(targets)}"
        if self.loss is None:
            _check_class_scores(outputs, targets, labels)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loss = self.mean_loss(outputs, targets)
        except Exception as error:
            raise ValueError(f"the loss failed on {shapes}: {error}") from error
        if any("Using a target size" in str(warning.message) for warning in caught):
            raise ValueError(
                f"the loss would compare every output with every target, because of {shapes}; give"
                " both the same shape, for example with targets.reshape(-1, 1)"
            )
        for warning in caught:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        _ = float(loss)
        for metric in self.metrics:
            try:
                metric.total(outputs, targets)
            except Exception as error:
                raise ValueError(
                    f"metric {metric.name!r} failed on {shapes}: {error}; it must return one number"
                ) from error

    def score(self, outputs: Any, targets: Tensor) -> BatchScores:
        """Return the sums of loss and metrics over a batch."""
        if self.loss is None and targets.dim() == 1:
            loss = float(functional.cross_entropy(outputs, targets, reduction="sum"))
        else:
            loss = float(self.mean_loss(outputs, targets)) * len(targets)
        return BatchScores(loss, tuple(m.total(outputs, targets) for m in self.metrics))

    def combine(self, batches: Sequence[BatchScores], num_examples: int) -> Scores:
        """Return the scores of all examples, given those of each batch, in order."""
        loss = 0.0
        totals = [0.0] * len(self.metrics)
        # Sums of floats depend on the order: always that of the examples.
        for batch in batches:
            loss += batch.loss
            totals = [total + part for total, part in zip(totals, batch.metrics, strict=True)]
        return Scores(
            loss / num_examples,
            {
                metric.name: metric.finish(total, num_examples)
                for metric, total in zip(self.metrics, totals, strict=True)
            },
        )


CLASSIFICATION = Objective()
"""Cross-entropy and accuracy."""


def describe(value: Any) -> str:
    """Return dtype and shape of a tensor, or the type of another value, for errors."""
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
    return f"type {type(value).__name__}"


def _check_class_scores(outputs: Any, targets: Tensor, labels: tuple[int, int] | None) -> None:
    """Check outputs and targets of cross-entropy."""
    if not isinstance(outputs, Tensor):
        raise ValueError(
            "the default loss, cross-entropy, needs a tensor of class scores, but the outputs are"
            f" of {describe(outputs)}; pass a loss that takes them"
        )
    if targets.is_floating_point():
        return  # shares of the classes
    if outputs.dim() < 2 or outputs.shape[2:] != targets.shape[1:]:
        hint = ""
        if outputs.dim() == 3 and outputs.shape[1:-1] == targets.shape[1:]:
            hint = "; classes are along the second axis: return outputs.transpose(1, 2)"
        elif targets.dim() == 2 and targets.shape[1] == 1:
            hint = "; use targets.squeeze(1)"
        raise ValueError(
            "the default loss, cross-entropy, needs outputs (batch, classes) and class numbers"
            f" (batch), got outputs of {describe(outputs)} and targets of {describe(targets)}{hint}"
        )
    lowest, highest = labels or (0, 0)
    if highest >= outputs.shape[1]:
        raise ValueError(
            f"targets go up to {highest}, but the model has {outputs.shape[1]} outputs; class"
            " numbers start at 0"
        )
    if lowest < 0:
        raise ValueError(f"targets go down to {lowest}, but class numbers start at 0")


def _as_metrics(metrics: Metrics) -> list[Metric]:
    if isinstance(metrics, Mapping):
        for name, given in metrics.items():
            if isinstance(given, Metric) and given.name != name:
                raise ValueError(
                    f"metrics has the metric {given.name!r} under the name {name!r}; use one name,"
                    " or pass a list"
                )
        return [
            given if isinstance(given, Metric) else Metric(name, given)
            for name, given in metrics.items()
        ]
    if not isinstance(metrics, Sequence) or not all(isinstance(m, Metric) for m in metrics):
        raise ValueError(
            "metrics must be a list of fedtern.training.Metric or functions by name, got"
            f" {metrics!r}"
        )
    return list(metrics)
