"""An experiment that takes less than a second."""

from fedtern.data.environment import Environment
from fedtern.runs import Experiment

QUICK = Experiment.of(
    "logistic-digits",
    {"name": "stc", "p_up": 0.02, "p_down": 0.02},
    Environment(clients=10, participation=0.3, classes_per_client=2),
    iterations=30,
    momentum=0.5,
    evaluate_every=10,
)
