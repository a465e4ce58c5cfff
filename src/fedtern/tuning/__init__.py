"""Search for the parameters of a method that need the fewest bytes; needs torch."""

from fedtern.tuning.curve import Cost, Curve
from fedtern.tuning.grid import Grid
from fedtern.tuning.plan import Plan
from fedtern.tuning.result import Candidate, Tuning
from fedtern.tuning.search import TuningStopped, search, tune

__all__ = [
    "Candidate",
    "Cost",
    "Curve",
    "Grid",
    "Plan",
    "Tuning",
    "TuningStopped",
    "search",
    "tune",
]
