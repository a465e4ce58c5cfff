"""Named, repeatable runs and the directories they live in."""

from fedtern.experiments.experiment import Experiment, parse_method
from fedtern.experiments.runs import Run, find_run, open_run

__all__ = ["Experiment", "Run", "find_run", "open_run", "parse_method"]
