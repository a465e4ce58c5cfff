"""Trackers: callbacks that send evaluations to TensorBoard, MLflow, Weights & Biases or a file.

>>> from fedtern import simulate
>>> from fedtern.runs.trackers import CsvTracker
>>> simulation = simulate("logistic-digits", iterations=20, evaluate_every=10,
...                       callbacks=[CsvTracker("evaluations.csv")])  # doctest: +SKIP
"""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from fedtern.core.errors import StoreError
from fedtern.core.extras import require
from fedtern.core.names import look_up
from fedtern.data.metric_spec import MetricSpec
from fedtern.runs.callbacks import Callback, Training, started
from fedtern.runs.experiment import Experiment
from fedtern.runs.metrics import Evaluation
from fedtern.runs.run_directory import RunDirectory

Target = str | PathLike[str]


def tracked_values(evaluation: Evaluation) -> dict[str, float]:
    """Return the numbers of an evaluation under the names that all trackers use.

    ``client`` are bytes per participating client, summed over rounds; ``server`` are bytes of all
    clients. Values that are not finite are left out.
    """
    values = {
        "round": float(evaluation.round),
        "loss": evaluation.loss,
        **evaluation.metrics,
        "bytes/client_up": evaluation.up_bytes_mean,
        "bytes/client_down": evaluation.down_bytes_mean,
        "bytes/server_up": float(evaluation.up_bytes),
        "bytes/server_down": float(evaluation.down_bytes),
        "bytes/dense": float(evaluation.dense_bytes),
        **{f"seconds/{phase}": spent for phase, spent in evaluation.seconds.items()},
    }
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


class Tracker(Callback):
    """Base class of trackers: override ``open``, ``log`` and ``close``.

    The step of a value is the local iteration. A run that is resumed continues where it was.
    """

    def __init__(self) -> None:
        self._last_step = -1  # the last step that the target has
        self._is_open = False

    def open(self, training: Training) -> int:
        """Open the target; return the last step that it has, or -1."""
        raise NotImplementedError

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add the values of one evaluation."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the target."""

    def on_start(self, simulation: Training) -> None:
        """Open the target."""
        self._last_step = self.open(simulation)
        self._is_open = True

    def on_evaluation(self, simulation: Training, evaluation: Evaluation) -> None:
        """Log an evaluation, unless the target has it."""
        if evaluation.iteration > self._last_step:
            self.log(tracked_values(evaluation), evaluation.iteration)
            self._last_step = evaluation.iteration

    def on_replay(self, simulation: Training, evaluation: Evaluation) -> None:
        """Log an evaluation from before the run was resumed, unless the target has it."""
        self.on_evaluation(simulation, evaluation)

    def on_end(self, simulation: Training) -> None:
        """Close the target."""
        if self._is_open:
            self._is_open = False
            self.close()


class CsvTracker(Tracker):
    """Writes one line per evaluation to a CSV file.

    Args:
        path: The file; by default ``evaluations.csv`` in the run directory. It is replaced.

    """

    def __init__(self, path: Target | None = None) -> None:
        super().__init__()
        self.path = None if path is None else Path(path)
        self._rows: list[dict[str, float]] = []

    def open(self, training: Training) -> int:
        """Create the file."""
        self.path = self.path or _directory(training, "CsvTracker") / "evaluations.csv"
        self._rows = []
        _write(self.path, "")
        return -1  # replayed evaluations are written again

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Append a line; write all lines again if there is a new column."""
        assert self.path is not None
        row = {"iteration": float(step), **values}
        columns = list(dict.fromkeys(name for each in (*self._rows, row) for name in each))
        is_new = not self._rows or columns != list(dict.fromkeys(n for r in self._rows for n in r))
        self._rows.append(row)
        rows = self._rows if is_new else [row]
        try:
            with self.path.open("w" if is_new else "a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, lineterminator="\n")
                if is_new:
                    writer.writeheader()
                writer.writerows(rows)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error


class JsonTracker(Tracker):
    """Writes the experiment and all evaluations to a JSON file.

    Args:
        path: The file; by default ``evaluations.json`` in the run directory. It is replaced.

    """

    def __init__(self, path: Target | None = None) -> None:
        super().__init__()
        self.path = None if path is None else Path(path)
        self._content: dict[str, Any] = {}

    def open(self, training: Training) -> int:
        """Create the file."""
        self.path = self.path or _directory(training, "JsonTracker") / "evaluations.json"
        self._content = {"config": dict(training.config), "evaluations": []}
        self._save()
        return -1

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add an evaluation."""
        self._content["evaluations"].append({"iteration": step, **values})
        self._save()

    def _save(self) -> None:
        assert self.path is not None
        _write(self.path, json.dumps(self._content, indent=1) + "\n")


