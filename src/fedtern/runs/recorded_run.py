"""Read run directories: those of ``fedtern run``, of ``fedtern serve`` and of Flower apps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from fedtern.core.errors import RunError
from fedtern.runs.config_file import ConfigFile, damaged_file, read_json_object
from fedtern.runs.experiment import Experiment
from fedtern.runs.metrics import MetricsFile

EXPERIMENT_KEYS = tuple(
    field.name for field in fields(Experiment) if field.name not in ("evaluate_every", "seed")
)
"""Keys of ``config.json`` that are equal for runs that differ only in their seed."""


@dataclass(frozen=True)
class ClassCounts:
    """Number of examples of each class that each client holds."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]  # a row for each client, a column for each class


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """Content of a run directory, for a run that has finished, is running or was killed.

    Attributes:
        path: The run directory.
        config: Content of ``config.json``. Flower apps write fewer keys than an experiment has.
        evaluations: Lines of ``metrics.jsonl``, in order. Flower apps write other keys, too.
        split: Content of ``split.json``, if there is one.

    """

    path: Path
    config: Mapping[str, Any]
    evaluations: tuple[Mapping[str, Any], ...] = ()
    split: ClassCounts | None = None

    @property
    def digest(self) -> str:
        """The experiment's digest, or the name of the directory if the run has none."""
        return str(self.config.get("digest") or self.path.name)

    @property
    def method(self) -> Mapping[str, Any]:
        """The method's name and parameters."""
        method: Mapping[str, Any] = self.config["method"]
        return method

    @property
    def last(self) -> Mapping[str, Any]:
        """The latest evaluation; empty if there is none."""
        return self.evaluations[-1] if self.evaluations else {}

    @property
    def is_complete(self) -> bool:
        """Whether the run has finished and its metrics reach its last iteration.

        A callback may have stopped the run before the planned number of iterations.
        """
        reached = self.last.get("iteration", 0) if self.config.get("finished") else 0
        last = self.config.get("stopped", self.config.get("iterations", 0))
        return bool(reached and reached >= last)


def load_run(path: str | PathLike[str]) -> RecordedRun:
    """Read a run directory.

    Args:
        path: The directory; another process may be writing to it.

    Raises:
        RunError: The directory holds no run, or one of its files is damaged.

    """
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"{path} is not a run directory")
    config_file = ConfigFile(path / "config.json")
    config = config_file.read()
    if not config and not config_file.path.exists():
        raise RunError(
            f"{path} is not a run directory: it has no config.json; try {path / '*'} if it holds"
            " run directories"
        )
    method = config.get("method")
    if not isinstance(method, dict) or not isinstance(method.get("name"), str):
        raise damaged_file(config_file.path, "it names no method")
    evaluations = MetricsFile(path / "metrics.jsonl").read(dict)
    return RecordedRun(path, config, tuple(evaluations), _read_split(path / "split.json"))


def finite_number(values: Mapping[str, Any], key: str) -> float | None:
    """Return the number under a key; None if there is none or it is not finite."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _read_split(path: Path) -> ClassCounts | None:
    try:
        found = read_json_object(path)
    except FileNotFoundError:
        return None
    try:
        classes = tuple(str(name) for name in found["classes"])
        counts = tuple(tuple(int(count) for count in row) for row in found["counts"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_file(path, "expected classes and counts for each client") from error
    if any(len(row) != len(classes) for row in counts):
        raise damaged_file(path, f"expected {len(classes)} counts for each client")
    return ClassCounts(classes, counts)
