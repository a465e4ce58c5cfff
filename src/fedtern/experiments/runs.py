"""A run's directory: what it is, how far it is, and what it takes to go on.

``config.json`` says what is run, ``split.json`` who holds what, ``metrics.jsonl`` where things
stood at each evaluation; ``checkpoint.safetensors`` is what ``resume`` goes on from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedtern.data import Dataset
from fedtern.engines.local import Federation, Round, Sgd
from fedtern.engines.simulation import federate
from fedtern.errors import StoreError
from fedtern.experiments.experiment import Experiment
from fedtern.files import write_whole
from fedtern.snapshot import Snapshot


class Run:
    """An experiment in its directory."""

    def __init__(self, experiment: Experiment, path: Path) -> None:
        self.experiment = experiment
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"

    def rounds(self) -> list[Round]:
        """Every evaluation so far; a line that was cut off is left out."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text().split("\n")[:-1]
        return [Round(**json.loads(line)) for line in lines]

    def finished(self) -> bool:
        """Whether the last evaluation was the last there is."""
        rounds = self.rounds()
        return bool(rounds) and rounds[-1].iteration >= self.experiment.iterations

    def go(
        self,
        data_dir: str | Path | None = None,
        *,
        device: str = "cpu",
        memory_bytes: int | None = None,
        checkpoint_seconds: float = 30.0,
        stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[Federation], None] = lambda _: None,
    ) -> Iterator[Round]:
        """Train from the last checkpoint to the end, or until ``stopped`` says so.

        ``progress`` is called after every round.
        """
        dataset = self.experiment.make_task().load(data_dir)
        federation = self._federation(dataset, device, memory_bytes)
        self._restore(federation)
        self._write_split(federation, dataset)
        total, every = self.experiment.iterations, self.experiment.evaluate_every
        saved = time.monotonic()
        with self.metrics.open("a") as lines:
            while federation.iteration < total and not stopped():
                before = federation.iteration // every
                federation.step()
                if federation.iteration // every > before or federation.iteration >= total:
                    found = federation.evaluate()
                    lines.write(json.dumps(asdict(found)) + "\n")
                    lines.flush()
                    yield found
                progress(federation)
                if time.monotonic() - saved > checkpoint_seconds:
                    self._save(federation)
                    saved = time.monotonic()
        self._save(federation)

    def _federation(self, dataset: Dataset, device: str, memory_bytes: int | None) -> Federation:
        what = self.experiment
        return federate(
            what.make_task(),
            dataset,
            what.make_method(),
            what.environment,
            Sgd(what.learning_rate, what.momentum, what.weight_decay),
            seed=what.seed,
            device=device,
            memory_bytes=memory_bytes,
        )

    def _save(self, federation: Federation) -> None:
        write_whole(self.checkpoint, federation.snapshot().chunks())

    def _restore(self, federation: Federation) -> None:
        """Go back to the last checkpoint, in the metrics as well."""
        if self.checkpoint.exists():
            federation.restore(Snapshot.from_bytes(self.checkpoint.read_bytes()))
        kept = [r for r in self.rounds() if r.iteration <= federation.iteration]
        text = "".join(json.dumps(asdict(r)) + "\n" for r in kept)
        write_whole(self.metrics, [text.encode()])

    def _write_split(self, federation: Federation, dataset: Dataset) -> None:
        counts = federation.split.counts(dataset.train_labels, dataset.num_classes)
        classes = [str(c) for c in range(dataset.num_classes)]
        split = {"classes": classes, "counts": counts.tolist()}
        write_whole(self.path / "split.json", [json.dumps(split).encode()])
        config = json.loads((self.path / "config.json").read_text())
        config["parameters"] = federation.server.terms.layout.size
        write_whole(self.path / "config.json", [_pretty(config)])


def open_run(
    experiment: Experiment, out: Path, *, exactly: Path | None = None, command: str = ""
) -> Run:
    """The run of an experiment: under ``out`` by its digest, or ``exactly`` there.

    A directory that holds another experiment is refused.
    """
    path = exactly or out / experiment.digest
    config = path / "config.json"
    if config.exists():
        found = json.loads(config.read_text()).get("digest")
        if found != experiment.digest:
            raise StoreError(
                f"{path} holds experiment {found}, not {experiment.digest}: choose another place"
            )
    else:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {path}: {error.strerror}") from error
        if any(path.iterdir()):
            raise StoreError(f"{path} holds something that is not a run: choose another place")
        head = {"digest": experiment.digest, "command": command}
        write_whole(config, [_pretty({**head, **experiment.to_json()})])
    return Run(experiment, path)


def _pretty(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
