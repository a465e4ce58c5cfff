"""Totals of a Flower federation: client numbers, traffic and metrics, kept next to its store.

The store directory is also a run directory that ``fedtern report`` reads: ``config.json`` names the
method, and ``metrics.jsonl`` has one line per round. ``ledger.json`` holds the counters that
continue after a restart.
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

from fedtern.core.errors import RunError, StoreError
from fedtern.federation.meter import Traffic
from fedtern.runs.config_file import ConfigFile
from fedtern.runs.machine import describe_machine
from fedtern.runs.metrics import MetricsFile
from fedtern.runs.status import RUNNING, Clients, Status, StatusFile
from fedtern.store.files import write_atomic
from fedtern.transports.flower.counters import WireBytes
from fedtern.transports.flower.federation_spec import FederationSpec

_COUNTS = "ledger.json"
# A client number further than this above all others was not assigned by this federation.
_LARGEST_GAP = 1 << 16


@dataclass
class Counts:
    """Counters that only grow, over all runs of a federation."""

    clients: int = 0  # client numbers that have been assigned
    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)
    models: int = 0  # times that the whole model was sent to a client
    wire_up: int = 0  # of earlier runs, as Flower counted them
    wire_down: int = 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Counts:
        """Read the result of ``asdict``."""
        traffic = {name: Traffic(**values[name]) for name in ("up", "down")}
        return cls(**{**values, **traffic})


class RunTotals:
    """Counters and metrics of a federation.

    Args:
        directory: The directory to keep them in; None to keep them in memory only.

    Raises:
        StoreError: ``ledger.json`` is damaged.

    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.counts = Counts()
        self.wire_bytes: WireBytes | None = None  # of this run so far
        self._recorded_rounds: set[int] = set()
        self._status = None if directory is None else StatusFile(directory)
        if directory is not None and (directory / _COUNTS).exists():
            path = directory / _COUNTS
            try:
                self.counts = Counts.from_json(json.loads(path.read_text()))
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(
                    f"{path} is damaged ({error}); restore it from a backup"
                ) from error

    def new_client_number(self) -> int:
        """Assign a number to a new client."""
        self.counts.clients += 1
        self.save()
        return self.counts.clients - 1

    def reserve_client_number(self, number: int) -> None:
        """Never assign a number that a client already has, such as from before a backup."""
        # A number far above all others is not one of ours; it must not use up the range.
        if number < self.counts.clients + _LARGEST_GAP:
            self.counts.clients = max(self.counts.clients, number + 1)

    def save(self) -> None:
        """Write the counters to ``ledger.json``.

        Raises:
            StoreError: The file cannot be written.

        """
        if self.directory is None:
            return
        values = asdict(self.counts)
        if self.wire_bytes is not None:
            values["wire_up"] += self.wire_bytes.up
            values["wire_down"] += self.wire_bytes.down
        path = self.directory / _COUNTS
        try:
            write_atomic(path, [json.dumps(values).encode()])
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error

    def start(self, spec: FederationSpec, rounds: int) -> None:
        """Write ``config.json``, and remove metrics of rounds that will be repeated.

        A damaged line of ``metrics.jsonl`` is logged and dropped: the federation can train without
        its past metrics.

        Args:
            spec: The federation.
            rounds: Number of finished rounds.

        """
        if self.directory is None:
            return
        config = {
            "task": spec.federation,
            "engine": "flower",
            "method": {"name": spec.method.name, **spec.method.parameters},
            "parameters": spec.layout.size,
            "seed": spec.seed,
            "machine": describe_machine(),
        }
        ConfigFile(self.directory / "config.json").replace(config)
        metrics = MetricsFile(self.directory / "metrics.jsonl")
        kept = [row for row in metrics.read(_with_round, _log_damage) if row["round"] <= rounds]
        metrics.replace(kept)
        self._recorded_rounds = {row["round"] for row in kept}

    def record_round(self, round: int, spec: FederationSpec, metrics: dict[str, Any]) -> None:
        """Append a line to ``metrics.jsonl``, unless the round has one.

        Args:
            round: Number of finished rounds.
            spec: The federation.
            metrics: Metrics that the app reported.

        Raises:
            StoreError: The file cannot be written.

        """
        if self.directory is None or not round or round in self._recorded_rounds:
            return
        self._recorded_rounds.add(round)
        steps = round * spec.method.local_steps
        row = {
            "iteration": steps,
            "round": round,
            "loss": _pick(metrics, "loss"),
            "accuracy": _pick(metrics, "acc"),
            "up_bytes": self.counts.up.total,
            "down_bytes": self.counts.down.total,
            "up_bytes_mean": self.counts.up.mean,
            "down_bytes_mean": self.counts.down.mean,
            "dense_bytes": spec.layout.nbytes * steps,
            **{
                name.replace("-", "_"): nbytes
                for name, nbytes in self.to_metrics().items()
                if name.startswith("wire-")
            },
        }
        MetricsFile(self.directory / "metrics.jsonl").append(row)

    def write_status(self, round: int, spec: FederationSpec, clients: Clients, state: str) -> None:
        """Write ``status.json``, for the live page.

        Args:
            round: Number of finished rounds.
            spec: The federation.
            clients: Clients of the round.
            state: ``RUNNING``, ``STOPPED`` or ``FINISHED``.

        """
        if self._status is None:
            return
        status = Status(
            iteration=round * spec.method.local_steps,
            round=round,
            up_bytes=self.counts.up.total,
            down_bytes=self.counts.down.total,
            up_bytes_mean=self.counts.up.mean,
            down_bytes_mean=self.counts.down.mean,
            clients=clients,
        )
        if state == RUNNING:
            self._status.update(lambda: status)
        else:
            self._status.write(status, state)

    def to_metrics(self) -> dict[str, int]:
        """Return the traffic so far as metrics for Flower."""
        metrics = {
            "payload-up-bytes": self.counts.up.total,
            "payload-down-bytes": self.counts.down.total,
            "whole-models-sent": self.counts.models,
        }
        if self.wire_bytes is not None:
            metrics["wire-up-bytes"] = self.counts.wire_up + self.wire_bytes.up
            metrics["wire-down-bytes"] = self.counts.wire_down + self.wire_bytes.down
        return metrics


def _pick(metrics: dict[str, Any], word: str) -> float | None:
    """Return the last finite number whose name contains a word: apps choose the names."""
    for name, value in reversed(metrics.items()):
        if word in name.lower() and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None


def _with_round(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(row.get("round"), int):
        raise ValueError("missing: round")
    return row


def _log_damage(error: RunError) -> None:
    log(WARNING, "fedtern: dropped a line that cannot be read: %s", error)
