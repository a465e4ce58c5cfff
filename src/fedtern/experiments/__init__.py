"""Named, repeatable runs and the directories they live in."""

from fedtern.experiments.experiment import Experiment, titles
from fedtern.experiments.finding import find_run, open_run
from fedtern.experiments.methods import parse_method
from fedtern.experiments.runs import Run

__all__ = ["Experiment", "Run", "find_run", "open_run", "parse_method", "titles"]
