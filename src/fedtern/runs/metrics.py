"""The evaluations of a run: one JSON object per line of ``metrics.jsonl``.

Engines append a line per evaluation while other processes may read the file, and a process can be
killed while it writes. One policy therefore applies wherever the file is read:

- An unfinished last line (no newline, and not a JSON object) is dropped without a message: the
  process that writes it has not finished, or was killed.
- Empty lines are ignored.
- Any other line that cannot be read is damaged. By default, reading raises ``RunError`` with the
  file and the line number, because a result that is computed without that line would be wrong. A
  server that resumes a federation passes ``on_damage`` instead: it logs the error and continues
  without the line, because it can train without its past metrics.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fedtern.core.errors import RunError, StoreError
from fedtern.store.files import write_atomic

START = "start"
"""Phase of what only the first round of a process does, such as starting workers."""

T = TypeVar("T")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """Quality of the model after a round, with traffic and time since the start of the run.

    ``fedtern.runs.units`` explains the two kinds of bytes: per client and at the server.

    Attributes:
        iteration: Local iterations of a client that takes part in every round.
        round: Finished rounds.
        loss: Mean loss over the test examples; infinite if the model has diverged.
        accuracy: Share of test examples that are classified correctly; NaN if the task has no such
            metric.
        up_bytes: Bytes uploaded by all clients.
        down_bytes: Bytes downloaded by all clients.
        up_bytes_mean: Upload per participating client, summed over rounds.
        down_bytes_mean: Download per participating client, summed over rounds.
        up_bytes_paper: Like ``up_bytes_mean``, by the paper's formulas.
        down_bytes_paper: Like ``down_bytes_mean``, by the paper's formulas.
        dense_bytes: Bytes that uncompressed training sends in one direction.
        seconds: Seconds by phase, such as "train" and "evaluate".
        metrics: All metrics of the task by name, accuracy included, the primary one first.
        privacy: Privacy loss so far: ``epsilon``, ``delta``, ``participations`` of the client that
            took part most often, and ``budget`` if there is one; empty without privacy.

    """

    iteration: int
    round: int
    loss: float
    accuracy: float
    up_bytes: int
    down_bytes: int
    up_bytes_mean: float
    down_bytes_mean: float
    up_bytes_paper: float
    down_bytes_paper: float
    dense_bytes: int
    seconds: dict[str, float]
    metrics: dict[str, float] = field(default_factory=dict)
    privacy: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.metrics and not math.isnan(self.accuracy):  # as in files of earlier versions
            object.__setattr__(self, "metrics", {"accuracy": self.accuracy})

    @property
    def primary(self) -> tuple[str, float]:
        """Name and value of the primary metric; the loss if the task has no other metric."""
        return next(iter(self.metrics.items()), ("loss", self.loss))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; numbers that are not finite become null.

        It has the field ``metrics`` only if there are other metrics than accuracy.
        """
        row = _finite(asdict(self))
        if list(self.metrics) == ["accuracy"]:
            del row["metrics"]
        if not self.privacy:
            del row["privacy"]
        return row

    @classmethod
    def from_json(cls, row: Row) -> Evaluation:
        """Read a JSON object that ``to_json`` returned.

        Raises:
            ValueError: Fields are missing or unknown.

        """
        names = {each.name for each in fields(cls)}
        if (
            missing := names - row.keys() - {"metrics", "privacy"}
        ):  # earlier versions had only accuracy
            raise ValueError(f"missing: {', '.join(sorted(missing))}")
        if unknown := row.keys() - names:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        loss = math.inf if row["loss"] is None else row["loss"]
        metrics = {k: math.nan if v is None else v for k, v in row.get("metrics", {}).items()}
        accuracy = math.nan if row["accuracy"] is None else row["accuracy"]
        return cls(**{**row, "loss": loss, "accuracy": accuracy, "metrics": metrics})


def raise_error(error: RunError) -> NoReturn:
    """Raise the error: the default for damaged lines."""
    raise error


class MetricsFile:
    """Reader and writer of a ``metrics.jsonl``, which does not have to exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(
        self, parse: Callable[[Row], T], on_damage: Callable[[RunError], None] = raise_error
    ) -> list[T]:
        """Read all lines.

        Args:
            parse: Converts the JSON object of a line; raises ``ValueError`` to reject it.
            on_damage: Called with an error for each damaged line. If it returns, the line is
                dropped.

        Returns:
            What ``parse`` returned for each line; empty if there is no file.

        Raises:
            RunError: The file cannot be opened or, by default, a line is damaged.

        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error.strerror}") from error
        rows = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = _json_object(line)
            except ValueError as error:
                if number < len(lines):  # otherwise the line is unfinished
                    on_damage(self._damaged(number, error))
                continue
            try:
                rows.append(parse(row))
            except ValueError as error:
                on_damage(self._damaged(number, error))
        return rows

    def evaluations(self, on_damage: Callable[[RunError], None] = raise_error) -> list[Evaluation]:
        """Read all lines as evaluations; see ``read``."""
        return self.read(Evaluation.from_json, on_damage)

    def append(self, row: Row) -> None:
        """Add a line.

        The file must end with a complete line: ``replace`` it before a process that resumes a run
        appends to it.

        Raises:
            StoreError: The file cannot be written.

        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(row))
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error

    def replace(self, rows: Iterable[Row]) -> None:
        """Replace all lines in one step.

        Raises:
            StoreError: The file cannot be written; the old one is unchanged.

        """
        try:
            write_atomic(self.path, [_line(row).encode() for row in rows])
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error

    def sync(self) -> None:
        """Force appended lines to the disk, so that they survive a power failure."""
        with self.path.open("ab") as file:
            os.fsync(file.fileno())

    def _damaged(self, number: int, error: ValueError) -> RunError:
        return RunError(
            f"{self.path}: line {number} is damaged, or was written by another version of fedtern"
            f" ({error}); restore the file, or move {self.path.parent} away"
        )


def _json_object(line: bytes) -> dict[str, Any]:
    found = json.loads(line.decode("utf-8"))
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _line(row: Row) -> str:
    return json.dumps(_finite(row), allow_nan=False) + "\n"


def _finite(row: Row) -> dict[str, Any]:
    """Replace numbers that JSON does not have."""
    return {key: _finite_value(value) for key, value in row.items()}


def _finite_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _finite(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
