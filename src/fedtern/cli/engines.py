"""The engines that a run can be made with, by the names they have on the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedtern.engines.local import Federation
from fedtern.experiments import Experiment
from fedtern.experiments.runs import LOCAL
from fedtern.extras import require
from fedtern.names import look_up

Make = Callable[..., Federation]


def engine(name: str, experiment: Experiment, data_dir: Path | None, device: str) -> Make:
    """What makes the federation of an experiment."""
    return look_up(name, _ENGINES, "engine")(experiment, data_dir, device)


def _local(_experiment: Experiment, _data_dir: Path | None, _device: str) -> Make:
    return Federation


def _flower(experiment: Experiment, data_dir: Path | None, device: str) -> Make:
    require("flwr", "flower", "--engine flower")
    require("ray", "flower", "--engine flower")
    from fedtern.flower.engine import FlowerFederation

    if device != "cpu":
        raise ValueError(f"--engine flower trains on the CPU, not on {device!r}: drop --device")
    # A simulation's processes have another working directory.
    return partial(
        FlowerFederation, experiment, None if data_dir is None else str(data_dir.resolve())
    )


_ENGINES: dict[str, Callable[[Experiment, Path | None, str], Make]] = {
    LOCAL: _local,
    "flower": _flower,
}
