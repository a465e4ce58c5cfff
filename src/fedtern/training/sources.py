"""Training data as users have it: arrays, tensors, datasets and data loaders of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data import Dataset as TorchDataset

from fedtern.data import Dataset, Split

_MAX_CLASSES = 1000  # larger integers are probably not class numbers
_HELD_OUT = 10  # without test examples, every tenth example is one

KINDS = (
    "a fedtern.data.Dataset, a pair of arrays (inputs, targets), a torch Dataset or DataLoader, or"
    " a pair (train, test) of these"
)


@dataclass(frozen=True, eq=False)
class Source:
    """Inputs and targets of examples, and the batch size of the data loader they came from."""

    inputs: NDArray[Any]
    targets: NDArray[Any]
    batch_size: int | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, chosen: NDArray[np.bool_]) -> Source:
        """Return some of the examples."""
        return Source(self.inputs[chosen], self.targets[chosen], self.batch_size)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A dataset with the batch size and the split that came with it, if any did."""

    dataset: Dataset
    batch_size: int | None = None
    split: Split | None = None


def load_data(data: Any, client_data: Sequence[Any] | None = None, *, name: str = "own") -> Loaded:
    """Return a dataset, given data in one of the forms that ``simulate`` takes.

    Without test examples, every tenth example is one.

    Args:
        data: all examples, or a pair of training and test examples. With ``client_data``, the test
            examples.
        client_data: the training examples of each client.
        name: name of the dataset.

    Raises:
        ValueError: the data has another form, or its parts do not fit together.

    >>> x, y = np.zeros((20, 3), np.float32), np.arange(20) % 2
    >>> loaded = load_data((x, y))
    >>> loaded.dataset.train_inputs.shape, loaded.dataset.test_inputs.shape
    ((18, 3), (2, 3))
    >>> load_data(None, client_data=[(x, y), (x, y)]).split.sizes
    (18, 18)
    """
    if client_data is not None:
        return _load_clients(data, client_data, name)
    if isinstance(data, Dataset):
        return Loaded(data)
    if data is None:
        raise ValueError(f"a module needs data: {KINDS}")
    if _is_pair_of_parts(data):
        train = read_source(data[0], "the training data")
        test = read_source(data[1], "the test data")
    else:
        train, test = _hold_out(read_source(data, "data"))
    return Loaded(_dataset(name, train, test), train.batch_size)


def _load_clients(data: Any, client_data: Sequence[Any], name: str) -> Loaded:
    if isinstance(client_data, str) or not isinstance(client_data, Sequence) or not client_data:
        raise ValueError(
            "client_data must be a list with the training data of each client, got"
            f" {_describe(client_data)}"
        )
    if isinstance(data, Dataset) or _is_pair_of_parts(data):
        raise ValueError(
            "with client_data, data must be the test examples alone: arrays (inputs, targets), a"
            f" torch Dataset or a DataLoader, got {_describe(data)}"
        )
    clients = [read_source(d, f"client_data[{i}]") for i, d in enumerate(client_data)]
    sizes = sorted({c.batch_size for c in clients if c.batch_size is not None})
    if len(sizes) > 1:
        raise ValueError(
            "the DataLoaders of client_data must have one batch size, got"
            f" {' and '.join(map(str, sizes))}"
        )
    if data is None:
        for i, client in enumerate(clients):
            if len(client) < _HELD_OUT:
                raise ValueError(
                    f"client_data[{i}] has {len(client)} examples, too few to hold out every tenth"
                    " for testing; pass the test examples as data=, or leave the client out"
                )
        parts = [_hold_out(client) for client in clients]
        clients = [train for train, _ in parts]
        test = _concatenate([held for _, held in parts], "the held-out examples of client")
    else:
        test = read_source(data, "data")
    train = _concatenate(clients, "client")
    ends = np.cumsum([len(client) for client in clients])
    split = Split(tuple(np.split(np.arange(ends[-1]), ends[:-1])))
    groups = np.repeat(np.arange(len(clients)), [len(client) for client in clients])
    for i, client in enumerate(clients):
        if not len(client):
            raise ValueError(f"client_data[{i}] has no training examples; leave the client out")
    return Loaded(_dataset(name, train, test, groups), sizes[0] if sizes else None, split)


def read_source(data: Any, what: str) -> Source:
    """Read the examples of one source into memory.

    Args:
        data: a pair of arrays or tensors, a torch ``Dataset`` or a ``DataLoader``. A data loader's
            order is ignored; examples are read once, so a random transform is applied once.
        what: name of the source, for error messages.

    Raises:
        ValueError: the source has another form, or its examples have different shapes.

    """
    if isinstance(data, DataLoader):
        return _read_loader(data, what)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return _source(data.tensors[0], data.tensors[1], what)
    if isinstance(data, IterableDataset | TorchDataset):
        return _read_examples(data, what)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _source(data[0], data[1], what)
    raise ValueError(
        f"{what} must be a pair of arrays (inputs, targets), a torch Dataset or a DataLoader, got"
        f" {_describe(data)}"
    )


def _read_examples(data: Any, what: str) -> Source:
    if isinstance(data, IterableDataset):
        examples = list(data)
    else:
        examples = [data[i] for i in range(len(data))]
    if not examples:
        raise ValueError(f"{what} has no examples")
    for i, example in enumerate(examples):
        if not isinstance(example, tuple | list) or len(example) != 2:
            raise ValueError(
                f"{what} must yield pairs (input, target), but example {i} is {_describe(example)}"
            )
    inputs = _stack([e[0] for e in examples], "inputs", what)
    return Source(inputs, _stack([e[1] for e in examples], "targets", what))


