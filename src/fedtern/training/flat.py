"""A torch model whose trainable parameters are one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import repeat

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtern.core.layout import Layout, Vector
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import Outcome
from fedtern.training.examples import Examples

_PIECE = 1 << 16  # values; several pieces fit into the cache of a core


class FlatModel:
    """A copy of a model, trained by SGD on flat vectors.

    The parameters are views of one flat tensor, so that loading weights is one copy. An SGD step
    processes the vector in pieces that stay in the processor's cache.

    Args:
        module: the model; it stays unchanged. All its trainable parameters must be float32, and it
            must not have buffers.
        device: device to train on.

    Raises:
        ValueError: the model is not supported.

    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = copy.deepcopy(module).to(device)
        parameters = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        _check_supported(self.module, parameters)
        self.layout = Layout.of(parameters)
        # VGG11* trains a tenth faster with channels last.
        convolves = any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        self._memory_format = torch.channels_last if convolves else torch.contiguous_format
        self._parameters = list(parameters.values())
        self.flat = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self._piece = _PIECE if self.flat.device.type == "cpu" else self.layout.size
        self._piece_sizes = [len(piece) for piece in self._pieces(self._parameters)]
        self._bind_parameters(self.flat)

    def _bind_parameters(self, flat: Tensor) -> None:
        """Make the parameters views of a flat tensor."""
        parts = torch.split(flat, [p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.data = part.view(parameter.shape)

    @property
    def weights(self) -> Vector:
        """A copy of the trainable parameters."""
        vector: Vector = self.flat.cpu().numpy().copy()
        return vector

    def load(self, weights: Vector) -> None:
        """Set the trainable parameters."""
        if self.flat.device.type == "cpu":
            np.copyto(self.flat.numpy(), weights)
        else:
            # torch warns about read-only arrays, and the weights of servers and clients are.
            self.flat.copy_(torch.as_tensor(np.require(weights, requirements="W")))

    def share_memory(self, weights: Vector) -> None:
        """Keep the weights in the given memory from now on; other processes may write to it."""
        self.flat = torch.from_numpy(weights)
        self._bind_parameters(self.flat)

    def train(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        sgd: Sgd,
        velocity: Vector | None = None,
        *,
        seed: int = 0,
        restrict: Callable[[Vector], None] | None = None,
        example_moments: bool = False,
        out: tuple[Vector | None, Vector | None] = (None, None),
    ) -> Outcome:
        """Compute the result of SGD on some batches. The model's weights stay unchanged.

        Args:
            batches: inputs and labels of each step; at least one.
            sgd: hyperparameters.
            velocity: momentum to continue with; None starts without.
            seed: seed of randomness inside the model, such as dropout.
            restrict: called with the direction of each step, which it may change in place.
            example_moments: whether to compute the second moments of the examples' gradients,
                which takes longer.
            out: arrays for the change of the weights and the new velocity; None allocates one.

        Returns:
            The change of the weights, the new velocity and the second moments.

        """
        self.module.train()
        device = self.flat.device
        delta = _tensor_for(out[0], self.flat)
        new_velocity = _tensor_for(out[1], self.flat)
        old_velocity = None if velocity is None else torch.as_tensor(velocity, device=device)
        moments = torch.zeros_like(self.flat) if example_moments else None
        current = self.flat  # the weights before the next step
        remaining = iter(batches)
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                # torch.manual_seed without a GPU would keep a stack trace of every call.
                torch.default_generator.manual_seed(seed)
                if device.type == "cuda":
                    torch.cuda.manual_seed(seed)
                batch: tuple[Tensor, Tensor] | None = next(remaining)
                while batch is not None:
                    gradients = self._gradients(*batch, moments)
                    batch = next(remaining, None)
                    last = batch is None
                    directions = self._directions(
                        sgd, current, gradients, old_velocity, new_velocity
                    )
                    # The last step computes the change of the weights instead of the weights.
                    target = delta if last else self._stepped_weights
                    self._step(sgd, current, directions, restrict, target, last=last)
                    old_velocity = new_velocity
                    if not last and current is self.flat:
                        current = self._stepped_weights
                        self._bind_parameters(current)
        finally:
            if current is not self.flat:
                self._bind_parameters(self.flat)
        return Outcome(
            delta.cpu().numpy(),
            new_velocity.cpu().numpy() if sgd.momentum else None,
            None if moments is None else moments.mul_(sgd.reach**2).cpu().numpy(),
        )

    @cached_property
    def _stepped_weights(self) -> Tensor:
        """Memory for the weights between two steps."""
        return torch.empty_like(self.flat)

    def gradient(self, inputs: Tensor, labels: Tensor) -> Vector:
        """Return the gradient of a batch's mean loss at the model's weights."""
        vector: Vector = torch.cat(self._gradient_pieces(inputs, labels)).cpu().numpy()
        return vector

    def _gradient_pieces(self, inputs: Tensor, labels: Tensor, scale: float = 1.0) -> list[Tensor]:
        """Return the gradient of the scaled mean loss, in pieces."""
        for parameter in self._parameters:
            parameter.grad = None  # so that torch writes gradients instead of adding them
        loss = functional.cross_entropy(self._scores(inputs), labels)
        (loss if scale == 1 else scale * loss).backward()  # type: ignore[no-untyped-call]
        return self._pieces(
            torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self._parameters
        )

    def _pieces(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Split tensors into flat pieces; a piece never spans two tensors."""
        flat = (tensor.detach().reshape(-1) for tensor in tensors)
        return [piece for part in flat for piece in torch.split(part, self._piece)]

    def _split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Split a flat vector into the same pieces."""
        return torch.split(flat, self._piece_sizes)

    def _scores(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 4:
            # contiguous() would not change the strides of single-channel images, and convolutions
            # depend on them.
            inputs = inputs.to(memory_format=self._memory_format)
        scores: Tensor = self.module(inputs)
        return scores

    def _gradients(self, inputs: Tensor, labels: Tensor, moments: Tensor | None) -> list[Tensor]:
        """Return the gradient in pieces; add the squares of the examples' parts to ``moments``."""
        if moments is None:
            return self._gradient_pieces(inputs, labels)
        total = torch.zeros_like(self.flat)
        for i in range(len(labels)):
            pieces = self._gradient_pieces(inputs[i : i + 1], labels[i : i + 1], 1 / len(labels))
            part = torch.cat(pieces)
            total += part
            moments.addcmul_(part, part)
        return list(self._split(total))

    def _directions(
        self,
        sgd: Sgd,
        current: Tensor,
        gradients: Iterable[Tensor],
        old_velocity: Tensor | None,
        new_velocity: Tensor,
    ) -> Iterator[Tensor]:
        """Yield the direction of a step, in pieces: the step without the learning rate.

        With momentum, the direction is the new velocity, which is written to ``new_velocity``.
        """
        old_pieces = repeat(None) if old_velocity is None else self._split(old_velocity)
        for weights, gradient, old, new in zip(
            self._split(current), gradients, old_pieces, self._split(new_velocity), strict=False
        ):
            direction = gradient
            if sgd.weight_decay:
                direction = gradient.add(weights, alpha=sgd.weight_decay)
            if sgd.momentum and old is not None:
                direction = torch.mul(old, sgd.momentum, out=new).add_(direction)
            elif sgd.momentum:
                direction = new.copy_(direction)
            yield direction

    def _step(
        self,
        sgd: Sgd,
        current: Tensor,
        directions: Iterable[Tensor],
        restrict: Callable[[Vector], None] | None,
        target: Tensor,
        *,
        last: bool,
    ) -> None:
        """Write the weights after a step to ``target``; after the last step, their change."""
        if restrict is not None:
            vector = torch.cat(list(directions)).cpu().numpy()
            restrict(vector)
            directions = self._split(torch.as_tensor(vector, device=current.device))
        pieces = map(self._split, (current, self.flat, target))
        for before, start, after, direction in zip(*pieces, directions, strict=True):
            if last:
                stepped = torch.add(before, direction, alpha=-sgd.learning_rate)
                torch.sub(stepped, start, out=after)
            else:
                torch.add(before, direction, alpha=-sgd.learning_rate, out=after)

    def evaluate(self, examples: Examples, chunk: int = 1000) -> tuple[float, float]:
        """Return mean loss and accuracy over all examples.

        Args:
            examples: the examples.
            chunk: number of examples in a forward pass.

        """
        loss = 0.0
        correct = 0.0
        for inputs, labels in examples.chunks(chunk):
            chunk_loss, chunk_correct = self.evaluate_batch(inputs, labels)
            loss += chunk_loss
            correct += chunk_correct
        return loss / len(examples), correct / len(examples)

    @torch.inference_mode()
    def evaluate_batch(self, inputs: Tensor, labels: Tensor) -> tuple[float, float]:
        """Return the sum of a batch's losses and the number of correct predictions."""
        self.module.eval()
        scores = self._scores(inputs)
        loss = float(functional.cross_entropy(scores, labels, reduction="sum"))
        return loss, float((scores.argmax(1) == labels).sum())


def _tensor_for(array: Vector | None, like: Tensor) -> Tensor:
    """Return a tensor in the memory of an array, or a new one."""
    return torch.empty_like(like) if array is None else torch.from_numpy(array)


def _check_supported(module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    if not parameters:
        raise ValueError("the model has no trainable parameters")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise ValueError(f"parameter {name} is {parameter.dtype}; only float32 can be trained")
    for name, _ in module.named_buffers():
        raise ValueError(
            f"the model has a buffer {name}; clients do not exchange buffers such as the statistics"
            " of batch normalisation: use group or layer normalisation"
        )
