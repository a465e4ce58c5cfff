"""Many clients of a small model at once, in closed form.

A step of a small model takes longer to arrange than to compute. Where the model is a stack of
linear layers with rectifiers between them, the steps of a whole cohort are a few products of
batched matrices, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtern.core.layout import Vector
from fedtern.federation.client_session import Job, Outcome
from fedtern.training.local_training import LocalTraining


class StackTraining:
    """A ``Trainer`` for logistic regression and multilayer perceptrons.

    What it computes is what ``LocalTraining`` does, up to rounding.
    """

    together = 64  # clients: more would not be faster, and each has its own weights

    def __init__(self, local: LocalTraining) -> None:
        self.local, self.layers = local, _linear_layers(local.model.module)
        self.longest = min(local.batch_size, max(local.split.sizes))

    @staticmethod
    def suits(local: LocalTraining) -> bool:
        """Whether it can do what ``local`` does."""
        module, examples = local.model.module, local.examples
        flat = examples.inputs.dim() == 2 or isinstance(next(module.children(), None), nn.Flatten)
        return flat and examples.augment is None and bool(_linear_layers(module))

    def train(self, weights: Vector, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """What becomes of each job, in their order; all start from the same weights."""
        jobs = iter(jobs)
        while chunk := list(islice(jobs, self.together)):
            yield from self._chunk(weights, chunk)

    def fill(self, jobs: Sequence[Job], places: Sequence[Outcome]) -> None:
        """Train from the weights that the model has, and write what becomes of each job."""
        outcomes = self.train(self.local.model.flat.numpy(), jobs)
        for outcome, place in zip(outcomes, places, strict=True):
            for vector, there in zip(outcome, place, strict=True):
                if vector is not None and there is not None:
                    there[...] = vector

    @torch.no_grad()
    def _chunk(self, weights: Vector, jobs: Sequence[Job]) -> list[Outcome]:
        local, sgd = self.local, self.local.sgd
        device, count = local.model.flat.device, len(jobs)
        start = torch.as_tensor(np.require(weights, requirements="W"), device=device)
        flat = start.new_empty(count, start.numel()).copy_(start)
        gradient = torch.empty_like(flat)
        moments = torch.zeros_like(flat) if local.observe else None
        speed = _stacked([job.velocity for job in jobs], flat) if sgd.momentum else None
        restrictions = [local.restriction(job.client, job.round) for job in jobs]
        for step in zip(*(local.batches(job) for job in jobs), strict=True):
            inputs, labels, shares = self._gather([indices for indices, _ in step])
            self._differentiate(flat, inputs, labels, shares, gradient, moments)
            change = gradient
            if sgd.weight_decay:
                change = change.add(flat, alpha=sgd.weight_decay)
            if speed is not None:
                change = speed.mul_(sgd.momentum).add_(change)
            if any(restrictions):
                change = _restricted(change, restrictions)
            flat.add_(change, alpha=-sgd.learning_rate)
        deltas = flat.sub_(start).cpu().numpy()
        speeds = None if speed is None else speed.cpu().numpy()
        squares = None if moments is None else moments.mul_(sgd.reach**2).cpu().numpy()
        # Rows are copied: a client that is kept must not keep its whole cohort.
        return [
            Outcome(
                deltas[i].copy(),
                None if speeds is None else speeds[i].copy(),
                None if squares is None else squares[i].copy(),
            )
            for i in range(count)
        ]

    def _gather(self, batches: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs and labels by client, and the share that each example has in its mean."""
        # The same for every cohort: the sums' last bits must not depend on who else is in it.
        longest = self.longest
        rows = np.zeros((len(batches), longest), np.int64)  # past the end: any example, no share
        shares = np.zeros((len(batches), longest), np.float32)
        for row, share, indices in zip(rows, shares, batches, strict=True):
            row[: indices.size] = indices
            share[: indices.size] = 1 / indices.size
        inputs, labels = self.local.examples.batch(rows.reshape(-1))
        shape = (len(batches), longest)
        return (
            inputs.reshape(*shape, -1),
            labels.reshape(shape),
            torch.as_tensor(shares, device=inputs.device),
        )

    def _differentiate(
        self,
        flat: Tensor,
        inputs: Tensor,
        labels: Tensor,
        shares: Tensor,
        gradient: Tensor,
        moments: Tensor | None,
    ) -> None:
        parts = self._parts(flat)
        outputs = [inputs]
        for i, (weight, bias) in enumerate(parts):
            below = outputs[-1] if i == 0 else outputs[-1].relu()
            outputs[-1] = below
            outputs.append(torch.baddbmm(bias.unsqueeze(1), below, weight.transpose(1, 2)))
        error = functional.softmax(outputs[-1], dim=2)
        error.scatter_add_(2, labels.unsqueeze(2), -torch.ones_like(shares).unsqueeze(2))
        error *= shares.unsqueeze(2)
        slopes = self._parts(gradient)
        squares = None if moments is None else self._parts(moments)
        for i in reversed(range(len(parts))):
            below = outputs[i]
            torch.bmm(error.transpose(1, 2), below, out=slopes[i][0])
            slopes[i][1].copy_(error.sum(1))
            if squares is not None:
                # An example's contribution is an outer product: so is its square, of squares.
                squares[i][0].add_(torch.bmm(error.square().transpose(1, 2), below.square()))
                squares[i][1].add_(error.square().sum(1))
            if i:
                error = torch.bmm(error, parts[i][0]) * (below > 0)

    def _parts(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Views of each layer's weights and biases, by client."""
        views, at = [], 0
        for rows, columns in self.layers:
            weight = flat[:, at : at + rows * columns].view(-1, rows, columns)
            at += rows * columns
            views.append((weight, flat[:, at : at + rows]))
            at += rows
        return views

    def evaluate(self, weights: Vector) -> tuple[float, float]:
        """Mean loss and accuracy over all test examples."""
        return self.local.evaluate(weights)

    def close(self) -> None:
        """Nothing to let go of."""


def _linear_layers(module: nn.Module) -> list[tuple[int, int]]:
    """Rows and columns of a stack of linear layers; empty if a model is anything else."""
    if type(module) is not nn.Sequential:
        return []
    layers = list(module)
    layers = layers[1:] if layers and type(layers[0]) is nn.Flatten else layers
    linear = [layer for layer in layers[::2] if type(layer) is nn.Linear]
    between = [layer for layer in layers[1::2] if type(layer) is nn.ReLU]
    if len(layers) % 2 == 0 or len(linear) + len(between) != len(layers):
        return []
    if any(layer.bias is None for layer in linear) or len({*linear}) != len(linear):
        return []
    sizes = [(layer.out_features, layer.in_features) for layer in linear]
    # Of parameters that layers share, a model has one only.
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return sizes if trained == sum(rows * columns + rows for rows, columns in sizes) else []


def _stacked(vectors: Sequence[Vector | None], like: Tensor) -> Tensor:
    out = torch.zeros_like(like)
    for row, vector in zip(out, vectors, strict=True):
        if vector is not None:
            row.copy_(torch.as_tensor(vector))
    return out


def _restricted(change: Tensor, restrictions: Sequence[Callable[[Vector], None] | None]) -> Tensor:
    rows = change.cpu().numpy().copy()
    for row, restrict in zip(rows, restrictions, strict=True):
        if restrict is not None:
            restrict(row)
    return torch.as_tensor(rows, device=change.device)
