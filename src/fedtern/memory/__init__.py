"""What one side of a link remembers between rounds.

A memory's state is a mapping of named vectors; a missing vector stands for zeros. States are
values: a step returns a new one and leaves the old one as it was, so that a refused step costs
nothing. The ``delta`` given to a step is taken over and written to.
"""

from fedtern.memory.feedback import ErrorFeedback, Memoryless
from fedtern.memory.memory import EMPTY, OBSERVED, Memory, State
from fedtern.memory.momentum import MomentumCorrection
from fedtern.memory.power import PowerIteration
from fedtern.memory.variance import Unambiguous

__all__ = [
    "EMPTY",
    "OBSERVED",
    "ErrorFeedback",
    "Memory",
    "Memoryless",
    "MomentumCorrection",
    "PowerIteration",
    "State",
    "Unambiguous",
]
