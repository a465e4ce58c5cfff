"""A torch model whose parameters are one flat vector."""

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

_PIECE = 1 << 16  # numbers that fit a core's cache several times


class FlatModel:
    """A copy of a model, trained by SGD on flat vectors.

    Parameters are views into one flat tensor, so that loading weights is one copy. A step goes
    through them piece by piece, each of which stays in the processor's cache until it is done.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = copy.deepcopy(module).to(device)
        parameters = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        _check(self.module, parameters)
        self.layout = Layout.of(parameters)
        # With the channels of a pixel side by side, VGG11* trains a tenth faster.
        convolves = any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        self._format = torch.channels_last if convolves else torch.contiguous_format
        self._parameters = list(parameters.values())
        self.flat = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self._piece = _PIECE if self.flat.device.type == "cpu" else self.layout.size
        self._lengths = [len(part) for part in self._pieces(self._parameters)]
        self._look_at(self.flat)

    def _look_at(self, flat: Tensor) -> None:
        """Have these weights as parameters, where they are."""
        parts = torch.split(flat, [p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.data = part.view(parameter.shape)

    @property
    def weights(self) -> Vector:
        """A copy of the parameters."""
        vector: Vector = self.flat.cpu().numpy().copy()
        return vector

    def load(self, weights: Vector) -> None:
        """Set the parameters."""
        if self.flat.device.type == "cpu":
            np.copyto(self.flat.numpy(), weights)
        else:
            # Not from_numpy: the weights of a server or client are read-only.
            self.flat.copy_(torch.as_tensor(np.require(weights, requirements="W")))

    def share(self, weights: Vector) -> None:
        """Have the weights in this memory from now on, whoever writes to it."""
        self.flat = torch.from_numpy(weights)
        self._look_at(self.flat)

    def train(
        self,
        batches: Iterable[tuple[Tensor, Tensor]],
        sgd: Sgd,
        velocity: Vector | None = None,
        *,
        seed: int = 0,
        restrict: Callable[[Vector], None] | None = None,
        observe: bool = False,
        out: tuple[Vector | None, Vector | None] = (None, None),
    ) -> Outcome:
        """What SGD over some batches makes of the weights, which stay as they are.

        What is random inside the model, such as dropout, follows from ``seed`` alone. Every step
        goes through ``restrict``, which may write to it. With ``observe``, each example is looked
        at by itself, which takes longer. The change and the new velocity go into ``out``.
        """
        self.module.train()
        device = self.flat.device
        delta, speed = (
            torch.empty_like(self.flat) if there is None else torch.from_numpy(there)
            for there in out
        )
        before = None if velocity is None else torch.as_tensor(velocity, device=device)
        moments = torch.zeros_like(self.flat) if observe else None
        at, following = self.flat, iter(batches)
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                # Not torch.manual_seed: without a GPU, it keeps a stack trace of every call.
                torch.default_generator.manual_seed(seed)
                if device.type == "cuda":
                    torch.cuda.manual_seed(seed)
                batch: tuple[Tensor, Tensor] | None = next(following)
                while batch is not None:
                    slopes = self._gradients(*batch, moments)
                    batch = next(following, None)
                    # Of the weights after the last step, only how far they are is asked for.
                    onto = delta if batch is None else self._own
                    paces = self._directions(sgd, at, slopes, before, speed)
                    self._step(sgd, at, paces, restrict, onto, last=batch is None)
                    before = speed
                    if batch is not None and at is self.flat:
                        at = self._own
                        self._look_at(at)
        finally:
            if at is not self.flat:
                self._look_at(self.flat)
        return Outcome(
            delta.cpu().numpy(),
            speed.cpu().numpy() if sgd.momentum else None,
            None if moments is None else moments.mul_(sgd.reach**2).cpu().numpy(),
        )

    @cached_property
    def _own(self) -> Tensor:
        """Where the weights are between two steps."""
        return torch.empty_like(self.flat)

    def differentiate(self, inputs: Tensor, labels: Tensor) -> Vector:
        """A copy of the gradient of the mean loss, at the weights as they are."""
        vector: Vector = torch.cat(self._gradient(inputs, labels)).cpu().numpy()
        return vector

    def _gradient(self, inputs: Tensor, labels: Tensor, share: float = 1.0) -> list[Tensor]:
        """The gradient of the mean loss, in pieces."""
        for parameter in self._parameters:
            parameter.grad = None  # so that torch need not add to anything
        loss = functional.cross_entropy(self._scores(inputs), labels)
        (loss if share == 1 else share * loss).backward()  # type: ignore[no-untyped-call]
        return self._pieces(
            torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self._parameters
        )

    def _pieces(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        flat = (tensor.detach().reshape(-1) for tensor in tensors)
        return [piece for part in flat for piece in torch.split(part, self._piece)]

    def _cut(self, flat: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flat, self._lengths)

    def _scores(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 4:
            # Not contiguous(): it leaves the strides of a single channel alone, which count here.
            inputs = inputs.to(memory_format=self._format)
        scores: Tensor = self.module(inputs)
        return scores

    def _gradients(self, inputs: Tensor, labels: Tensor, moments: Tensor | None) -> list[Tensor]:
        """The gradient; the square of what each example has in it is added to ``moments``."""
        if moments is None:
            return self._gradient(inputs, labels)
        total = torch.zeros_like(self.flat)
        for i in range(len(labels)):
            one = torch.cat(self._gradient(inputs[i : i + 1], labels[i : i + 1], 1 / len(labels)))
            total += one
            moments.addcmul_(one, one)
        return list(self._cut(total))

    def _step(
        self,
        sgd: Sgd,
        at: Tensor,
        steps: Iterable[Tensor],
        restrict: Callable[[Vector], None] | None,
        onto: Tensor,
        *,
        last: bool,
    ) -> None:
        """Write the weights after a step to ``onto``, or how far they are after the last one."""
        if restrict is not None:
            vector = torch.cat(list(steps)).cpu().numpy()
            restrict(vector)
            steps = self._cut(torch.as_tensor(vector, device=at.device))
        parts = map(self._cut, (at, self.flat, onto))
        for here, start, there, step in zip(*parts, steps, strict=True):
            if last:
                torch.sub(torch.add(here, step, alpha=-sgd.learning_rate), start, out=there)
            else:
                torch.add(here, step, alpha=-sgd.learning_rate, out=there)

    def _directions(
        self,
        sgd: Sgd,
        at: Tensor,
        slopes: Iterable[Tensor],
        before: Tensor | None,
        speed: Tensor,
    ) -> Iterator[Tensor]:
        """A step's direction and length but for the learning rate, in pieces.

        With momentum, that is the new velocity, which is written to ``speed`` on the way.
        """
        decay, momentum = sgd.weight_decay, sgd.momentum
        older = repeat(None) if before is None else self._cut(before)
        for here, slope, old, new in zip(
            self._cut(at), slopes, older, self._cut(speed), strict=False
        ):
            pull = slope.add(here, alpha=decay) if decay else slope
            if momentum and old is not None:
                pull = torch.mul(old, momentum, out=new).add_(pull)
            elif momentum:
                pull = new.copy_(pull)
            yield pull

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
