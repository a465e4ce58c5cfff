"""Regression: another loss, a metric where lower is better, and Adam on each client."""

import math

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn.functional import l1_loss, mse_loss

from fedtern import Environment, simulate
from fedtern.training import Metric

inputs, targets = load_diabetes(return_X_y=True, scaled=False)
inputs = (inputs - inputs.mean(0)) / inputs.std(0)
targets = targets.reshape(-1, 1) / 100

simulation = simulate(
    nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)),
    ((inputs[:-100], targets[:-100]), (inputs[-100:], targets[-100:])),
    "stc:p_up=1/10,p_down=1/10",
    environment=Environment(clients=10, participation=0.5),
    iterations=300,
    loss=mse_loss,
    metrics=[
        Metric("rmse", mse_loss, best="lower", transform=math.sqrt),
        Metric("mae", l1_loss, best="lower"),
    ],
    optimizer=lambda parameters: torch.optim.Adam(parameters, 3e-3),
    evaluate_every=100,
)
for evaluation in simulation:
    errors = ", ".join(f"{name} {value:.3f}" for name, value in evaluation.metrics.items())
    print(f"iteration {evaluation.iteration}: {errors}")
