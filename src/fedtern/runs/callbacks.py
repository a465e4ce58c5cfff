"""The interface of callbacks: objects that are called while a federation trains, and may stop it.

``simulate``, ``fedtern run``, ``compare`` and ``serve`` call the same methods. Trackers
(``fedtern.runs.trackers``), early stopping and checkpoints are callbacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedtern.data.metric_spec import MetricSpec
from fedtern.runs.metrics import Evaluation


class Training(Protocol):
    """What a callback can ask the training that calls it. A ``Simulation`` has more."""

    @property
    def iteration(self) -> int:
        """Local iterations so far of a client that takes part in every round."""
        ...

    @property
    def round(self) -> int:
        """Finished rounds."""
        ...

    @property
    def metric(self) -> MetricSpec:
        """Name and direction of the primary metric."""
        ...

    @property
    def metrics(self) -> Sequence[MetricSpec]:
        """Names and directions of all metrics, the primary one first; without the loss."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The experiment, as in ``config.json``."""
        ...

    @property
    def path(self) -> Path | None:
        """The run directory, if there is one."""
        ...

    @property
    def weights(self) -> Mapping[str, Any]:
        """Copies of the model's current tensors by name."""
        ...

    def stop(self) -> None:
        """End the training after this round; the run is complete."""
        ...


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

    def on_start(self, simulation: Any) -> None:
        """Do something before the first round of this process."""

    def on_round(self, simulation: Any) -> None:
        """Do something after a round."""

    def on_evaluation(self, simulation: Any, evaluation: Evaluation) -> None:
        """Do something after an evaluation."""

    def on_checkpoint(self, simulation: Any, path: Path) -> None:
        """Do something after a checkpoint was written."""

    def on_replay(self, simulation: Any, evaluation: Evaluation) -> None:
        """Do something with an evaluation of a run that is resumed, before training continues.

        It is called for each recorded evaluation, in order. ``simulation.weights`` are those of the
        checkpoint, or of the end of a finished run.
        """

    def on_end(self, simulation: Any) -> None:
        """Do something when the training has ended, was interrupted or has failed."""


METHODS = ("on_start", "on_round", "on_evaluation", "on_checkpoint", "on_replay", "on_end")


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


def notify(callbacks: Iterable[Any], method: str, *arguments: object) -> None:
    """Call a method of all callbacks that have it.

    Args:
        callbacks: The callbacks, in order.
        method: One of ``METHODS``.
        arguments: The training, and what else the method takes.

    """
    for callback in callbacks:
        if (function := getattr(callback, method, None)) is not None:
            function(*arguments)


@contextmanager
def started(
    callbacks: Sequence[Any], training: Training, replayed: Iterable[Evaluation] = ()
) -> Iterator[None]:
    """Call ``on_start`` and ``on_replay`` before the context, and ``on_end`` after it.

    Args:
        callbacks: The callbacks.
        training: Passed to them.
        replayed: Evaluations of a run that is resumed.

    """
    begun = []
    try:
        for callback in callbacks:
            begun.append(callback)
            notify([callback], "on_start", training)
        for evaluation in replayed:
            notify(callbacks, "on_replay", training, evaluation)
        yield
    finally:
        notify(begun, "on_end", training)
