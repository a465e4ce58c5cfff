"""Named, repeatable runs and the directories they live in."""

from fedtern.runs.experiment import Experiment, titles
from fedtern.runs.method_text import parse_method
from fedtern.runs.run_directory import Run
from fedtern.runs.run_lookup import find_run, open_run

__all__ = ["Experiment", "Run", "find_run", "open_run", "parse_method", "titles"]
