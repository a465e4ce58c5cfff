"""Optimisers of torch on a client, with a state that is kept for each client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from fedtern.training.packing import Packing

OptimizerFactory = Callable[[Sequence[nn.Parameter]], Optimizer]
"""Makes an optimiser for a list of parameters, such as ``lambda p: torch.optim.Adam(p, 1e-3)``."""


class Schedule(Protocol):
    """The learning rate over time."""

    def __call__(self, iteration: int, /) -> float:
        """Return the factor of the learning rate at an iteration, counted from 0."""
        ...


def torch_schedule(make: Callable[[Optimizer], LRScheduler]) -> Schedule:
    """Return the learning-rate factors of a torch scheduler as a function of the iteration.

    The scheduler runs on a learning rate of 1, so that its values are factors. A bound that is a
    learning rate elsewhere, such as ``eta_min`` of ``CosineAnnealingLR``, is a factor here: 0.01
    means a hundredth of the optimiser's learning rate.

    Args:
        make: makes the scheduler of an optimiser. The scheduler advances with each iteration.

    Raises:
        ValueError: the scheduler sets learning rates itself, or needs the loss.

    >>> halved = torch_schedule(lambda o: torch.optim.lr_scheduler.StepLR(o, 10, gamma=0.5))
    >>> [halved(iteration) for iteration in (0, 9, 10, 25)]
    [1.0, 1.0, 0.5, 0.25]
    """
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    scheduler = make(optimizer)
    if not isinstance(scheduler, LRScheduler):
        raise ValueError(
            "torch_schedule needs a function that makes a scheduler of torch.optim.lr_scheduler,"
            f" got {scheduler!r}"
        )
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau needs the loss at each step, which a schedule does not have; use"
            " another scheduler, such as StepLR"
        )
    if isinstance(scheduler, lr_scheduler.OneCycleLR | lr_scheduler.CyclicLR):
        raise ValueError(
            f"{type(scheduler).__name__} sets learning rates, but a schedule returns factors of the"
            " optimiser's learning rate; write them as a function of the iteration, or use LambdaLR"
        )
    factors: list[float] = []

    def factor(iteration: int) -> float:
        while len(factors) <= iteration:
            factors.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()  # torch warns about a scheduler that is ahead of its optimiser
            scheduler.step()
        return factors[iteration]

    factor.__qualname__ = type(scheduler).__name__  # run directories record it
    return factor


def check_factor(schedule: Schedule | None, iteration: int) -> float:
    """Return the factor of the learning rate at an iteration.

    Raises:
        ValueError: the factor is not a finite number, or negative.

    """
    if schedule is None:
        return 1.0
    factor = schedule(iteration)
    try:
        value = float(factor)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ValueError(
            "schedule must return a factor of the learning rate that is finite and not negative,"
            f" got {factor!r} at iteration {iteration}"
        )
    return value


class LocalOptimizer:
    """An optimiser whose state can be taken out and put back.

    Args:
        make: makes the optimiser.
        parameters: the parameters, which have no gradients yet.

    Raises:
        ValueError: the state of this optimiser cannot be kept for each client.

    """

    def __init__(self, make: OptimizerFactory, parameters: Sequence[nn.Parameter]) -> None:
        optimizer = make(parameters)
        if not isinstance(optimizer, Optimizer):
            raise ValueError(
                "optimizer must be a function that makes a torch optimiser, such as"
                f" lambda params: torch.optim.Adam(params, 1e-3); it returned {optimizer!r}"
            )
        self.name = type(optimizer).__name__
        self._parameters = parameters
        self._numbers: set[str] = set()  # parts of the state that are numbers, not tensors
        _check_parameters(optimizer, parameters)
        self.packing = self._probe(make)
        self._optimizer = optimizer
        self._rates = [group.get("lr") for group in optimizer.param_groups]

    def _probe(self, make: OptimizerFactory) -> Packing:
        """Return the arrays of the state, as a step of another instance shows them."""
        copies = [nn.Parameter(p.detach().clone()) for p in self._parameters]
        probe = make(copies)
        before = _settings(probe)
        for copy in copies:
            copy.grad = torch.zeros_like(copy)
        try:
            probe.step()
        except Exception as error:
            raise ValueError(
                f"optimiser {self.name} cannot be used: its step() failed without a closure and"
                f" with dense gradients ({error}); use another one, such as torch.optim.Adam"
            ) from error
        if _settings(probe) != before:
            raise self._refuse("it keeps values in its parameter groups")
        return Packing.of(self._arrays(probe, copies))

    def _refuse(self, reason: str) -> ValueError:
        return ValueError(
            f"the state of optimiser {self.name} cannot be kept for each client: {reason}; use"
            " another optimiser, such as torch.optim.Adam"
        )

    def _arrays(
        self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]
    ) -> dict[str, NDArray[Any]]:
        known = {id(parameter): i for i, parameter in enumerate(parameters)}
        arrays: dict[str, NDArray[Any]] = {}
        for parameter, values in optimizer.state.items():
            number = known.get(id(parameter))
            if number is None:
                raise self._refuse(f"its state has the key {parameter!r}, which is not a parameter")
            for key, value in values.items():
                name = f"optimizer.{number}.{key}"
                if isinstance(value, Tensor):
                    arrays[name] = value.detach().cpu().numpy()
                elif isinstance(value, bool | int | float):
                    arrays[name] = np.array(value)
                    self._numbers.add(name)
                elif value is not None:
                    raise self._refuse(f"{key!r} is a {type(value).__name__}, not a tensor")
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue with the state of a client; an empty one resets the optimiser."""
        self._optimizer.state.clear()
        for name, array in arrays.items():
            _, number, key = name.split(".", 2)
            parameter = self._parameters[int(number)]
            if name in self._numbers:
                self._optimizer.state[parameter][key] = array.item()
                continue
            tensor = torch.from_numpy(np.array(array))
            # Counters of steps stay on the CPU, as torch keeps them.
            value = tensor.to(parameter.device) if tensor.dim() else tensor
            self._optimizer.state[parameter][key] = value

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state after a client's steps; views where possible."""
        return self._arrays(self._optimizer, self._parameters)

    def step(self, gradients: Sequence[Tensor], factor: float) -> None:
        """Change the parameters, with the learning rate multiplied by a factor."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if rate is not None:
                group["lr"] = rate if factor == 1 else rate * factor
        self._optimizer.step()


def describe_optimizer(make: OptimizerFactory | None, parameters: Sequence[nn.Parameter]) -> str:
    """Return name and settings of an optimiser, such as "Adam(lr=0.001, ...)"; "SGD" for None.

    Args:
        make: makes the optimiser.
        parameters: copies of the parameters.

    >>> describe_optimizer(lambda p: torch.optim.Adagrad(p, 0.5), [nn.Parameter(torch.ones(1))])
    'Adagrad(lr=0.5, lr_decay=0, eps=1e-10, weight_decay=0, initial_accumulator_value=0)'
    """
    if make is None:
        return "SGD"
    optimizer = make(parameters)
    # Settings that are off, such as foreach=None, say nothing.
    groups = [
        ", ".join(
            f"{key}={value}"
            for key, value in group.items()
            if key != "params" and value is not None and value is not False
        )
        for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__name__}({'; '.join(groups)})"


def _settings(optimizer: Optimizer) -> list[str]:
    """Return the settings of the parameter groups as text."""
    return [
        repr({key: value for key, value in group.items() if key != "params"})
        for group in optimizer.param_groups
    ]


def _check_parameters(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    given = {id(parameter) for parameter in parameters}
    used = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in given for parameter in used):
        raise ValueError(
            "optimizer must use the parameters that it is given, but it uses others: write"
            " lambda params: torch.optim.Adam(params), not Adam(model.parameters())"
        )
