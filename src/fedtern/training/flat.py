"""A torch model whose trainable parameters are one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import repeat
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtern.core.dtypes import Overflow, check_dtype
from fedtern.core.errors import NonFiniteError
from fedtern.core.layout import Carried, Layout, Rule, Vector
from fedtern.core.template import Carry
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import Outcome, Scores
from fedtern.training.examples import Examples
from fedtern.training.objective import CLASSIFICATION, BatchScores, Objective, describe
from fedtern.training.optimizers import LocalOptimizer, OptimizerFactory

_PIECE = 1 << 16  # values; several pieces fit into the cache of a core


class FlatModel:
    """A copy of a model, trained on flat vectors.

    The trained parameters are one flat float32 vector, so that loading weights is one copy. float32
    parameters are views of the vector; parameters of other dtypes are rounded from it before each
    step. A step of SGD processes the vector in pieces that stay in the processor's cache.

    Persistent buffers, such as the statistics of batch normalisation, are carried tensors of the
    layout, or stay on each client. Parameters that are frozen or that ``trainable`` leaves out stay
    as they are.

    Args:
        module: the model; it stays unchanged.
        device: device to train on.
        objective: loss and metrics.
        carry: how the server combines buffers: "average", "latest", or "local" to keep them on each
            client.
        trainable: patterns of the names of the parameters to train, such as ``["*.lora_*"]``.
        overflow: what to do with a weight that is too large for the dtype of its parameter:
            "refuse" raises an error, "saturate" uses the largest value.

    Raises:
        ValueError: the model is not supported, or an argument is invalid.

    >>> model = FlatModel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    >>> model.layout.names
    ('0.weight', '0.bias', '1.weight', '1.bias')
    >>> [tensor.name for tensor in model.layout.carried]
    ['1.running_mean', '1.running_var', '1.num_batches_tracked']
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        *,
        objective: Objective = CLASSIFICATION,
        carry: Carry = "average",
        trainable: Sequence[str] = ("*",),
        overflow: Overflow = "refuse",
    ) -> None:
        self.module = copy.deepcopy(module).to(device)
        self.objective = objective
        self._overflow = overflow
        _check_options(carry, overflow)
        parameters = _select_trained(self.module, trainable)
        buffers = _persistent_buffers(self.module)
        self.layout = Layout(
            tuple(parameters),
            tuple(tuple(map(int, parameter.shape)) for parameter in parameters.values()),
            () if carry == "local" else _carried_tensors(buffers, carry),
        )
        self.local_buffers = tuple(buffers) if carry == "local" else ()
        # VGG11* trains a tenth faster with channels last.
        convolves = any(isinstance(part, nn.Conv2d) for part in self.module.modules())
        self._memory_format = torch.channels_last if convolves else torch.contiguous_format
        self._parameters = list(parameters.values())
        self._rounded = [p.dtype != torch.float32 for p in self._parameters]
        self._input_dtype = next(
            (p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32
        )
        self.flat = torch.cat([p.detach().reshape(-1).to(torch.float32) for p in self._parameters])
        self._piece = _PIECE if self.flat.device.type == "cpu" else self.layout.size
        self._piece_sizes = [len(piece) for piece in self._pieces(self._parameters)]
        self._bind_parameters(self.flat)
        self._computed_buffers = _computed_buffers(self.module)

    def _reset_computed_buffers(self) -> None:
        """Restore buffers that are not persistent, so that no job depends on an earlier one."""
        for name, initial in self._computed_buffers.items():
            owner, _, leaf = name.rpartition(".")
            # A model may have assigned another tensor, or one of torch's inference mode.
            setattr(self.module.get_submodule(owner), leaf, initial.clone())

    def _bind_parameters(self, flat: Tensor) -> None:
        """Make the parameters views of a flat tensor, or roundings of it."""
        for parameter, part, rounded in zip(
            self._parameters, self._parts(flat), self._rounded, strict=True
        ):
            if not rounded:
                parameter.data = part.view(parameter.shape)
        self._round_parameters(flat)

    def _parts(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return the part of a flat tensor for each parameter."""
        return torch.split(flat, [p.numel() for p in self._parameters])

    def _round_parameters(self, flat: Tensor) -> None:
        """Copy a flat tensor to the parameters that are not float32."""
        if not any(self._rounded):
            return
        named = zip(self.layout.names, self._parameters, self._parts(flat), strict=True)
        for (name, parameter, part), rounded in zip(named, self._rounded, strict=True):
            if rounded:
                values = self._fit(name, part, parameter.dtype)
                parameter.data.copy_(values.view(parameter.shape))

    def _fit(self, name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Return values that a dtype can hold, or raise, as ``overflow`` says."""
        limit = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
        if self._overflow == "saturate":
            return values.clamp(-limit, limit)
        if values.numel() and float(values.abs().max()) > limit:
            raise NonFiniteError(
                f"value {float(values.abs().max()):g} of tensor {name!r} is too large for"
                f' {name_of(dtype)}; pass overflow="saturate" to use the largest value instead, or'
                " train in float32"
            )
        return values

    @property
    def has_only_float32(self) -> bool:
        """Whether all trained parameters are float32."""
        return not any(self._rounded)

    @property
    def weights(self) -> Vector:
        """A copy of the trainable parameters."""
        vector: Vector = self.flat.cpu().numpy().copy()
        return vector

    @property
    def carried(self) -> dict[str, NDArray[Any]]:
        """Copies of the carried tensors, as NumPy holds them."""
        return self.buffer_arrays(tensor.name for tensor in self.layout.carried)

    def buffer_arrays(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Return copies of buffers by name, as NumPy holds them."""
        return {name: to_array(self.module.get_buffer(name)) for name in names}

    def load_buffers(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Set buffers by name."""
        for name, array in values.items():
            from_array(array, self.module.get_buffer(name))

    def copy_module(self) -> nn.Module:
        """Return a copy of the model on the CPU, in evaluation mode.

        Parameters that ``trainable`` left out are frozen in it.
        """
        self._reset_computed_buffers()
        module = copy.deepcopy(self.module).cpu()
        for parameter in module.parameters():
            parameter.data = parameter.data.clone()  # no longer a view of the flat vector
            parameter.grad = None
        module.load_state_dict(self.state_dict(), strict=False)
        return module.eval()

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all tensors of the model on the CPU, in their own dtypes."""
        self._round_parameters(self.flat)
        return {
            name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, value in self.module.state_dict().items()
            if isinstance(value, Tensor)
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of all tensors of the model for a file; bfloat16 becomes float32."""
        return state_arrays(self.state_dict())

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
        factors: Iterable[float] = repeat(1.0),
        restrict: Callable[[Vector], None] | None = None,
        example_moments: bool = False,
        out: tuple[Vector | None, Vector | None] = (None, None),
    ) -> Outcome:
        """Compute the result of SGD on some batches. The model's weights stay unchanged.

        Buffers of the model change; the outcome has the carried ones.

        Args:
            batches: inputs and targets of each step; at least one.
            sgd: hyperparameters.
            velocity: momentum to continue with; None starts without.
            seed: seed of randomness inside the model, such as dropout.
            factors: factor of the learning rate in each step.
            restrict: called with the direction of each step, which it may change in place.
            example_moments: whether to compute the second moments of the examples' gradients,
                which takes longer.
            out: arrays for the change of the weights and the new velocity; None allocates one.

        Returns:
            The change of the weights, the new velocity and the second moments.

        """
        self.module.train()
        self._reset_computed_buffers()
        device = self.flat.device
        delta = _tensor_for(out[0], self.flat)
        new_velocity = _tensor_for(out[1], self.flat)
        old_velocity = None if velocity is None else torch.as_tensor(velocity, device=device)
        moments = torch.zeros_like(self.flat) if example_moments else None
        current = self.flat  # the weights before the next step
        self._round_parameters(current)
        remaining = iter(batches)
        rates = (sgd.learning_rate * factor for factor in factors)
        try:
            with self._seeded(seed):
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
                    self._step(next(rates), current, directions, restrict, target, last=last)
                    old_velocity = new_velocity
                    if last:
                        continue
                    if current is self.flat:
                        current = self._stepped_weights
                        self._bind_parameters(current)
                    else:
                        self._round_parameters(current)
        finally:
            if current is not self.flat:
                self._bind_parameters(self.flat)
        return Outcome(
            delta.cpu().numpy(),
            new_velocity.cpu().numpy() if sgd.momentum else None,
            None if moments is None else moments.mul_(sgd.reach**2).cpu().numpy(),
            self.carried if self.layout.carried else None,
        )

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Seed randomness inside the model, and restore torch's generators afterwards."""
        device = self.flat.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            # torch.manual_seed without a GPU would keep a stack trace of every call.
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed)
            yield

    def make_optimizer(self, make: OptimizerFactory) -> LocalOptimizer:
        """Return an optimiser for ``train_with``.

        Raises:
            ValueError: the state of the optimiser cannot be kept for each client.

        """
        self._stepped_weights.copy_(self.flat)
        return LocalOptimizer(
            make,
            [
                nn.Parameter(part.view(parameter.shape))
                for parameter, part in zip(
                    self._parameters, self._parts(self._stepped_weights), strict=True
                )
            ],
        )

    def parameter_copies(self) -> list[nn.Parameter]:
        """Return copies of the trained parameters."""
        return [nn.Parameter(parameter.detach().clone()) for parameter in self._parameters]

    def train_with(
        self,
        optimizer: LocalOptimizer,
        batches: Iterable[tuple[Tensor, Tensor]],
        *,
        seed: int = 0,
        factors: Iterable[float] = repeat(1.0),
        delta: Vector | None = None,
    ) -> Outcome:
        """Like ``train``, with an optimiser of torch, which changes its own state.

        Args:
            optimizer: an optimiser that ``make_optimizer`` returned.
            batches: inputs and targets of each step; at least one.
            seed: seed of randomness inside the model, such as dropout.
            factors: factor of the learning rate in each step.
            delta: array for the change of the weights; None allocates one.

        """
        self.module.train()
        self._reset_computed_buffers()
        current = self._stepped_weights.copy_(self.flat)
        self._bind_parameters(current)
        try:
            with self._seeded(seed):
                for batch, factor in zip(batches, factors, strict=False):
                    self._backward(*batch)
                    optimizer.step([g.to(torch.float32) for g in self._dense_gradients()], factor)
                    self._round_parameters(current)
        finally:
            self._bind_parameters(self.flat)
        change = torch.sub(current, self.flat, out=_tensor_for(delta, self.flat))
        carried = self.carried if self.layout.carried else None
        return Outcome(change.cpu().numpy(), None, None, carried)

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
        self._backward(inputs, labels, scale)
        return self._pieces(self._dense_gradients())

    def _backward(self, inputs: Tensor, labels: Tensor, scale: float = 1.0) -> None:
        """Compute the parameters' gradients of the scaled mean loss."""
        for parameter in self._parameters:
            parameter.grad = None  # so that torch writes gradients instead of adding them
        try:
            outputs = self._scores(inputs)
        except ValueError as error:
            if len(labels) > 1:
                raise
            raise ValueError(
                f"the model cannot train on a batch of one example ({error}); choose a batch_size"
                " that does not leave one example over"
            ) from error
        loss = self.objective.mean_loss(outputs, _like_outputs(labels, outputs))
        (loss if scale == 1 else scale * loss).backward()  # type: ignore[no-untyped-call]

    def _dense_gradients(self) -> Iterator[Tensor]:
        """Yield the gradient of each parameter; zeros for parameters without one."""
        for p in self._parameters:
            yield torch.zeros_like(p) if p.grad is None else p.grad.to_dense()

    def _pieces(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Split tensors into flat float32 pieces; a piece never spans two tensors."""
        flat = (tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors)
        return [piece for part in flat for piece in torch.split(part, self._piece)]

    def _split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Split a flat vector into the same pieces."""
        return torch.split(flat, self._piece_sizes)

    def _scores(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 4:
            # contiguous() would not change the strides of single-channel images, and convolutions
            # depend on them.
            inputs = inputs.to(memory_format=self._memory_format)
        if inputs.dtype != self._input_dtype and inputs.is_floating_point():
            inputs = inputs.to(self._input_dtype)
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
        rate: float,
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
                stepped = torch.add(before, direction, alpha=-rate)
                torch.sub(stepped, start, out=after)
            else:
                torch.add(before, direction, alpha=-rate, out=after)

    def evaluate(self, examples: Examples, chunk: int = 1000) -> Scores:
        """Return mean loss and metrics over all examples.

        Args:
            examples: the examples.
            chunk: number of examples in a forward pass.

        """
        chunks = enumerate(examples.chunks(chunk))
        batches = [self.evaluate_batch(*batch, number=number) for number, batch in chunks]
        return self.objective.combine(batches, len(examples))

    def check_batch(
        self, inputs: Tensor, labels: Tensor, limits: tuple[int, int] | None = None
    ) -> None:
        """Check that a batch can be evaluated.

        Args:
            inputs: the inputs.
            labels: the targets.
            limits: the lowest and the highest class number of all examples.

        Raises:
            ValueError: the model, the loss or a metric fails; the message has the shapes.

        """
        self.module.eval()
        self._reset_computed_buffers()
        with torch.inference_mode(), self._seeded(0):
            self._round_parameters(self.flat)
            try:
                outputs = self._scores(inputs)
            except Exception as error:
                raise ValueError(
                    f"the model failed on a batch of {describe(inputs)}: {error}"
                ) from error
            self.objective.check(outputs, _like_outputs(labels, outputs), limits)

    def evaluate_batch(self, inputs: Tensor, labels: Tensor, *, number: int = 0) -> BatchScores:
        """Return the sums of a batch's losses and metrics.

        Args:
            inputs: the inputs.
            labels: the targets.
            number: number of the batch. It seeds models that are random in evaluation mode, so that
                any process gets the same result.

        """
        self.module.eval()
        self._reset_computed_buffers()
        with torch.inference_mode(), self._seeded(number):
            self._round_parameters(self.flat)
            outputs = self._scores(inputs)
            return self.objective.score(outputs, _like_outputs(labels, outputs))


def _tensor_for(array: Vector | None, like: Tensor) -> Tensor:
    """Return a tensor in the memory of an array, or a new one."""
    return torch.empty_like(like) if array is None else torch.from_numpy(array)


def _like_outputs(targets: Tensor, outputs: Any) -> Tensor:
    """Return float64 targets, the default of NumPy, in the dtype of the outputs."""
    if targets.dtype == torch.float64 and isinstance(outputs, Tensor):
        return targets.to(outputs.dtype)
    return targets


def to_array(tensor: Tensor) -> NDArray[Any]:
    """Return a copy of a tensor in the NumPy dtype that holds its bits."""
    values = tensor.detach().cpu()
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).numpy().view(np.uint16).copy()
    array: NDArray[Any] = values.numpy().copy()
    return array


def from_array(array: NDArray[Any], tensor: Tensor) -> None:
    """Copy an array that ``to_array`` returned to a tensor."""
    values = torch.from_numpy(np.array(array.view(np.int16) if array.dtype == np.uint16 else array))
    if tensor.dtype == torch.bfloat16:
        values = values.view(torch.bfloat16)
    with torch.no_grad():
        tensor.copy_(values)


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype as NumPy has it, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def _check_options(carry: str, overflow: str) -> None:
    if carry not in get_args(Carry):
        raise ValueError(f'carry must be "average", "latest" or "local", got {carry!r}')
    if overflow not in get_args(Overflow):
        raise ValueError(f'overflow must be "refuse" or "saturate", got {overflow!r}')


def _select_trained(module: nn.Module, trainable: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the parameters to train by name, each once; freeze the others."""
    if isinstance(trainable, str):
        raise ValueError(f"trainable must be a list of patterns, such as [{trainable!r}]")
    everything = list(module.named_parameters(remove_duplicate=False))
    matching = {
        id(parameter)
        for name, parameter in everything
        if any(fnmatchcase(name, pattern) for pattern in trainable)
    }
    for pattern in trainable if everything else ():
        if not any(fnmatchcase(name, pattern) for name, _ in everything):
            names = ", ".join(name for name, _ in everything)
            raise ValueError(
                f"the pattern {pattern!r} of trainable matches no parameter; the parameters are:"
                f" {names}"
            )
    trained = {}
    for name, parameter in module.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ValueError(
                f"parameter {name} has no shape yet; call the model once on a batch before"
                " training it"
            )
        if id(parameter) not in matching:
            parameter.requires_grad_(False)
        if parameter.requires_grad:
            check_dtype(name_of(parameter.dtype), name)
            trained[name] = parameter
    if not trained:
        raise ValueError("the model has no trainable parameters")
    return trained


def _persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that belong to the state of a model; others are computed by it."""
    persistent = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers() if name in persistent}


def _computed_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers that do not belong to the state of a model."""
    persistent = module.state_dict().keys()
    return {
        name: buffer.detach().clone()
        for name, buffer in module.named_buffers()
        if name not in persistent
    }


def _carried_tensors(buffers: Mapping[str, Tensor], rule: Rule) -> tuple[Carried, ...]:
    return tuple(
        Carried(name, tuple(buffer.shape), name_of(buffer.dtype), rule)
        for name, buffer in buffers.items()
    )


def state_arrays(state: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Return the tensors of a state dict as arrays for a file; bfloat16 becomes float32."""
    return {
        name: (value.to(torch.float32) if value.dtype == torch.bfloat16 else value).numpy()
        for name, value in state.items()
    }