def _read_loader(loader: DataLoader[Any], what: str) -> Source:
    in_order = isinstance(loader.sampler, SequentialSampler | RandomSampler)
    if in_order and loader.batch_size is not None:
        loader = DataLoader(
            loader.dataset, loader.batch_size, shuffle=False, collate_fn=loader.collate_fn
        )
    inputs, targets = [], []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # a sampler of the user may be random
        for batch in loader:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise ValueError(
                    f"{what} must yield pairs (inputs, targets), but a batch is {_describe(batch)}"
                )
            inputs.append(_array(batch[0], f"the inputs of {what}"))
            targets.append(_array(batch[1], f"the targets of {what}"))
    if not inputs:
        raise ValueError(f"{what} has no examples")
    _check_same(inputs, "inputs", what, "batch")
    _check_same(targets, "targets", what, "batch")
    source = Source(np.concatenate(inputs), np.concatenate(targets), loader.batch_size)
    return _check_lengths(source, what)


def _source(inputs: Any, targets: Any, what: str) -> Source:
    return _check_lengths(
        Source(_array(inputs, f"the inputs of {what}"), _array(targets, f"the targets of {what}")),
        what,
    )


def _check_lengths(source: Source, what: str) -> Source:
    if source.inputs.shape[:1] != source.targets.shape[:1] or not source.inputs.ndim:
        raise ValueError(
            f"{what} must have as many targets as inputs, got shapes {source.inputs.shape} and"
            f" {source.targets.shape}"
        )
    return source


def _stack(values: Sequence[Any], part: str, what: str) -> NDArray[Any]:
    arrays = [_array(value, f"the {part} of {what}") for value in values]
    _check_same([a[np.newaxis] for a in arrays], part, what, "example")
    return np.stack(arrays)


def _check_same(arrays: Sequence[NDArray[Any]], part: str, what: str, unit: str) -> None:
    """Raise if arrays differ in the shape of their examples."""
    for i, array in enumerate(arrays):
        if array.shape[1:] != arrays[0].shape[1:]:
            raise ValueError(
                f"the {part} of {what} must have one shape, but {unit} 0 has"
                f" {arrays[0].shape[1:]} and {unit} {i} has {array.shape[1:]}"
            )


def _array(values: Any, what: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.to(torch.float32) if values.dtype == torch.bfloat16 else values
        return np.asarray(values.numpy())
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{what} must be an array: {error}") from None
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{what} must be numbers, got an array of {array.dtype}")
    return array


def _is_pair_of_parts(data: Any) -> bool:
    """Return whether data is (train, test), not (inputs, targets)."""
    is_pair = isinstance(data, tuple | list) and len(data) == 2
    return is_pair and all(
        isinstance(part, TorchDataset | DataLoader | tuple)
        or (isinstance(part, list) and len(part) == 2 and not _is_scalar(part[0]))
        for part in data
    )


def _is_scalar(value: Any) -> bool:
    return np.ndim(value) == 0


def _hold_out(source: Source) -> tuple[Source, Source]:
    """Return the examples for training and those for testing."""
    if len(source) < _HELD_OUT:
        raise ValueError(
            f"{len(source)} examples are too few to hold out every tenth for testing; pass test"
            " examples as well: data=(train, test)"
        )
    held = np.arange(len(source)) % _HELD_OUT == _HELD_OUT - 1
    return source.take(~held), source.take(held)


def _concatenate(sources: Sequence[Source], what: str) -> Source:
    for part in ("inputs", "targets"):
        arrays = [getattr(source, part) for source in sources]
        _check_same(arrays, part, "client_data", what)
        dtypes = list(dict.fromkeys(str(array.dtype) for array in arrays))
        if len(dtypes) > 1:
            raise ValueError(
                f"the {part} of client_data must have one dtype, got {' and '.join(dtypes)}"
            )
    return Source(
        np.concatenate([source.inputs for source in sources]),
        np.concatenate([source.targets for source in sources]),
    )


def _dataset(
    name: str, train: Source, test: Source, groups: NDArray[np.int64] | None = None
) -> Dataset:
    return Dataset(
        name,
        _single(train.inputs),
        train.targets,
        _single(test.inputs),
        test.targets,
        _num_classes(train.targets, test.targets),
        groups=groups,
        standardise=False,
    )


def _single(inputs: NDArray[Any]) -> NDArray[Any]:
    """Return float64 inputs, the default of NumPy, as float32."""
    return inputs.astype(np.float32) if inputs.dtype == np.float64 else inputs


def _num_classes(train: NDArray[Any], test: NDArray[Any]) -> int | None:
    """Return the number of classes; None if the targets are not class numbers."""
    both = [targets for targets in (train, test) if targets.size]
    if any(targets.ndim != 1 or targets.dtype.kind not in "iu" for targets in both):
        return None
    largest = max((int(targets.max()) for targets in both), default=0)
    if min((int(targets.min()) for targets in both), default=0) < 0 or largest >= _MAX_CLASSES:
        return None
    return max(largest + 1, 2)


def _describe(value: Any) -> str:
    """Return a value for an error message; long ones by their type."""
    if isinstance(value, np.ndarray | Tensor):
        return f"an array of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
