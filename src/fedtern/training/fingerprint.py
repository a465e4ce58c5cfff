"""Fingerprint of the parts of a training that no experiment names: model, data and functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import takewhile
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtern.data import Dataset, Split
from fedtern.training.flat import FlatModel, to_array
from fedtern.training.optimizers import Schedule, check_factor, describe_optimizer
from fedtern.training.tasks import Task, is_built_in

_LIBRARIES = ("builtins", "fedtern", "functools", "math", "numpy", "torch")
"""Packages whose code is identified by names, so that an update of one changes no fingerprint."""

_CODE_PARTS = ("model", "schedule", "loss", "metrics", "augment", "transform")

_Bytes = bytes | memoryview

_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def fingerprint(
    task: Task, model: FlatModel, dataset: Dataset, split: Split, iterations: int
) -> dict[str, str]:
    """Return a digest of each part of a training, by the name of the part.

    The initial values of trained parameters are left out, because a checkpoint has their current
    values. Functions count by their code, defaults and closures, but not by the functions that
    they call. Functions of torch and other libraries count by their name.

    Args:
        task: the task.
        model: the model of the task, before training.
        dataset: the dataset.
        split: the training examples of each client.
        iterations: number of iterations of the whole training.

    """
    trained = set(model.layout.names)
    state = model.state_dict()
    others = {name: to_array(state[name]) for name in sorted(state) if name not in trained}
    parts: dict[str, Iterable[_Bytes]] = {
        "model": [model.layout.digest, *_module(model.module)],
        "frozen parameters or buffers": _arrays(others),
        "training data": _arrays({"x": dataset.train_inputs, "y": dataset.train_labels}),
        "test data": _arrays({"x": dataset.test_inputs, "y": dataset.test_labels}),
        "split": _arrays({str(i): part for i, part in enumerate((*split.clients, split.public))}),
        "optimizer": [describe_optimizer(task.optimizer, model.parameter_copies()).encode()],
        "schedule": [repr(_factors(task.schedule, iterations)).encode()],
        "loss": _parts(task.loss, ()),
        "metrics": _parts(task.objective.metrics, ()),
        "augment": _parts(task.augment, ()),
        "transform": _parts(task.transform, ()),
        "carry": [task.carry.encode()],
        "trainable": [repr(tuple(task.trainable)).encode()],
        "overflow": [task.overflow.encode()],
    }
    return {name: _digest(content) for name, content in parts.items()}


def describe_training(task: Task, model: FlatModel, parts: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that separate runs in a report, without those that are defaults.

    Args:
        task: the task.
        model: the model of the task.
        parts: the fingerprint. Parts that depend on the seed do not separate runs.

    """
    if is_built_in(task):
        return {}  # the name of the task says it all
    settings = {
        "optimizer": task.optimizer
        and describe_optimizer(task.optimizer, model.parameter_copies()),
        "schedule": task.schedule and _name(task.schedule),
        "loss": task.loss and _name(task.loss),
        "carry": None if task.carry == "average" else task.carry,
        "trainable": None if tuple(task.trainable) == ("*",) else ", ".join(task.trainable),
    }
    code = (f"{name} {parts[name]}".encode() for name in _CODE_PARTS if name in parts)
    found = {key: str(value) for key, value in settings.items() if value}
    return {**found, "code": _digest(code)}


def _name(function: object) -> str:
    if isinstance(function, partial):
        return _name(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _digest(parts: Iterable[_Bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]


def _arrays(arrays: Mapping[str, NDArray[Any]]) -> Iterator[_Bytes]:
    for name, array in arrays.items():
        yield f"{name} {array.dtype} {array.shape}".encode()
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _factors(schedule: Schedule | None, iterations: int) -> list[float]:
    """Return the factors of a schedule at powers of two and at the last iteration."""
    if schedule is None:
        return []
    powers = takewhile(lambda i: i < iterations, (2**i for i in range(64)))
    return [check_factor(schedule, i) for i in (0, *powers, iterations - 1)]


def _module(module: nn.Module) -> Iterator[_Bytes]:
    """Yield the classes and settings of a module and of its parts."""
    for name, part in module.named_modules():
        yield name.encode()
        yield from _type(type(part), (id(module),))
        for key, value in sorted(vars(part).items()):
            if key != "training" and not key.startswith("_") and isinstance(value, _VALUES):
                yield f"{key}={value!r}".encode()


def _parts(value: Any, path: tuple[int, ...]) -> Iterator[_Bytes]:
    """Yield bytes that identify a value, its code and the values that it holds."""
    if isinstance(value, _VALUES):
        yield repr(value).encode()
        return
    yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
    if id(value) in path:  # a function whose closure holds the function itself
        return
    path = (*path, id(value))
    if isinstance(value, Tensor):
        yield from _arrays({str(value.dtype): to_array(value)})
    elif isinstance(value, np.ndarray):
        yield from _arrays({"": value}) if value.dtype != object else ()
    elif isinstance(value, nn.Module):
        yield from _module(value)
        tensors = {name: t for name, t in value.state_dict().items() if isinstance(t, Tensor)}
        yield from _arrays({name: to_array(tensor) for name, tensor in tensors.items()})
    elif isinstance(value, Mapping):
        for key, content in value.items():
            yield from _parts(key, path)
            yield from _parts(content, path)
    elif isinstance(value, set | frozenset):
        yield from sorted(_digest(_parts(content, path)).encode() for content in value)
    elif isinstance(value, tuple | list):
        for content in value:
            yield from _parts(content, path)
    else:
        yield from _callable(value, path)


def _callable(value: Any, path: tuple[int, ...]) -> Iterator[_Bytes]:
    if isinstance(value, type):
        yield from _type(value, path)
    elif isinstance(value, partial):
        yield from _parts((value.func, value.args, value.keywords), path)
    elif isinstance(value, MethodType):
        yield from _parts((value.__func__, value.__self__), path)
    elif isinstance(value, FunctionType):
        yield from _function(value, path)
    elif isinstance(value, BuiltinFunctionType):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif isinstance(value, CodeType):
        yield value.co_code
        yield repr(value.co_names).encode()
        yield from _parts(value.co_consts, path)
    else:
        yield from _type(type(value), path)
        yield from _parts(getattr(value, "__dict__", {}), path)


def _function(function: FunctionType, path: tuple[int, ...]) -> Iterator[_Bytes]:
    if _is_library(function.__module__):
        yield f"{function.__module__}.{function.__qualname__}".encode()
    else:
        yield from _parts(function.__code__, path)
    yield from _parts((function.__defaults__, function.__kwdefaults__), path)
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield from _parts(content, path)


def _type(kind: type, path: tuple[int, ...]) -> Iterator[_Bytes]:
    """Yield the name of a class, and its methods unless it belongs to a library."""
    yield kind.__qualname__.encode()
    if _is_library(kind.__module__):
        yield kind.__module__.encode()
        return
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, FunctionType):
            yield name.encode()
            yield from _parts(value.__code__, path)


def _is_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES
