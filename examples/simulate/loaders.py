"""One DataLoader for each client: the clients' own data, batch size and test data."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedtern import Environment, simulate, stc

digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
order = labels[:1500].argsort()  # each client has only one or two digits

loaders = [
    DataLoader(TensorDataset(images[part], labels[part]), batch_size=32, shuffle=True)
    for part in order.chunk(15)
]
test = DataLoader(TensorDataset(images[1500:], labels[1500:]), batch_size=100)

simulation = simulate(
    nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    test,
    stc(p_up=1 / 10, p_down=1 / 10),
    client_data=loaders,
    environment=Environment(clients=15, participation=1 / 3),
    iterations=300,
    learning_rate=0.2,
    evaluate_every=100,
)
for evaluation in simulation:
    sent = evaluation.up_bytes + evaluation.down_bytes
    print(f"iteration {evaluation.iteration}: {evaluation.accuracy:.1%}, {sent / 1e3:.0f} kB sent")
