"""Train many clients of a multilayer perceptron at once, with batched matrix products.

A step of a small model takes longer to launch than to compute. If the model consists of linear
layers with ReLU between them, the steps of many clients, including their gradients, are a few
batched matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.layout import Vector
from fedtern.federation.client_session import Job, Outcome, Scores
from fedtern.training.local_training import LocalTraining


class BatchedMlpTraining:
    """A ``Trainer`` for logistic regression and multilayer perceptrons.

    It computes the same as ``LocalTraining``, up to rounding.

    Args:
        local: the training of single clients; ``supports(local)`` must be True.

    """

    together = 64  # more clients are not faster, and each needs memory for its weights

    def __init__(self, local: LocalTraining) -> None:
        self.local = local
        self._layers = _linear_layers(local.model.module)
        # The same for all cohorts: the rounding of sums must not depend on the other clients.
        self._padded_batch_size = min(local.batch_size, max(local.split.sizes))

    @staticmethod
    def supports(local: LocalTraining) -> bool:
        """Return whether this class can replace ``local``."""
        module = local.model.module
        examples = local.train_examples
        if not _is_plain(local):
            return False
        flat = examples.inputs.dim() == 2 or isinstance(next(module.children(), None), nn.Flatten)
        return flat and examples.augment is None and bool(_linear_layers(module))

    def train(
        self, weights: Vector, jobs: Iterable[Job], carried: Values = NO_VALUES
    ) -> Iterator[Outcome]:
        """Yield the outcome of each job, in order; all start from the same weights."""
        remaining = iter(jobs)
        while chunk := list(islice(remaining, self.together)):
            yield from self._train_chunk(weights, chunk)

    def train_into(
        self, jobs: Sequence[Job], outcomes: Sequence[Outcome], carried: Values = NO_VALUES
    ) -> None:
        """Do jobs, starting from the model's weights, and write into the outcomes' arrays."""
        trained = self.train(self.local.model.flat.numpy(), jobs)
        for outcome, targets in zip(trained, outcomes, strict=True):
            for vector, target in zip(outcome[:3], targets[:3], strict=True):
                if vector is not None and target is not None:
                    target[...] = vector

    @torch.no_grad()
    def _train_chunk(self, weights: Vector, jobs: Sequence[Job]) -> list[Outcome]:
        local = self.local
        sgd = local.sgd
        start = torch.as_tensor(
            np.require(weights, requirements="W"), device=local.model.flat.device
        )
        flat = start.new_empty(len(jobs), start.numel()).copy_(start)  # one row for each client
        gradient = torch.empty_like(flat)
        moments = torch.zeros_like(flat) if local.example_moments else None
        velocity = _stack([job.velocity for job in jobs], flat) if sgd.momentum else None
        restrictions = [local.restriction(job.client, job.round) for job in jobs]
        # All jobs are of the same round, so they have the same learning rates.
        factors = local.factors(jobs[0])
        for step in zip(*(local.batches(job) for job in jobs), strict=True):
            inputs, labels, shares = self._gather([indices for indices, _ in step])
            self._differentiate(flat, inputs, labels, shares, gradient, moments)
            direction = gradient
            if sgd.weight_decay:
                direction = direction.add(flat, alpha=sgd.weight_decay)
            if velocity is not None:
                direction = velocity.mul_(sgd.momentum).add_(direction)
            if any(restrictions):
                direction = _restrict_rows(direction, restrictions)
            flat.add_(direction, alpha=-sgd.learning_rate * next(factors))
        if moments is not None:
            moments.mul_(sgd.reach**2)
        return [
            Outcome(delta, row_velocity, row_moments)
            for delta, row_velocity, row_moments in zip(
                _rows(flat.sub_(start)),
                _optional_rows(velocity, len(jobs)),
                _optional_rows(moments, len(jobs)),
                strict=True,
            )
        ]

    def _gather(self, batches: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, labels and the examples' shares in the mean loss, by client.

        Batches are padded with an arbitrary example that has no share.
        """
        shape = (len(batches), self._padded_batch_size)
        rows = np.zeros(shape, np.int64)
        shares = np.zeros(shape, np.float32)
        for row, share, indices in zip(rows, shares, batches, strict=True):
            row[: indices.size] = indices
            share[: indices.size] = 1 / indices.size
        inputs, labels = self.local.train_examples.batch(rows.reshape(-1))
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
        """Write the clients' gradients; add the squares of the examples' parts to ``moments``."""
        layers = self._layer_views(flat)
        # Forward: activations[i] is the input of layer i, the last one the scores.
        activations = [inputs]
        for i, (weight, bias) in enumerate(layers):
            if i > 0:
                activations[-1] = activations[-1].relu()
            activations.append(
                torch.baddbmm(bias.unsqueeze(1), activations[-1], weight.transpose(1, 2))
            )
        # Backward: the error is the gradient of the loss by the outputs of a layer.
        error = functional.softmax(activations[-1], dim=2)
        error.scatter_add_(2, labels.unsqueeze(2), -torch.ones_like(shares).unsqueeze(2))
        error *= shares.unsqueeze(2)
        gradients = self._layer_views(gradient)
        squares = None if moments is None else self._layer_views(moments)
        for i in reversed(range(len(layers))):
            activation = activations[i]
            torch.bmm(error.transpose(1, 2), activation, out=gradients[i][0])
            gradients[i][1].copy_(error.sum(1))
            if squares is not None:
                # An example's gradient is an outer product; its square is one of the squares.
                squares[i][0].add_(torch.bmm(error.square().transpose(1, 2), activation.square()))
                squares[i][1].add_(error.square().sum(1))
            if i > 0:
                error = torch.bmm(error, layers[i][0]) * (activation > 0)

    def _layer_views(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views of each layer's weights and biases, by client."""
        views = []
        offset = 0
        for rows, columns in self._layers:
            weight = flat[:, offset : offset + rows * columns].view(-1, rows, columns)
            offset += rows * columns
            views.append((weight, flat[:, offset : offset + rows]))
            offset += rows
        return views

    def evaluate(self, weights: Vector, carried: Values = NO_VALUES) -> Scores:
        """Return mean loss and metrics over all test examples."""
        return self.local.evaluate(weights, carried)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


def _is_plain(local: LocalTraining) -> bool:
    """Return whether clients minimise the cross-entropy of one label each by SGD, in float32."""
    examples = local.train_examples
    return (
        local.model.objective.loss is None
        and local.optimizer is None
        and local.model.has_only_float32
        and examples.labels.dim() == 1
        and (examples.factor is not None or examples.inputs.dtype == torch.float32)
    )


def _linear_layers(module: nn.Module) -> list[tuple[int, int]]:
    """Return rows and columns of the linear layers; an empty list for any other model."""
    if type(module) is not nn.Sequential:
        return []
    layers = list(module)
    if layers and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    linear = [layer for layer in layers[::2] if type(layer) is nn.Linear]
    activations = [layer for layer in layers[1::2] if type(layer) is nn.ReLU]
    if len(layers) % 2 == 0 or len(linear) + len(activations) != len(layers):
        return []
    if any(layer.bias is None for layer in linear) or len({*linear}) != len(linear):
        return []
    sizes = [(layer.out_features, layer.in_features) for layer in linear]
    # Layers may share parameters or have frozen ones; then the sizes do not add up.
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return sizes if trained == sum(rows * columns + rows for rows, columns in sizes) else []


def _stack(vectors: Sequence[Vector | None], like: Tensor) -> Tensor:
    """Return a matrix with one vector in each row; zeros for None."""
    stacked = torch.zeros_like(like)
    for row, vector in zip(stacked, vectors, strict=True):
        if vector is not None:
            row.copy_(torch.as_tensor(vector))
    return stacked


def _rows(matrix: Tensor) -> list[Vector]:
    # Copies: keeping one client's vector must not keep the whole matrix in memory.
    return [row.copy() for row in matrix.cpu().numpy()]


def _optional_rows(matrix: Tensor | None, count: int) -> Sequence[Vector | None]:
    return [None] * count if matrix is None else _rows(matrix)


def _restrict_rows(
    directions: Tensor, restrictions: Sequence[Callable[[Vector], None] | None]
) -> Tensor:
    rows = directions.cpu().numpy().copy()
    for row, restrict in zip(rows, restrictions, strict=True):
        if restrict is not None:
            restrict(row)
    return torch.as_tensor(rows, device=directions.device)
