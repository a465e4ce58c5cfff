"""A run as it lies on disk: what was asked for, and what has been measured so far."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from fedtern.core.errors import RunError

# Named one by one: a run's directory says many other things of itself, and will say more.
EXPERIMENT = (
    *("task", "method", "environment", "iterations"),
    *("learning_rate", "momentum", "weight_decay"),
)
"""What decides what is learnt and sent, but for the seed."""


@dataclass(frozen=True)
class Split:
    """How many examples of each class each client holds."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]  # a row for each client, a column for each class


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory: its configuration, its evaluations in order, and its split if known."""

    path: Path
    config: Mapping[str, Any]
    evaluations: tuple[Mapping[str, Any], ...] = ()
    split: Split | None = None

    @property
    def digest(self) -> str:
        """The name of the experiment; that of the directory where the configuration has none."""
        return str(self.config.get("digest") or self.path.name)

    @property
    def method(self) -> Mapping[str, Any]:
        """The method's name and parameters."""
        method: Mapping[str, Any] = self.config["method"]
        return method

    @property
    def last(self) -> Mapping[str, Any]:
        """The latest evaluation; empty where there is none yet."""
        return self.evaluations[-1] if self.evaluations else {}


def load_run(path: str | PathLike[str]) -> Run:
    """Read a run directory, whether the run has ended, is going on, or was killed."""
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"{path} is not a run directory")
    if not (path / "config.json").exists():
        raise RunError(
            f"{path / 'config.json'}: No such file: {path} is no run, though runs may be in it"
            f" ({path / '*'})"
        )
    config = _object(path / "config.json")
    method = config.get("method")
    if not isinstance(method, dict) or not isinstance(method.get("name"), str):
        raise RunError(f"{path / 'config.json'} names no method")
    return Run(path, config, _evaluations(path / "metrics.jsonl"), _split(path / "split.json"))


def number(values: Mapping[str, Any], key: str) -> float | None:
    """The finite number under a key, or None: what a diverged run writes is not to be drawn."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path} should hold a JSON object")
    return found


def _evaluations(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error
    found = []
    for row, line in enumerate(lines, start=1):
        try:
            evaluation = json.loads(line) if line.strip() else None
        except ValueError:
            evaluation = False
        if isinstance(evaluation, dict):
            found.append(evaluation)
        # A run that is being written, or was killed, may end in half a line. None may be inside.
        elif evaluation is not None and row < len(lines):
            raise RunError(f"{path}: line {row} is not a JSON object")
    return tuple(found)


def _split(path: Path) -> Split | None:
    if not path.exists():
        return None
    found = _object(path)
    try:
        classes = tuple(str(name) for name in found["classes"])
        counts = tuple(tuple(int(count) for count in row) for row in found["counts"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} should hold classes and, for each client, counts") from error
    if any(len(row) != len(classes) for row in counts):
        raise RunError(f"{path} should hold a count for each of the {len(classes)} classes")
    return Split(classes, counts)
