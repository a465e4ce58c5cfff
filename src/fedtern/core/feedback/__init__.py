"""What one side of a link remembers between rounds.

A memory's state is a mapping of named vectors; a missing vector stands for zeros. States are
values: a step returns a new one and leaves the old one as it was, so that a refused step costs
nothing. The ``delta`` given to a step is taken over and written to.
"""

from fedtern.core.feedback.error_feedback import ErrorFeedback, Memoryless
from fedtern.core.feedback.interface import EMPTY, Feedback, State
from fedtern.core.feedback.momentum_correction import MomentumCorrection
from fedtern.core.feedback.power_iteration import PowerIteration
from fedtern.core.feedback.variance_threshold import VarianceThreshold

__all__ = [
    "EMPTY",
    "ErrorFeedback",
    "Feedback",
    "Memoryless",
    "MomentumCorrection",
    "PowerIteration",
    "State",
    "VarianceThreshold",
]