class TensorBoardTracker(Tracker):
    """Writes an event file for TensorBoard. It needs the package tensorboard, but not PyTorch.

    Args:
        directory: Log directory; by default ``tensorboard`` in the run directory.

    """

    def __init__(self, directory: Target | None = None) -> None:
        super().__init__()
        require("tensorboard", "tensorboard", "TensorBoardTracker")
        self.directory = None if directory is None else Path(directory)
        self._writer: Any = None

    def open(self, training: Training) -> int:
        """Create an event file, which contains the experiment as text."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.directory = (
            self.directory or _directory(training, "TensorBoardTracker") / "tensorboard"
        )
        last = _last_step(self.directory)
        self._writer = EventFileWriter(str(self.directory))
        if last < 0:
            text = "```json\n" + json.dumps(dict(training.config), indent=2) + "\n```"
            plugin = SummaryMetadata.PluginData(plugin_name="text")
            tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
            value = Summary.Value(
                tag="config", tensor=tensor, metadata=SummaryMetadata(plugin_data=plugin)
            )
            self._add([value], 0)
        return last

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add one scalar per value."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(scalars, step)

    def _add(self, values: list[Any], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def _last_step(directory: Path) -> int:
    """Return the last step in the event files of a directory, or -1."""
    if not any(directory.glob("events.out.tfevents.*")):
        return -1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory))
    found.Reload()
    tags = found.Tags()["scalars"]
    return max((found.Scalars(tag)[-1].step for tag in tags), default=-1)


class MlflowTracker(Tracker):
    """Records a run in MLflow, under an experiment with the name of the task.

    Args:
        tracking_uri: Where to record; by default ``MLFLOW_TRACKING_URI``, or MLflow's own default.

    """

    def __init__(self, tracking_uri: str | None = None) -> None:
        super().__init__()
        self.tracking_uri = tracking_uri
        self._mlflow = require("mlflow", "mlflow", "MlflowTracker")
        self._client: Any = None
        self._run_id = ""

    def open(self, training: Training) -> int:
        """Create the run, or continue the one with this experiment's digest."""
        config = training.config
        self._client = self._mlflow.MlflowClient(self.tracking_uri)
        name = str(config["task"])
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        digest = _name(training)
        query = f"tags.fedtern_digest = '{digest}'"
        before = self._client.search_runs([experiment], query) if training.path else []
        if before:
            run = before[0]
            self._run_id = run.info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            history = self._client.get_metric_history(self._run_id, "loss")
            return max((point.step for point in history), default=-1)
        label = Experiment.from_json(config).title
        run = self._client.create_run(experiment, tags={"fedtern_digest": digest}, run_name=label)
        self._run_id = run.info.run_id
        for key, value in _flat(config).items():
            self._client.log_param(self._run_id, key, value)
        return -1

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values as metrics."""
        now = int(time.time() * 1000)
        metric = self._mlflow.entities.Metric
        metrics = [metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)


class WandbTracker(Tracker):
    """Records a run in Weights & Biases.

    Args:
        project: Name of the project.
        mode: "online", "offline" or "disabled"; by default ``WANDB_MODE``, or online. The command
            ``wandb sync`` uploads an offline run.
        directory: Directory of the files; by default the run directory, or ``wandb``.

    """

    def __init__(
        self, project: str = "fedtern", mode: str | None = None, directory: Target | None = None
    ) -> None:
        super().__init__()
        self._wandb = require("wandb", "wandb", "WandbTracker")
        self.project = project
        self.mode = mode
        self.directory = None if directory is None else Path(directory)
        self._run: Any = None

    def open(self, training: Training) -> int:
        """Start the run, or continue the one with this experiment's digest."""
        config = dict(training.config)
        self._run = self._wandb.init(
            project=self.project,
            name=Experiment.from_json(config).title,
            id=_name(training) if training.path else None,
            resume="allow" if training.path else None,
            group=str(config["task"]),
            config=config,
            mode=self.mode,
            dir=str(self.directory or training.path or "."),
        )
        return int(self._run.step) - 1 if self._run.resumed else -1

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def _per_run(kind: Callable[[Path | None], Tracker], suffix: str) -> Callable[[str, str], Tracker]:
    """Return a factory whose target is a directory that gets one file or directory per run."""

    def make(target: str, run: str) -> Tracker:
        return kind(Path(target) / f"{run}{suffix}" if target else None)

    return make


TRACKERS: dict[str, Callable[[str, str], Tracker]] = {
    "tensorboard": _per_run(TensorBoardTracker, ""),
    "mlflow": lambda target, _run: MlflowTracker(target or None),
    "wandb": lambda target, _run: WandbTracker(target or "fedtern"),
    "csv": _per_run(CsvTracker, ".csv"),
    "json": _per_run(JsonTracker, ".json"),
}
"""Trackers of the command line by name; each takes the text after the colon and a run's name."""


def make_tracker(text: str, run: str) -> Tracker:
    """Return the tracker that the command line names.

    Args:
        text: Name, and optionally a colon and the target, such as ``csv:results``.
        run: Name of the run.

    Raises:
        ValueError: The name is unknown.
        MissingExtraError: The package of the tracker is not installed.

    >>> type(make_tracker("csv:results", "871476600353")).__name__
    'CsvTracker'
    """
    name, _, target = text.partition(":")
    return look_up(name, TRACKERS, "tracker")(target, run)


class _FinishedRun:
    """A finished run, as callbacks see it."""

    weights: Mapping[str, Any] = {}

    def __init__(self, run: RunDirectory, evaluations: Sequence[Evaluation]) -> None:
        self.config = run.experiment.to_json()
        self.path = run.path
        self.metric = MetricSpec.of_run(run.config.read())
        self.metrics = (self.metric,)
        self.iteration = evaluations[-1].iteration
        self.round = evaluations[-1].round

    def stop(self) -> None:
        """Do nothing: the run has ended."""


def track_finished_run(run: RunDirectory, trackers: Sequence[Tracker]) -> None:
    """Send the evaluations of a finished run to trackers that do not have them yet.

    Raises:
        RunError: The metrics of the run are damaged.

    """
    evaluations = run.complete_evaluations()
    with started(trackers, _FinishedRun(run, evaluations), evaluations):
        pass


def _directory(training: Training, user: str) -> Path:
    if training.path is None:
        raise ValueError(f"{user} needs a path, because the simulation has no run directory (out=)")
    return training.path


def _name(training: Training) -> str:
    return Experiment.from_json(training.config).digest


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
