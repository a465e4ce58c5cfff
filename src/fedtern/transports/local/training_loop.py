"""Train a federation round by round, with evaluations, checkpoints and a run directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path

from fedtern.runs import Evaluation, RunDirectory
from fedtern.runs.status import FINISHED, STOPPED, StatusFile
from fedtern.transports.local.federation import Federation, advance

# Saving large states is slow; it may take at most this share of the time.
_CHECKPOINT_SHARE = 1 / 50


def resume(run: RunDirectory, federation: Federation) -> int:
    """Restore the checkpoint, if there is one; return the iteration of the last evaluation.

    Raises:
        RunError: The checkpoint or the metrics are damaged.

    """
    snapshot = run.load_checkpoint()
    if snapshot is not None:
        try:
            federation.restore(snapshot)
        except (KeyError, TypeError, ValueError) as error:
            raise run.damaged_checkpoint(error) from error
    kept = run.resume_metrics(lambda found: found.iteration <= federation.iteration)
    return max((found.iteration for found in kept), default=0)


def train_federation(
    federation: Federation,
    iterations: int,
    evaluate_every: int,
    run: RunDirectory | None = None,
    *,
    evaluated: int = 0,
    checkpoint_seconds: float = 30.0,
    stopped: Callable[[], bool] = lambda: False,
    ended: Callable[[], bool] = lambda: False,
    progress: Callable[[Federation], None] = lambda _: None,
    checkpointed: Callable[[Path], None] = lambda _: None,
) -> Generator[Evaluation, None, None]:
    """Train a federation to the end, and write its run directory if it has one.

    Args:
        federation: The federation; it continues from its state.
        iterations: Local iterations in total.
        evaluate_every: Local iterations between evaluations.
        run: The run directory, locked.
        evaluated: Iteration of the last evaluation.
        checkpoint_seconds: Least time between two checkpoints.
        stopped: Called before each round; if it returns True, the state is saved and training
            is interrupted.
        ended: Called before each round; if it returns True, training is complete.
        progress: Called after each round.
        checkpointed: Called with the path of each checkpoint.

    Yields:
        Each evaluation, once it is in ``metrics.jsonl``.

    """
    saved = time.monotonic()
    pause = checkpoint_seconds
    status = _Status(run, federation)

    def is_complete() -> bool:
        return ended() or not federation.allows_round

    try:
        while federation.iteration < iterations and not is_complete() and not stopped():
            found = advance(federation, iterations, evaluate_every)
            if found is not None:
                evaluated = found.iteration
                _record(run, found)
                yield found
            status.update()
            try:
                progress(federation)
            except BaseException:  # between two rounds, so that the state can be saved
                if run is not None and federation.resumable:
                    _save(run, federation)
                raise
            if run is not None and federation.resumable and time.monotonic() - saved > pause:
                pause = max(checkpoint_seconds, _save(run, federation) / _CHECKPOINT_SHARE)
                saved = time.monotonic()
                checkpointed(run.checkpoint_path)
        complete = federation.iteration >= iterations
        if not complete and not is_complete():
            if run is not None and federation.resumable:
                _save(run, federation)
                checkpointed(run.checkpoint_path)
            return
        # A kill came after the last checkpoint, or training ended between two evaluations.
        if evaluated < (iterations if complete else federation.iteration):
            found = federation.evaluate()
            _record(run, found)
            yield found
    except GeneratorExit:  # the user closes the iterator, between two rounds
        if run is not None and federation.resumable:
            _save(run, federation)
        raise
    finally:
        status.close()
    if run is not None:
        state = federation.snapshot().digest
        run.finish(
            federation.trained_model().arrays(), state, None if complete else federation.iteration
        )
        status.close(FINISHED)


class _Status:
    """Writes ``status.json`` while a run trains; does nothing without a run directory."""

    def __init__(self, run: RunDirectory | None, federation: Federation) -> None:
        self._federation = federation
        self._file = None if run is None else StatusFile(run.path)
        if self._file is not None:
            self._file.write(federation.status())

    def update(self) -> None:
        """Write the state after a round, if the last write was long ago."""
        if self._file is not None:
            self._file.update(self._federation.status)

    def close(self, state: str = STOPPED) -> None:
        """Write the last state."""
        if self._file is not None:
            self._file.write(self._federation.status(), state)


def _record(run: RunDirectory | None, evaluation: Evaluation) -> None:
    if run is not None:
        run.record(evaluation)


def _save(run: RunDirectory, federation: Federation) -> float:
    """Write a checkpoint; return the seconds it took."""
    begin = time.monotonic()
    with federation.meter.phase("save"):
        run.save_checkpoint(federation.snapshot())
    return time.monotonic() - begin
