"""What a simulation has cost so far: bytes each way, and seconds by phase."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

PHASES = ("train", "compress", "encode", "decode", "aggregate", "states", "evaluate", "save")


@dataclass
class Traffic:
    """One direction: real bytes of all clients, their mean over each cohort, the paper's count."""

    total: int = 0
    mean: float = 0.0
    paper: float = 0.0

    def add(self, sizes: list[int], paper_bits: float) -> None:
        """Count one round: the bytes of each client in it, and the paper's bits of all together."""
        self.total += sum(sizes)
        self.mean += sum(sizes) / len(sizes)
        self.paper += paper_bits / 8 / len(sizes)


@dataclass
class Meter:
    """Counters that only grow."""

    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def __post_init__(self) -> None:
        self._phases = {name: Phase(self.seconds, name) for name in PHASES}

    def phase(self, name: str) -> Phase:
        """Time what happens inside, where there may be other phases but not the same one again."""
        return self._phases[name]


class Phase:
    """Adds the time between its beginning and its end to a counter."""

    # A generator would do, and take as long as some of what is timed.
    __slots__ = ("_begin", "_name", "_seconds")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._seconds[self._name] += time.perf_counter() - self._begin
