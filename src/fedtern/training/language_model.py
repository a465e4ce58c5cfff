"""A small decoder-only transformer that predicts the next byte of a text."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
"""Number of tokens: one for each value of a byte."""


class Transformer(nn.Module):
    """A decoder-only transformer on bytes (Radford et al., 2019).

    Blocks normalise their inputs (pre-norm). The embedding of the bytes is also the weight of the
    output layer, so the model has one tensor less to train and to send.

    Args:
        context: largest number of bytes in an example.
        width: size of the embeddings.
        layers: number of blocks.
        heads: number of attention heads in each block.

    Raises:
        ValueError: ``width`` is not a multiple of ``heads``.

    """

    def __init__(self, context: int = 64, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
        self.context = context
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        blocks = [Block(width, heads) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        # The first scores have a variance of 1. With the usual, much smaller embeddings, plain SGD
        # needs several times as many steps.
        for tensor in (self.embedding.weight, self.positions):
            nn.init.normal_(tensor, std=1 / math.sqrt(width))
        for block in blocks:
            # The blocks' outputs add up; their variance must not grow with their number.
            for layer in (block.attention.output, block.contract):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores (example, byte, position) of the byte after each position.

        Args:
            tokens: bytes as integers (example, position).

        """
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"examples must have at most {self.context} bytes, got {length}")
        hidden = self.embedding(tokens) + self.positions[:length]
        scores: Tensor = self.head(self.norm(self.blocks(hidden)))
        return scores.transpose(1, 2)  # the layout that cross_entropy expects


class Block(nn.Module):
    """Causal self-attention and a perceptron, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the block's output (example, position, width)."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        output: Tensor = hidden + self.contract(functional.gelu(self.expand(self.norm(hidden))))
        return output


class Attention(nn.Module):
    """Causal self-attention: each position reads itself and the positions before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the attention's output (example, position, width)."""
        count, length, width = hidden.shape
        parts = self.query_key_value(hidden).view(count, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(count, length, width))
        return output
