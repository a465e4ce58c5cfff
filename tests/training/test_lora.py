"""Low-rank adapters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedtern.training.language_model import Transformer
from fedtern.training.lora import LoraLinear, add_lora


def small() -> Transformer:
    return Transformer(context=8, width=16, layers=1, heads=2)


def trained(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


def test_new_adapters_do_not_change_the_output():
    model = small()
    text = torch.arange(8).view(1, 8)
    before = model(text)
    assert torch.equal(add_lora(model, rank=2)(text), before)


def test_only_adapters_are_trainable():
    model = add_lora(small(), rank=2, where=lambda name: "attention" in name)
    assert trained(model) == [
        f"blocks.0.attention.{layer}.{part}.weight"
        for layer in ("query_key_value", "output")
        for part in ("down", "up")
    ]


def test_a_step_changes_adapters_and_leaves_the_base_unchanged():
    torch.manual_seed(0)
    layer = LoraLinear(nn.Linear(4, 3), rank=2)
    base = [p.clone() for p in layer.base.parameters()]
    inputs = torch.randn(5, 4)
    before = layer(inputs)
    optimizer = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], 0.1)
    for _ in range(2):  # the first step changes only `up`, because `up` is zero
        optimizer.zero_grad()
        layer(inputs).square().sum().backward()
        optimizer.step()
    assert all(map(torch.equal, layer.base.parameters(), base))
    assert not torch.equal(layer(inputs), before)
    difference = layer.scale * layer.up.weight @ layer.down.weight
    merged = nn.functional.linear(inputs, layer.base.weight + difference, layer.base.bias)
    torch.testing.assert_close(layer(inputs), merged)


def test_adapters_keep_a_tied_output_layer_tied():
    model = add_lora(small(), rank=2)
    assert model.head.base.weight is model.embedding.weight


def test_a_rank_of_zero_is_an_error():
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        LoraLinear(nn.Linear(2, 2), rank=0)


def test_a_model_without_chosen_linear_layers_is_an_error():
    with pytest.raises(ValueError, match="no linear layer to add an adapter to"):
        add_lora(small(), rank=1, where=lambda name: name == "elsewhere")
