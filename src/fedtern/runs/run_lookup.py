"""Where the run of an experiment is, and which run a directory holds."""

from __future__ import annotations

from pathlib import Path

from fedtern.core.errors import StoreError
from fedtern.runs.config_file import Configuration
from fedtern.runs.experiment import Experiment
from fedtern.runs.run_directory import LOCAL, Run


def open_run(
    experiment: Experiment,
    out: Path,
    *,
    exactly: Path | None = None,
    command: str = "",
    engine: str = LOCAL,
) -> Run:
    """The run of an experiment: under ``out`` by its digest, or ``exactly`` there.

    A directory that holds another experiment is refused.
    """
    name = experiment.digest if engine == LOCAL else f"{experiment.digest}-{engine}"
    path = exactly or out / name
    run = Run(experiment, path, command, engine)
    if path.exists() and not path.is_dir():
        raise StoreError(f"cannot make {path}: a file is in the way")
    if (found := run.digest()) not in (None, experiment.digest):
        raise StoreError(
            f"{path} holds experiment {found}, not {experiment.digest}: choose another place"
        )
    there = path.iterdir() if found is None and path.exists() else ()
    # Another process may have just made it, and have said nothing yet.
    strange = any(inside.name != "lock" and inside.suffix != ".draft" for inside in there)
    if strange and run.digest() != experiment.digest:
        raise StoreError(f"{path} holds something that is not a run: choose another place")
    run.tidy()
    return run


def find_run(path: Path) -> Run:
    """The run that a directory holds."""
    values = Configuration(path / "config.json").read()
    if not values:
        raise StoreError(f"{path} is no run of `fedtern run` or `compare`: there is no config.json")
    try:
        experiment = Experiment.from_json(values)
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is no run of `fedtern run` or `compare`: {error}") from error
    engine = str(values.get("engine", LOCAL))
    return open_run(experiment, path.parent, exactly=path, engine=engine)
