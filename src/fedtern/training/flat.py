"""A torch model whose parameters are one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtern.layout import Layout, Vector
from fedtern.training.examples import Examples


class FlatModel:
    """A copy of a model, trained by SGD on flat vectors.

    Parameters and gradients are views into two flat tensors: loading weights is one copy, and an
    SGD step a few operations on whole vectors.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = copy.deepcopy(module).to(device)
        parameters = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        _check(self.module, parameters)
        self.layout = Layout.of(parameters)
        self.flat = torch.empty(self.layout.size, device=device)
        self.gradient = torch.zeros(self.layout.size, device=device)
        starts = [0, *self.layout.ends.tolist()]
        for start, end, parameter in zip(starts, starts[1:], parameters.values(), strict=False):
            view = self.flat[start:end].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.gradient[start:end].view(parameter.shape)

    @property
    def weights(self) -> Vector:
        """A copy of the parameters."""
        vector: Vector = self.flat.detach().cpu().numpy().copy()
        return vector

    def load(self, weights: Vector) -> None:
        """Set the parameters."""
        # Not from_numpy: the weights of a server or client are read-only.
        self.flat.copy_(torch.as_tensor(np.require(weights, requirements="W")))

    def train(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        velocity: Vector | None = None,
        *,
        seed: int = 0,
    ) -> Vector | None:
        """Run SGD over some batches; returns the velocity to go on with, if there is momentum.

        What is random inside the model, such as dropout, follows from ``seed`` alone.
        """
        self.module.train()
        speed = None if velocity is None else torch.tensor(velocity, device=self.flat.device)
        device = self.flat.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            speed = self._steps(batches, learning_rate, momentum, weight_decay, speed)
        return None if speed is None else speed.cpu().numpy()

    def _steps(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        learning_rate: float,
        momentum: float,
        weight_decay: float,
        speed: Tensor | None,
    ) -> Tensor | None:
        for inputs, labels in batches:
            self.gradient.zero_()
            loss = functional.cross_entropy(self.module(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                step = self.gradient
                if weight_decay:
                    step = step.add(self.flat, alpha=weight_decay)
                if momentum:
                    speed = step.clone() if speed is None else speed.mul_(momentum).add_(step)
                    step = speed
                self.flat.add_(step, alpha=-learning_rate)
        return speed

    @torch.inference_mode()
    def evaluate(self, examples: Examples, chunk: int = 1000) -> tuple[float, float]:
        """Mean loss and accuracy over all examples."""
        self.module.eval()
        loss = correct = 0.0
        for inputs, labels in examples.chunks(chunk):
            scores = self.module(inputs)
            loss += float(functional.cross_entropy(scores, labels, reduction="sum"))
            correct += float((scores.argmax(1) == labels).sum())
        return loss / len(examples), correct / len(examples)


def _check(module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    if not parameters:
        raise ValueError("the model has no parameters to train")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise ValueError(f"parameter {name} is {parameter.dtype}; only float32 can be trained")
    for name, _ in module.named_buffers():
        raise ValueError(
            f"the model has a buffer {name}: statistics like those of batch normalisation are not"
            " part of what clients exchange; use group or layer normalisation"
        )
