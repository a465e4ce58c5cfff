"""A language model that is trained in one place, before a federation adapts it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional

from fedtern.data.text import Document, python_sources, split_windows
from fedtern.training.language_model import Transformer
from fedtern.training.lora import add_lora

_STEPS = 200
_BATCH_SIZE = 16
_LEARNING_RATE = 6e-3
_SEED = 0  # of the base; the seed of an experiment is that of its adapters


def adapted_transformer(rank: int = 4) -> nn.Module:
    """Return a pretrained, frozen transformer with new adapters in its blocks.

    The base is trained on the source code of modules of the standard library, which is none of the
    text of any client. That takes a few seconds, once in a process. All processes on one machine
    get the same base; another processor may round differently.

    Args:
        rank: rank of the adapters.

    """
    return add_lora(copy.deepcopy(_base()), rank, where=lambda name: name.startswith("blocks."))


@lru_cache(maxsize=1)
def _base() -> Transformer:
    return pretrain(python_sources())


def pretrain(documents: Sequence[Document], steps: int = _STEPS) -> Transformer:
    """Return a transformer trained with AdamW, always from the same seed.

    Args:
        documents: the text.
        steps: number of steps.

    """
    train, _ = split_windows(documents)
    inputs, targets = torch.from_numpy(train.inputs.copy()), torch.from_numpy(train.targets.copy())
    with _reproducible():
        model = Transformer()
        optimizer = torch.optim.AdamW(model.parameters(), _LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
        for _ in range(steps):
            chosen = torch.randint(len(inputs), (_BATCH_SIZE,))
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs[chosen]), targets[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return model


@contextmanager
def _reproducible() -> Iterator[None]:
    """Seed torch and use one thread: sums in several threads are rounded differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            yield
    finally:
        torch.set_num_threads(threads)
