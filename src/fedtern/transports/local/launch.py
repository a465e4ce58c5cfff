"""Train the run of an experiment in its directory, from its last checkpoint to the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from fedtern.data import Dataset, Split
from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation, RunDirectory
from fedtern.runs.callbacks import check_callbacks, notify, started
from fedtern.training.fingerprint import describe_training, fingerprint
from fedtern.training.tasks import Task, get_task, is_built_in
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.simulation import federate
from fedtern.transports.local.training_loop import resume, train_federation


def train_run(
    run: RunDirectory,
    data_dir: str | Path | None = None,
    *,
    device: str = "cpu",
    memory_bytes: int | None = None,
    workers: int | None = None,
    checkpoint_seconds: float = 30.0,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[Federation], None] = lambda _: None,
    callbacks: Sequence[Any] = (),
    make_federation: Callable[..., Federation] = Federation,
) -> Generator[Evaluation, None, None]:
    """Train a run from its last checkpoint to the end; do nothing if it is finished.

    Args:
        run: The run directory; it is locked while the iterator is in use. Closing it
            writes a checkpoint.
        data_dir: Directory of the datasets.
        device: Device of torch to train on.
        memory_bytes: Memory for residuals and momentum; the rest is kept on disk.
        workers: Processes that train at the same time; by default as many as are useful.
        checkpoint_seconds: Least time between two checkpoints.
        stopped: Called before each round; if it returns True, the state is saved and training
            ends.
        progress: Called after each round.
        callbacks: Objects that are called while it trains; see ``fedtern.runs.callbacks``.
        make_federation: The engine: takes the arguments of ``Federation``.

    Yields:
        Each evaluation, once it is in ``metrics.jsonl``.

    Raises:
        ValueError: The data cannot be split as the experiment says; nothing was created.
        RunError: The checkpoint or the metrics are damaged.
        StoreError: The directory holds a run of another version of a task that is not built in.
        LockedError: Another process has locked the directory.

    """
    experiment = run.experiment
    task = get_task(experiment.task)
    if run.is_finished() and is_built_in(task):
        return
    sgd = task.check_sgd(experiment.sgd)
    dataset = task.load(data_dir)
    # Before the directory is created: an impossible split leaves nothing on the disk.
    split = experiment.environment.split_dataset(dataset, experiment.seed)
    parts = _fingerprint(run, task, dataset, split)
    run.check_fingerprint(parts)
    if run.is_finished():
        return
    with run.locked():
        run.check_fingerprint(parts)
        if run.is_finished():
            return  # another process has finished it since
        run.write_experiment()
        if parts:
            model = task.flat_model(experiment.seed)
            run.write_fingerprint(parts, describe_training(task, model, parts))
        federation = federate(
            task,
            dataset,
            experiment.make_method(),
            experiment.environment,
            sgd,
            seed=experiment.seed,
            device=device,
            split=split,
            memory_bytes=memory_bytes,
            spill_directory=run.path,
            workers=workers,
            make=make_federation,
            privacy=experiment.privacy,
        )
        with closing(federation):
            evaluated = resume(run, federation)
            size = federation.server.terms.layout.size
            run.write_setup(split, dataset, size, task.objective.primary)
            training = _Training(run, federation, task)
            called = check_callbacks(callbacks)

            def round_finished(federation: Federation) -> None:
                notify(called, "on_round", training)
                progress(federation)

            with started(called, training, run.evaluations()):
                for evaluation in train_federation(
                    federation,
                    experiment.iterations,
                    experiment.evaluate_every,
                    run,
                    evaluated=evaluated,
                    checkpoint_seconds=checkpoint_seconds,
                    stopped=stopped,
                    ended=lambda: training.is_stopping,
                    progress=round_finished,
                    checkpointed=lambda path: notify(called, "on_checkpoint", training, path),
                ):
                    notify(called, "on_evaluation", training, evaluation)
                    yield evaluation


class _Training:
    """A run that trains, as callbacks see it."""

    def __init__(self, run: RunDirectory, federation: Federation, task: Task) -> None:
        self._run = run
        self._federation = federation
        self._task = task
        self.is_stopping = False

    @property
    def iteration(self) -> int:
        return self._federation.iteration

    @property
    def round(self) -> int:
        return self._federation.server.round

    @property
    def metric(self) -> MetricSpec:
        return self._task.objective.primary

    @property
    def metrics(self) -> Sequence[MetricSpec]:
        return [metric.spec for metric in self._task.objective.metrics]

    @property
    def config(self) -> Mapping[str, Any]:
        return self._run.experiment.to_json()

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def weights(self) -> Mapping[str, Any]:
        return self._federation.trained_model().state_dict()

    def stop(self) -> None:
        self.is_stopping = True


def check_task(run: RunDirectory, data_dir: str | Path | None = None) -> None:
    """Check that a directory holds no run of another version of its task.

    Args:
        run: The run directory.
        data_dir: Directory of the datasets.

    Raises:
        StoreError: The task is not built in, and its model, data or functions have changed.

    """
    task = get_task(run.experiment.task)
    if is_built_in(task):
        return
    dataset = task.load(data_dir)
    split = run.experiment.environment.split_dataset(dataset, run.experiment.seed)
    run.check_fingerprint(_fingerprint(run, task, dataset, split))


def _fingerprint(run: RunDirectory, task: Task, dataset: Dataset, split: Split) -> dict[str, str]:
    """Return the fingerprint of a task; empty for a built-in one, which its name identifies."""
    if is_built_in(task):
        return {}
    model = task.flat_model(run.experiment.seed)
    return fingerprint(task, model, dataset, split, run.experiment.iterations)
