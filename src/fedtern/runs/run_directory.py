"""A run's directory: what it is, how far it is, and what it takes to go on.

``config.json`` says what is run, ``split.json`` who holds what, ``metrics.jsonl`` where things
stood at each evaluation; ``checkpoint.safetensors`` is what ``resume`` goes on from, and
``model.safetensors`` what was trained, once it is.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

from fedtern.core.errors import StoreError
from fedtern.core.layout import Vector
from fedtern.core.snapshot import Snapshot
from fedtern.data import Dataset, Split
from fedtern.runs.config_file import Configuration
from fedtern.runs.experiment import Experiment
from fedtern.runs.metrics import read_all_rounds, read_rounds, write_round
from fedtern.store.files import Lock, write_atomic
from fedtern.transports.local.federation import Federation, Round, advance
from fedtern.transports.local.simulation import federate

LOCAL = "local"  # the engine that nobody has to name


class Run:
    """An experiment in its directory."""

    def __init__(
        self, experiment: Experiment, path: Path, command: str = "", engine: str = LOCAL
    ) -> None:
        self.experiment = experiment
        self.engine = engine
        self.path = path
        self.command = command
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"
        self._config = Configuration(path / "config.json")

    def digest(self) -> str | None:
        """Of the experiment that the directory holds; None if it holds none."""
        return self._config.read().get("digest")

    def create(self) -> None:
        """Make the directory, if it is not there."""
        if self.digest() is None:
            with self.held():
                self._begin()

    def rounds(self) -> list[Round]:
        """Every evaluation so far; a line that was cut off is left out."""
        return read_rounds(self.metrics)

    def finished(self) -> bool:
        """Whether everything has been trained, tested and saved."""
        config = self._config.read()
        return config.get("digest") is not None and bool(config.get("finished"))

    def history(self) -> list[Round]:
        """Every evaluation of a finished run, to its end."""
        return read_all_rounds(self.metrics, self.experiment.iterations)

    def outcome(self) -> Round:
        """Where a finished run has ended."""
        return self.history()[-1]

    def go(
        self,
        data_dir: str | Path | None = None,
        *,
        device: str = "cpu",
        memory_bytes: int | None = None,
        workers: int | None = None,
        checkpoint_seconds: float = 30.0,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[Federation], None] = lambda _: None,
        make: Callable[..., Federation] = Federation,
    ) -> Iterator[Round]:
        """Train from the last checkpoint to the end, or until ``stopped`` says so.

        ``progress`` is called after every round; ``make`` is the engine. What is finished stays as
        it is.
        """
        if self.finished():
            return
        dataset = self.experiment.make_task().load(data_dir)
        # What cannot be dealt out is refused before there is anything on the disk.
        split = self.experiment.environment.deal(dataset, self.experiment.seed)
        with self.held():
            if self.finished():
                return  # another process was quicker: what it left is not to be touched
            self._begin()
            federation = self._federation(dataset, split, device, memory_bytes, workers, make)
            with closing(federation):
                self._restore(federation)
                self.describe(split, dataset, federation.server.terms.layout.size)
                yield from self._train(federation, checkpoint_seconds, stopped, progress)

    def _train(
        self,
        federation: Federation,
        checkpoint_seconds: float,
        stopped: Callable[[], bool],
        progress: Callable[[Federation], None],
    ) -> Iterator[Round]:
        total, every = self.experiment.iterations, self.experiment.evaluate_every
        tested = max((r.iteration for r in self.rounds()), default=0)
        saved, pause = time.monotonic(), checkpoint_seconds
        with self.metrics.open("a") as lines:
            while federation.iteration < total and not stopped():
                if (found := advance(federation, total, every)) is not None:
                    tested = found.iteration
                    lines.write(write_round(found))
                    lines.flush()
                    yield found
                progress(federation)
                if federation.resumable and time.monotonic() - saved > pause:
                    # Large states take a while to save: not more than a fiftieth of the time.
                    pause = max(checkpoint_seconds, 50 * self._save(federation, lines))
                    saved = time.monotonic()
            if federation.iteration >= total > tested:
                lines.write(write_round(federation.evaluate()))  # a kill came between test and save
            if federation.iteration >= total:
                _sync(lines)
            elif federation.resumable:
                self._save(federation, lines)
        if federation.iteration >= total:
            server = federation.server
            model = server.terms.layout.unflatten(server.weights)
            self.finish(model, federation.snapshot().digest)

    def _federation(
        self,
        dataset: Dataset,
        split: Split,
        device: str,
        memory_bytes: int | None,
        workers: int | None,
        make: Callable[..., Federation],
    ) -> Federation:
        what = self.experiment
        return federate(
            what.make_task(),
            dataset,
            what.make_method(),
            what.environment,
            what.make_sgd(),
            seed=what.seed,
            device=device,
            split=split,
            memory_bytes=memory_bytes,
            spill_directory=self.path,
            workers=workers,
            make=make,
        )

    def _save(self, federation: Federation, lines: IO[str]) -> float:
        """Write a checkpoint, with the metrics up to it safe before it; the seconds it took."""
        begin = time.monotonic()
        with federation.meter.phase("save"):
            _sync(lines)
            write_atomic(self.checkpoint, federation.snapshot().chunks())
        return time.monotonic() - begin

    @contextmanager
    def held(self) -> Iterator[None]:
        """The directory for this process alone, made if it is not there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {self.path}: {error.strerror}") from error
        lock = Lock(self.path)
        try:
            yield
        finally:
            lock.close()

    def _begin(self) -> None:
        """Say what is run, where nothing is said yet; only for who has the directory."""
        if self.digest() is None:
            head = {"digest": self.experiment.digest, "command": self.command}
            engine = {} if self.engine == LOCAL else {"engine": self.engine}
            self._config.add(**head, **engine, **self.experiment.to_json())

    def _restore(self, federation: Federation) -> None:
        """Go back to the last checkpoint, in the metrics as well."""
        if self.checkpoint.exists():
            self._restore_from_checkpoint(federation)
        kept = [r for r in self.rounds() if r.iteration <= federation.iteration]
        write_atomic(self.metrics, [write_round(r).encode() for r in kept])

    def _restore_from_checkpoint(self, federation: Federation) -> None:
        try:
            # Mapped, not read: it may be larger than what the clients' states may take.
            with self.checkpoint.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            federation.restore(Snapshot.from_bytes(data))
        except (ValueError, KeyError) as error:
            raise StoreError(
                f"{self.checkpoint} is damaged ({error}): remove it to start the run again"
            ) from error

    def describe(self, split: Split, dataset: Dataset, parameters: int) -> None:
        """Write down who holds what, and how large the model is."""
        counts = split.counts(dataset.train_labels, dataset.num_classes)
        classes = [str(c) for c in range(dataset.num_classes)]
        shown = {"classes": classes, "counts": counts.tolist()}
        write_atomic(self.path / "split.json", [json.dumps(shown).encode()])
        self._config.add(parameters=parameters)

    def record(self, found: Round) -> None:
        """Add an evaluation that was made elsewhere."""
        with self.metrics.open("a") as lines:
            lines.write(write_round(found))

    def finish(self, model: Mapping[str, Vector], state: str | None = None) -> None:
        """Write down that nothing else is to come, the model, and a digest of where all ended.

        The checkpoint goes: residuals and momentum of all clients can be a thousand times as large
        as the model, and nobody needs them any more.
        """
        write_atomic(self.model, Snapshot(model, {}).chunks())
        ended = {"finished": True} if state is None else {"finished": True, "state": state}
        self._config.add(**ended)
        self.tidy()

    def tidy(self) -> None:
        """Remove the checkpoint of a finished run, which a kill may have left where it was."""
        # Without the model beside it, it would be all that is left of what was trained.
        if self.checkpoint.exists() and self.model.exists() and self.finished():
            with suppress(OSError):  # of somebody else's, where we may only read
                self.checkpoint.unlink()


def _sync(lines: IO[str]) -> None:
    """Have what was written survive a power cut."""
    lines.flush()
    os.fsync(lines.fileno())
