"""Train the run of an experiment in its directory, from its last checkpoint to the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from fedtern.runs import Evaluation, RunDirectory
from fedtern.training.tasks import get_task
from fedtern.transports.local.federation import Federation, advance
from fedtern.transports.local.simulation import federate

# Saving large states is slow; it may take at most this share of the time.
_CHECKPOINT_SHARE = 1 / 50


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
    make_federation: Callable[..., Federation] = Federation,
) -> Iterator[Evaluation]:
    """Train a run from its last checkpoint to the end; do nothing if it is finished.

    Args:
        run: The run directory; it is locked while the iterator is in use.
        data_dir: Directory of the datasets.
        device: Device of torch to train on.
        memory_bytes: Memory for residuals and momentum; the rest is kept on disk.
        workers: Processes that train at the same time; by default as many as are useful.
        checkpoint_seconds: Least time between two checkpoints.
        stopped: Called before each round; if it returns True, the state is saved and training
            ends.
        progress: Called after each round.
        make_federation: The engine: takes the arguments of ``Federation``.

    Yields:
        Each evaluation, once it is in ``metrics.jsonl``.

    Raises:
        ValueError: The data cannot be split as the experiment says; nothing was created.
        RunError: The checkpoint or the metrics are damaged.
        LockedError: Another process has locked the directory.

    """
    if run.is_finished():
        return
    experiment = run.experiment
    task = get_task(experiment.task)
    dataset = task.load(data_dir)
    # Before the directory is created: an impossible split leaves nothing on the disk.
    split = experiment.environment.split_dataset(dataset, experiment.seed)
    with run.locked():
        if run.is_finished():
            return  # another process has finished it since
        run.write_experiment()
        federation = federate(
            task,
            dataset,
            experiment.make_method(),
            experiment.environment,
            experiment.sgd,
            seed=experiment.seed,
            device=device,
            split=split,
            memory_bytes=memory_bytes,
            spill_directory=run.path,
            workers=workers,
            make=make_federation,
        )
        with closing(federation):
            evaluated = _resume(run, federation)
            size = federation.server.terms.layout.size
            run.write_setup(split, dataset, size, task.objective.primary)
            yield from _train(run, federation, evaluated, checkpoint_seconds, stopped, progress)


def _resume(run: RunDirectory, federation: Federation) -> int:
    """Restore the checkpoint, if there is one; return the iteration of the last evaluation."""
    snapshot = run.load_checkpoint()
    if snapshot is not None:
        try:
            federation.restore(snapshot)
        except (KeyError, TypeError, ValueError) as error:
            raise run.damaged_checkpoint(error) from error
    kept = run.resume_metrics(lambda found: found.iteration <= federation.iteration)
    return max((found.iteration for found in kept), default=0)


def _train(
    run: RunDirectory,
    federation: Federation,
    evaluated: int,
    checkpoint_seconds: float,
    stopped: Callable[[], bool],
    progress: Callable[[Federation], None],
) -> Iterator[Evaluation]:
    total = run.experiment.iterations
    saved = time.monotonic()
    pause = checkpoint_seconds
    while federation.iteration < total and not stopped():
        found = advance(federation, total, run.experiment.evaluate_every)
        if found is not None:
            evaluated = found.iteration
            run.record(found)
            yield found
        progress(federation)
        if federation.resumable and time.monotonic() - saved > pause:
            pause = max(checkpoint_seconds, _save(run, federation) / _CHECKPOINT_SHARE)
            saved = time.monotonic()
    if federation.iteration >= total:
        if evaluated < total:  # a kill came after the last checkpoint, before the evaluation
            found = federation.evaluate()
            run.record(found)
            yield found
        run.finish(federation.trained_model().arrays(), federation.snapshot().digest)
    elif federation.resumable:
        _save(run, federation)


def _save(run: RunDirectory, federation: Federation) -> float:
    """Write a checkpoint; return the seconds it took."""
    begin = time.monotonic()
    with federation.meter.phase("save"):
        run.save_checkpoint(federation.snapshot())
    return time.monotonic() - begin
