"""Costs of a federation so far: bytes in each direction and seconds by phase."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

PHASES = ("train", "compress", "encode", "decode", "aggregate", "states", "evaluate", "save")


@dataclass
class Traffic:
    """Bytes in one direction.

    Attributes:
        total: measured bytes of all clients.
        mean: measured bytes per client of a cohort, summed over rounds.
        paper: like ``mean``, by the paper's formulas.

    """

    total: int = 0
    mean: float = 0.0
    paper: float = 0.0

    def add(self, sizes: list[int], paper_bits: float) -> None:
        """Count one round: the bytes of each client, and the paper's bits of all together."""
        self.total += sum(sizes)
        self.mean += sum(sizes) / len(sizes)
        self.paper += paper_bits / 8 / len(sizes)


@dataclass
class Meter:
    """Counters of a simulation; they never decrease."""

    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def __post_init__(self) -> None:
        self._phases = {name: Phase(self.seconds, name) for name in PHASES}

    def phase(self, name: str) -> Phase:
        """Return the timer of a phase. Different phases can be nested."""
        return self._phases[name]


class Phase:
    """Context manager that adds its duration to a counter."""

    # A generator-based context manager takes as long as some of the phases.
    __slots__ = ("_begin", "_name", "_seconds")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds = seconds
        self._name = name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._seconds[self._name] += time.perf_counter() - self._begin
