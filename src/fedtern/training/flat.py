"""A torch model whose parameters are one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtern.layout import Layout, Vector
from fedtern.training.examples import Examples
from fedtern.training.sgd import Sgd


class Trained(NamedTuple):
    """What training leaves besides new weights."""

    velocity: Vector | None  # to go on with, if there is momentum
    moments: Vector | None  # squares of each example's contributions, if they were asked for


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
        # With the channels of a pixel side by side, VGG11* trains a tenth faster.
        convolves = any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        self._format = torch.channels_last if convolves else torch.contiguous_format
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

    def change(self, weights: Vector, out: Vector | None = None) -> Vector:
        """How far the parameters are from some weights."""
        with np.errstate(over="ignore", invalid="ignore"):  # refused when it is compressed
            difference: Vector = np.subtract(self.flat.detach().cpu().numpy(), weights, out=out)
        return difference

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
        restrict: Callable[[Vector], None] | None = None,
        observe: bool = False,
    ) -> Trained:
        """Run SGD over some batches.

        What is random inside the model, such as dropout, follows from ``seed`` alone. Every step
        goes through ``restrict``, which may write to it. With ``observe``, each example is looked
        at by itself, which takes longer. ``velocity`` is taken over and written to.
        """
        self.module.train()
        reach = Sgd(learning_rate, momentum).reach
        speed = None if velocity is None else torch.as_tensor(velocity, device=self.flat.device)
        device = self.flat.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            # Not torch.manual_seed: where there is no GPU, it keeps a stack trace of every call.
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed)
            moments = torch.zeros_like(self.flat) if observe else None
            for inputs, labels in batches:
                if moments is None:
                    self._differentiate(inputs, labels)
                else:
                    self._observe(inputs, labels, moments)
                speed = self._step(learning_rate, momentum, weight_decay, speed, restrict)
        return Trained(
            None if speed is None else speed.cpu().numpy(),
            None if moments is None else moments.mul_(reach**2).cpu().numpy(),
        )

    def differentiate(self, inputs: Tensor, labels: Tensor) -> Vector:
        """A copy of the gradient of the mean loss, at the weights as they are."""
        self._differentiate(inputs, labels)
        vector: Vector = self.gradient.cpu().numpy().copy()
        return vector

    def _differentiate(self, inputs: Tensor, labels: Tensor, share: float = 1.0) -> None:
        self.gradient.zero_()
        loss = functional.cross_entropy(self._scores(inputs), labels)
        (loss if share == 1 else share * loss).backward()  # type: ignore[no-untyped-call]

    def _scores(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 4:
            # Not contiguous(): it leaves the strides of a single channel alone, which count here.
            inputs = inputs.to(memory_format=self._format)
        scores: Tensor = self.module(inputs)
        return scores

    def _observe(self, inputs: Tensor, labels: Tensor, moments: Tensor) -> None:
        """Add the square of what each example contributes; leave the gradient of all of them."""
        total = torch.zeros_like(self.gradient)
        for i in range(len(labels)):
            self._differentiate(inputs[i : i + 1], labels[i : i + 1], 1 / len(labels))
            total += self.gradient
            moments.addcmul_(self.gradient, self.gradient)
        self.gradient.copy_(total)

    @torch.no_grad()
    def _step(
        self,
        learning_rate: float,
        momentum: float,
        weight_decay: float,
        speed: Tensor | None,
        restrict: Callable[[Vector], None] | None,
    ) -> Tensor | None:
        step = self.gradient
        if weight_decay:
            step = step.add(self.flat, alpha=weight_decay)
        if momentum:
            speed = step.clone() if speed is None else speed.mul_(momentum).add_(step)
            step = speed
        if restrict is not None:
            vector = step.cpu().numpy().copy()
            restrict(vector)
            step = torch.as_tensor(vector, device=self.flat.device)
        self.flat.add_(step, alpha=-learning_rate)
        return speed

    def evaluate(self, examples: Examples, chunk: int = 1000) -> tuple[float, float]:
        """Mean loss and accuracy over all examples."""
        loss = correct = 0.0
        for inputs, labels in examples.chunks(chunk):
            its_loss, its_correct = self.test(inputs, labels)
            loss, correct = loss + its_loss, correct + its_correct
        return loss / len(examples), correct / len(examples)

    @torch.inference_mode()
    def test(self, inputs: Tensor, labels: Tensor) -> tuple[float, float]:
        """The sum of losses, and how many are right."""
        self.module.eval()
        scores = self._scores(inputs)
        loss = float(functional.cross_entropy(scores, labels, reduction="sum"))
        return loss, float((scores.argmax(1) == labels).sum())


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
