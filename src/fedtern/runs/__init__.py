"""Experiments and the directories that keep their runs; reading them does not need torch."""

from fedtern.runs.experiment import Experiment, titles
from fedtern.runs.method_text import complete_method, format_method, parse_method
from fedtern.runs.metrics import Evaluation
from fedtern.runs.recorded_run import RecordedRun, load_run
from fedtern.runs.run_directory import LOCAL_ENGINE, RunDirectory, open_run, reopen_run
from fedtern.runs.units import DEFINITIONS

__all__ = [
    "DEFINITIONS",
    "LOCAL_ENGINE",
    "Evaluation",
    "Experiment",
    "RecordedRun",
    "RunDirectory",
    "complete_method",
    "format_method",
    "load_run",
    "open_run",
    "parse_method",
    "reopen_run",
    "titles",
]
