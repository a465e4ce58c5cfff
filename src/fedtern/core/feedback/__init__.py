"""Feedback rules: compress deltas and keep the part that was not sent for later rounds.

The state of a rule is a mapping of named vectors; a missing vector means zeros. States are values:
a step returns a new state and does not change the old one, so that a refused step has no effect.
The ``delta`` given to a step may be overwritten.
"""

from fedtern.core.feedback.decaying_feedback import DecayingFeedback
from fedtern.core.feedback.error_feedback import ErrorFeedback, Memoryless
from fedtern.core.feedback.interface import EMPTY, Feedback, State
from fedtern.core.feedback.momentum_correction import MomentumCorrection
from fedtern.core.feedback.power_iteration import PowerIteration
from fedtern.core.feedback.variance_threshold import VarianceThreshold

__all__ = [
    "EMPTY",
    "DecayingFeedback",
    "ErrorFeedback",
    "Feedback",
    "Memoryless",
    "MomentumCorrection",
    "PowerIteration",
    "State",
    "VarianceThreshold",
]
