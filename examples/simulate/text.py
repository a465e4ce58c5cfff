"""Text: predict the next character with embeddings, and report the perplexity."""

import math

import numpy as np
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedtern import Environment, simulate
from fedtern.training import Metric

text = np.frombuffer(load_digits().DESCR.encode(), np.uint8)  # any text
windows = np.lib.stride_tricks.sliding_window_view(text, 17)


class NextCharacter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.recurrent = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 128)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(characters))
        scores: Tensor = self.head(states)
        return scores.transpose(1, 2)  # classes along the second axis


simulation = simulate(
    NextCharacter(),
    (windows[:, :-1], windows[:, 1:]),  # integers stay integers
    "stc:p_up=1/20,p_down=1/20",
    environment=Environment(clients=5, participation=0.6, split="iid"),
    iterations=150,
    learning_rate=1.0,
    metrics=[Metric("perplexity", cross_entropy, best="lower", transform=math.exp)],
)
print(f"perplexity after training: {simulation.run().metrics['perplexity']:.1f}")
