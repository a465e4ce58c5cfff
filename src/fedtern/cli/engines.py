"""The engines that a run can be made with, by the names they have on the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedtern.core.extras import require
from fedtern.core.names import look_up
from fedtern.runs import LOCAL_ENGINE, Experiment
from fedtern.transports.local.federation import Federation

Make = Callable[..., Federation]


def engine(name: str, experiment: Experiment, data_dir: Path | None, device: str) -> Make:
    """What makes the federation of an experiment."""
    return look_up(name, _ENGINES, "engine")(experiment, data_dir, device)


def _local(_experiment: Experiment, _data_dir: Path | None, _device: str) -> Make:
    return Federation


def _flower(experiment: Experiment, data_dir: Path | None, device: str) -> Make:
    require("flwr", "flower", "--engine flower")
    require("ray", "flower", "--engine flower")
    from fedtern.transports.flower.engine import FlowerFederation

    if device != "cpu":
        raise ValueError(f"--engine flower trains on the CPU, not on {device!r}: drop --device")
    # A simulation's processes have another working directory.
    return partial(
        FlowerFederation, experiment, None if data_dir is None else str(data_dir.resolve())
    )


_ENGINES: dict[str, Callable[[Experiment, Path | None, str], Make]] = {
    LOCAL_ENGINE: _local,
    "flower": _flower,
}
