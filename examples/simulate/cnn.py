"""A convolutional network of your own, with batch normalisation and a learning-rate schedule."""

import math

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from fedtern import Environment, simulate, stc

digits = load_digits()
images = (digits.images[:, np.newaxis] / 16).astype(np.float32)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip

ITERATIONS = 200
simulation = simulate(
    model,
    (images, digits.target),  # every tenth example is held out for testing
    stc(p_up=1 / 20, p_down=1 / 20),
    environment=Environment(clients=20, participation=0.25, classes_per_client=4),
    iterations=ITERATIONS,
    learning_rate=0.1,
    momentum=0.9,
    schedule=lambda iteration: 0.5 + 0.5 * math.cos(math.pi * iteration / ITERATIONS),
    evaluate_every=50,
)
for evaluation in simulation:
    print(f"iteration {evaluation.iteration}: accuracy {evaluation.accuracy:.1%}")
print(f"averaged statistics: {simulation.weights['1.running_mean'].numpy().round(2)}")
