"""The directory of an experiment's run: create it, lock it, write it, resume from it.

- ``config.json``: the experiment and the command; once finished, also that it is.
- ``split.json``: the number of examples of each class that each client holds.
- ``metrics.jsonl``: one line per evaluation.
- ``status.json``: the state between evaluations, for the live page.
- ``checkpoint.safetensors``: the state to resume from; removed when the run finishes.
- ``model.safetensors``: the trained model; written when the run finishes.
- ``lock``: locked by the process that writes to the directory.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedtern.core.errors import RunError, StoreError
from fedtern.core.snapshot import Snapshot
from fedtern.data import Dataset, Split
from fedtern.data.metric_spec import MetricSpec
from fedtern.runs.config_file import ConfigFile
from fedtern.runs.experiment import Experiment
from fedtern.runs.machine import describe_machine
from fedtern.runs.metrics import Evaluation, MetricsFile, raise_error
from fedtern.store.files import Lock, write_atomic

LOCAL_ENGINE = "local"


class RunDirectory:
    """Run of an experiment in a directory, which does not have to exist yet.

    Use ``open_run`` or ``reopen_run``, which check what the directory holds.

    Args:
        experiment: The experiment.
        path: The directory.
        command: Command line that starts the run, for ``config.json``.
        engine: Name of the engine that runs it.

    """

    def __init__(
        self, experiment: Experiment, path: Path, command: str = "", engine: str = LOCAL_ENGINE
    ) -> None:
        self.experiment = experiment
        self.path = path
        self.command = command
        self.engine = engine
        self.config = ConfigFile(path / "config.json")
        self.metrics = MetricsFile(path / "metrics.jsonl")
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.model_path = path / "model.safetensors"

    def recorded_digest(self) -> str | None:
        """Return the digest of the experiment in the directory; None if it holds none."""
        return self.config.read().get("digest")

    def is_finished(self) -> bool:
        """Return whether the run has been trained, evaluated and saved to its end."""
        config = self.config.read()
        return config.get("digest") is not None and bool(config.get("finished"))

    def evaluations(self) -> list[Evaluation]:
        """Return all evaluations so far.

        Raises:
            RunError: A line of ``metrics.jsonl`` is damaged.

        """
        return self.metrics.evaluations()

    def complete_evaluations(self) -> list[Evaluation]:
        """Return all evaluations of a finished run.

        Raises:
            RunError: ``metrics.jsonl`` is missing, ends before the last iteration or is damaged.

        """
        found = self.evaluations()
        last = self.config.read().get("stopped", self.experiment.iterations)
        if not found or found[-1].iteration < last:
            problem = "ends early" if found else "is missing or empty"
            raise RunError(
                f"{self.metrics.path} {problem}, but the run is finished; move {self.path} away to"
                " repeat the run"
            )
        return found

    def final_evaluation(self) -> Evaluation:
        """Return the last evaluation of a finished run; see ``complete_evaluations``."""
        return self.complete_evaluations()[-1]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for this process; create it if it does not exist.

        Raises:
            LockedError: Another process has locked the directory.
            StoreError: The directory cannot be created.

        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {self.path}: {error.strerror}") from error
        lock = Lock(self.path)
        try:
            yield
        finally:
            lock.close()

    def create(self) -> None:
        """Create the directory with the experiment in it, unless it exists."""
        if self.recorded_digest() is None:
            with self.locked():
                self.write_experiment()

    def write_experiment(self) -> None:
        """Write the experiment to ``config.json``, unless it is there; hold the lock."""
        if self.recorded_digest() is None:
            head = {"digest": self.experiment.digest, "command": self.command}
            engine = {} if self.engine == LOCAL_ENGINE else {"engine": self.engine}
            self.config.update({**head, **engine, **self.experiment.to_json()})

    def check_fingerprint(self, parts: Mapping[str, str]) -> None:
        """Check that the directory holds no run of another model, other data or other functions.

        Args:
            parts: Digests by the names of the parts.

        Raises:
            StoreError: A part differs from the recorded one; the message names it.

        """
        recorded = self.config.read().get("fingerprint")
        if recorded is None:
            return
        known = recorded if isinstance(recorded, Mapping) else {}
        differing = [name for name, digest in parts.items() if known.get(name) != digest]
        if not differing:
            return
        hint = ""
        if differing == ["frozen parameters or buffers"]:
            hint = "; if they are random, call torch.manual_seed before you make the model"
        raise StoreError(
            f"{self.path} holds a run of task {self.experiment.task!r} that differs in"
            f" {', '.join(differing)}{hint}; choose another directory or move it away"
        )

    def write_fingerprint(self, parts: Mapping[str, str], training: Mapping[str, str]) -> None:
        """Record how clients train; hold the lock.

        Args:
            parts: Digests for ``check_fingerprint``.
            training: Settings such as the optimiser, for people and reports.

        """
        entries = {"training": dict(training), "fingerprint": dict(parts)}
        self.config.update({key: value for key, value in entries.items() if value})

    def write_setup(
        self,
        split: Split,
        dataset: Dataset,
        parameters: int,
        metric: MetricSpec | None = None,
    ) -> None:
        """Write ``split.json``, and the rest of ``config.json``; hold the lock.

        That is the model's number of parameters, the metric, and the software and hardware. If a
        run is resumed with other software or on another machine, both are recorded.

        Args:
            split: The training examples of each client.
            dataset: The dataset. One without classes counts as one class.
            parameters: Number of parameters of the model.
            metric: The primary metric; by default accuracy.

        """
        num_classes = dataset.num_classes or 1
        counts = split.counts(dataset.classes, num_classes)
        names = ["examples"] if dataset.num_classes is None else map(str, range(num_classes))
        classes = list(names)
        text = json.dumps({"classes": classes, "counts": counts.tolist()})
        write_atomic(self.path / "split.json", [text.encode()])
        setup: dict[str, Any] = {"parameters": parameters}
        if metric is not None and metric != MetricSpec():
            setup["metric"] = metric.to_json()
        machine = describe_machine()
        if self.config.read().get("machine", machine) == machine:
            setup["machine"] = machine
        else:
            setup["resumed_on"] = machine
        self.config.update(setup)

    def resume_metrics(
        self,
        keep: Callable[[Evaluation], bool] = lambda _: True,
        on_damage: Callable[[RunError], None] = raise_error,
    ) -> list[Evaluation]:
        """Prepare ``metrics.jsonl`` for more evaluations; hold the lock.

        Removes an unfinished last line and the evaluations that will be repeated.

        Args:
            keep: Whether an evaluation stays.
            on_damage: See ``MetricsFile.read``.

        Returns:
            The evaluations that stay.

        """
        kept = [found for found in self.metrics.evaluations(on_damage) if keep(found)]
        self.metrics.replace(found.to_json() for found in kept)
        return kept

    def record(self, evaluation: Evaluation) -> None:
        """Append an evaluation to ``metrics.jsonl``; hold the lock."""
        self.metrics.append(evaluation.to_json())

    def load_checkpoint(self) -> Snapshot | None:
        """Read the checkpoint; None if there is none.

        Raises:
            RunError: The checkpoint is damaged.

        """
        if not self.checkpoint_path.exists():
            return None
        try:
            # Mapped, not read: it can be larger than the memory limit for the clients' states.
            with self.checkpoint_path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return Snapshot.from_bytes(data)
        except (ValueError, KeyError) as error:
            raise self.damaged_checkpoint(error) from error

    def damaged_checkpoint(self, reason: Exception) -> RunError:
        """Return the error for a checkpoint that cannot be restored."""
        return RunError(
            f"{self.checkpoint_path} is damaged ({reason}); remove it to start the run again"
        )

    def save_checkpoint(self, snapshot: Snapshot) -> None:
        """Replace the checkpoint; hold the lock.

        The evaluations before it are synced first: a run that resumes does not repeat them.
        """
        self.metrics.sync()
        write_atomic(self.checkpoint_path, snapshot.chunks())

    def finish(
        self,
        model: Mapping[str, NDArray[Any]],
        state: str | None = None,
        stopped: int | None = None,
    ) -> None:
        """Save the model, mark the run as finished and remove the checkpoint; hold the lock.

        Args:
            model: Tensors by name.
            state: Digest of the final state of server and clients, if known.
            stopped: Iteration at which training ended early; None if it did not.

        """
        self.metrics.sync()
        write_atomic(self.model_path, Snapshot(model, {}).chunks())
        ending = {"finished": True, "state": state, "stopped": stopped}
        self.config.update({key: value for key, value in ending.items() if value is not None})
        self.remove_old_checkpoint()

    def remove_old_checkpoint(self) -> None:
        """Remove the checkpoint of a finished run; a kill can leave one behind.

        Residuals and momentum of all clients can be a thousand times as large as the model.
        """
        # Without the model, the checkpoint is all that is left of the training.
        if self.checkpoint_path.exists() and self.model_path.exists() and self.is_finished():
            with suppress(OSError):  # the directory may be read-only
                self.checkpoint_path.unlink()


def run_path(experiment: Experiment, out: Path, engine: str = LOCAL_ENGINE) -> Path:
    """Return the run directory of an experiment below a directory of runs."""
    suffix = "" if engine == LOCAL_ENGINE else f"-{engine}"
    return out / f"{experiment.digest}{suffix}"


def open_run(
    experiment: Experiment,
    out: Path,
    *,
    path: Path | None = None,
    command: str = "",
    engine: str = LOCAL_ENGINE,
) -> RunDirectory:
    """Return the run directory of an experiment, which does not have to exist yet.

    Args:
        experiment: The experiment.
        out: Directory of run directories; each is named by its experiment's digest.
        path: Use this directory instead of one below ``out``.
        command: Command line that starts the run, for ``config.json``.
        engine: Name of the engine that runs it.

    Raises:
        StoreError: The directory holds another experiment or other files.

    """
    run = RunDirectory(experiment, path or run_path(experiment, out, engine), command, engine)
    if run.path.exists() and not run.path.is_dir():
        raise StoreError(f"cannot create {run.path}: a file of this name exists")
    recorded = run.recorded_digest()
    if recorded not in (None, experiment.digest):
        raise StoreError(
            f"{run.path} holds experiment {recorded}, not {experiment.digest}; choose another"
            " directory"
        )
    if recorded is None and run.path.exists():
        # A process that has just created the directory has only locked it, or is writing drafts.
        others = [file for file in run.path.iterdir() if not _is_transient(file)]
        if others and run.recorded_digest() != experiment.digest:
            raise StoreError(f"{run.path} holds files that are not a run; choose another directory")
    run.remove_old_checkpoint()
    return run


def _is_transient(file: Path) -> bool:
    return file.name == "lock" or file.suffix == ".draft"


def reopen_run(path: Path) -> RunDirectory:
    """Return the run directory at a path.

    Raises:
        RunError: The directory does not hold the run of an experiment.

    """
    values = ConfigFile(path / "config.json").read()
    if not values:
        raise RunError(f"{path} is not a run directory of an experiment: it has no config.json")
    try:
        experiment = Experiment.from_json(values)
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is not a run directory of an experiment: {error}") from error
    engine = str(values.get("engine", LOCAL_ENGINE))
    return open_run(experiment, path.parent, path=path, engine=engine)
