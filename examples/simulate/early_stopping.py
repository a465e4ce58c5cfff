"""Stop early, save the best weights, and keep a run directory for the report."""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedtern import EarlyStopping, Environment, simulate

directory = Path(sys.argv[1] if len(sys.argv) > 1 else "early-stopping")
digits = load_digits()
images = (digits.data / 16).astype("float32")


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


torch.manual_seed(0)  # seed= of simulate does not seed a model that you make
stopping = EarlyStopping(patience=5, min_delta=0.002)
simulation = simulate(
    make_model(),
    (images, digits.target),
    "stc:p_up=1/10,p_down=1/10",
    environment=Environment(clients=10, participation=0.5),
    iterations=5000,
    learning_rate=0.2,
    evaluate_every=25,
    callbacks=[stopping],
    out=directory / "run",  # fedtern report DIRECTORY/run
)
simulation.run()
torch.save(stopping.best_weights, directory / "best.pt")
print(f"stopped at {simulation.iteration}, best accuracy {stopping.best_value:.1%}")
model = make_model()
model.load_state_dict(torch.load(directory / "best.pt"))
