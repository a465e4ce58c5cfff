"""The pretrained base of the adapters."""

from __future__ import annotations

import torch
from torch.nn import functional

from fedtern.data.text import Document, python_documents, split_windows
from fedtern.training.language_model import Transformer
from fedtern.training.pretraining import adapted_transformer, pretrain

TEXT = [Document("abc", b"abcdefghijklmnop" * 40)]


def loss_on(model, windows):
    inputs, targets = torch.from_numpy(windows.inputs), torch.from_numpy(windows.targets)
    with torch.no_grad():
        return functional.cross_entropy(model(inputs), targets).item()


def test_pretraining_gives_the_same_model_for_any_state_of_the_generator_and_threads():
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    first = pretrain(TEXT, steps=3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        second = pretrain(TEXT, steps=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first.parameters(), second.parameters()))


def test_pretraining_learns_its_text():
    train, _ = split_windows(TEXT)
    assert loss_on(pretrain(TEXT, steps=40), train) < 2 < loss_on(pretrain(TEXT, steps=1), train)


def test_the_base_predicts_documentation_better_than_an_untrained_model():
    _, test = split_windows(python_documents())
    assert loss_on(adapted_transformer(), test) < loss_on(Transformer(), test) - 2


def test_adapters_are_a_fifteenth_of_the_model():
    model = adapted_transformer()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert (trained, frozen) == (8_192, 120_576)


def test_adapters_depend_on_the_seed_and_the_base_does_not():
    torch.manual_seed(1)
    first = adapted_transformer()
    torch.manual_seed(2)
    second = adapted_transformer()
    for (name, one), other in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other) == (not name.endswith("down.weight")), name
