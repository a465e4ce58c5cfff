"""What a federation has cost and come to so far, beside its store, as ``fedtern report`` reads it.

``config.json`` says what is run, ``metrics.jsonl`` where things stood after each round, and
``ledger.json`` what has to be known to go on counting after a restart.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common import log

from fedtern.core.errors import StoreError
from fedtern.federation.meter import Traffic
from fedtern.store.files import write_atomic
from fedtern.transports.flower.counters import WireBytes
from fedtern.transports.flower.federation_spec import FederationSpec


@dataclass
class Counts:
    """Numbers that only grow, over all runs of a federation."""

    clients: int = 0  # numbers that have been given out
    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)
    models: int = 0  # times that a client was sent the whole model
    wire_up: int = 0  # of the runs before this one
    wire_down: int = 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Counts:
        """Undo ``asdict``."""
        traffic = {way: Traffic(**values[way]) for way in ("up", "down")}
        return cls(**{**values, **traffic})


_FAR = 1 << 16


class RunTotals:
    """The counts, and on disk where a directory is given."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.counts = Counts()
        self.wire: WireBytes | None = None  # of this run so far
        self._rounds: set[int] = set()  # that have been measured
        if directory is not None and (directory / "ledger.json").exists():
            try:
                found = json.loads((directory / "ledger.json").read_text())
                self.counts = Counts.from_json(found)
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(
                    f"{directory / 'ledger.json'} is damaged ({error}): restore it from a backup"
                ) from error

    def number(self) -> int:
        """A number for a new client, that no other will be given."""
        self.counts.clients += 1
        self.save()
        return self.counts.clients - 1

    def is_taken(self, number: int) -> None:
        """Give no number out that a client says it has: it may have it from another time."""
        # One that is far from all others is not from here; it must not use them up.
        if number < self.counts.clients + _FAR:
            self.counts.clients = max(self.counts.clients, number + 1)

    def save(self) -> None:
        """Write the counts down."""
        if self.directory is not None:
            values = asdict(self.counts)
            if self.wire is not None:
                values["wire_up"] += self.wire.up
                values["wire_down"] += self.wire.down
            self._write("ledger.json", json.dumps(values))

    def begin(self, charter: FederationSpec, rounds: int) -> None:
        """Say what is run, and forget what was measured of rounds that are to be run again."""
        if self.directory is None:
            return
        config = {
            "task": charter.federation,
            "engine": "flower",
            "method": {"name": charter.method.name, **charter.method.parameters},
            "parameters": charter.layout.size,
            "seed": charter.seed,
        }
        self._write("config.json", json.dumps(config, indent=2) + "\n")
        kept = [row for row in self.rows() if row["round"] <= rounds]
        self._rounds = {row["round"] for row in kept}
        self._write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    def rows(self) -> list[dict[str, Any]]:
        """What was measured after each round; a line that was cut off is left out."""
        path = None if self.directory is None else self.directory / "metrics.jsonl"
        if path is None or not path.exists():
            return []
        rows = []
        for line in path.read_text(errors="replace").split("\n")[:-1]:
            try:
                rows.append(json.loads(line))
            except ValueError:  # figures are no reason not to go on
                log(WARNING, "fedtern: a line of %s cannot be read and is left out", path)
        return [row for row in rows if isinstance(row, dict) and "round" in row]

    def measured(self, round: int, charter: FederationSpec, metrics: dict[str, Any]) -> None:
        """Write down where things stand after a round."""
        if self.directory is None or not round or round in self._rounds:
            return
        self._rounds.add(round)
        steps = round * charter.method.local_steps
        row = {
            "iteration": steps,
            "round": round,
            "loss": _pick(metrics, "loss"),
            "accuracy": _pick(metrics, "acc"),
            "up_bytes": self.counts.up.total,
            "down_bytes": self.counts.down.total,
            "up_bytes_mean": self.counts.up.mean,
            "down_bytes_mean": self.counts.down.mean,
            "dense_bytes": 4 * charter.layout.size * steps,
            **{name.replace("-", "_"): n for name, n in self.totals().items() if "wire" in name},
        }
        path = self.directory / "metrics.jsonl"
        try:
            with path.open("a") as lines:
                lines.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error

    def totals(self) -> dict[str, int]:
        """The bytes so far, by the names they have among Flower's metrics."""
        found = {
            "payload-up-bytes": self.counts.up.total,
            "payload-down-bytes": self.counts.down.total,
            "whole-models-sent": self.counts.models,
        }
        if self.wire is not None:
            found["wire-up-bytes"] = self.counts.wire_up + self.wire.up
            found["wire-down-bytes"] = self.counts.wire_down + self.wire.down
        return found

    def _write(self, name: str, text: str) -> None:
        assert self.directory is not None  # or nothing is written
        try:
            write_atomic(self.directory / name, [text.encode()])
        except OSError as error:
            raise StoreError(f"cannot write {self.directory / name}: {error}") from error


def _pick(metrics: dict[str, Any], word: str) -> float | None:
    """The last number whose name has a word in it: apps call their metrics what they like."""
    for name, value in reversed(metrics.items()):
        if word in name.lower() and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None
