"""The transformer: causality, tied embeddings and training."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from fedtern.training.language_model import VOCABULARY, Transformer


def tokens(count=3, length=16, seed=0):
    return torch.randint(0, 256, (count, length), generator=torch.Generator().manual_seed(seed))


def test_the_transformer_of_the_task_has_120576_parameters():
    assert sum(p.numel() for p in Transformer().parameters()) == 120_576


def test_embedding_and_output_layer_share_one_tensor():
    model = Transformer(context=8, width=16, layers=1, heads=2)
    names = [name for name, _ in model.named_parameters()]
    assert model.head.weight is model.embedding.weight
    assert "embedding.weight" in names
    assert "head.weight" not in names


def test_a_score_depends_only_on_its_byte_and_the_bytes_before():
    model = Transformer(context=16, width=16, layers=2, heads=2)
    text = tokens()
    changed = text.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 256
    before, after = model(text), model(changed)
    torch.testing.assert_close(before[..., :10], after[..., :10])
    assert not torch.isclose(before[..., 10:], after[..., 10:]).all(1).any()


def test_scores_are_those_of_every_byte_at_every_position():
    model = Transformer(context=16, width=16, layers=1, heads=2)
    assert model(tokens(length=12)).shape == (3, VOCABULARY, 12)


def test_the_first_loss_is_near_that_of_a_uniform_guess():
    torch.manual_seed(0)
    text = tokens(20, 65)
    loss = functional.cross_entropy(Transformer()(text[:, :-1]), text[:, 1:])
    assert math.log(256) - 0.1 < loss.item() < math.log(256) + 0.8


def test_a_text_longer_than_the_context_is_an_error():
    with pytest.raises(ValueError, match="at most 8 bytes, got 9"):
        Transformer(context=8, width=16, layers=1, heads=2)(tokens(length=9))


def test_a_width_that_heads_do_not_divide_is_an_error():
    with pytest.raises(ValueError, match="multiple of heads, got 10 and 4"):
        Transformer(width=10)
