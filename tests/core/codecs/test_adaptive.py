"""The adaptive codec is short where non-zeros share rows and columns, and safe for any bytes."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fedtern import DecodeError, Layout
from fedtern.core.codecs import AdaptiveCodec, StepsCodec, TernaryCodec
from fedtern.core.updates import Steps, Ternary
from fedtern.core.wire import varint

PLAIN = TernaryCodec()
ADAPTIVE = AdaptiveCodec(PLAIN)
CONV = Layout(("conv", "bias", "fc"), ((32, 16, 3, 3), (32,), (64, 512)))


def ternary(layout: Layout, positions: np.ndarray, rng: np.random.Generator) -> Ternary:
    signs = rng.random(positions.size) < 0.5
    return Ternary(layout.size, np.sort(positions).astype(np.int64), signs, np.float32([0.5]))


@pytest.mark.parametrize("p", [1 / 4, 1 / 25, 1 / 100, 1 / 400])
@pytest.mark.parametrize("layout", [CONV, Layout.flat(100_000)])
def test_random_positions_take_at_most_one_percent_more_than_golomb(layout, p):
    rng = np.random.default_rng(0)
    golomb = adaptive = 0
    for _ in range(20):
        chosen = rng.choice(layout.size, int(layout.size * p), replace=False)
        update = ternary(layout, chosen, rng)
        golomb += len(PLAIN.encode(update, layout))
        adaptive += len(ADAPTIVE.encode(update, layout))
    assert adaptive <= 1.01 * golomb


def test_positions_in_few_rows_and_columns_take_few_bytes():
    rng = np.random.default_rng(0)
    layout = Layout(("fc",), ((512, 1600),))
    rows = rng.choice(512, 3000, p=rng.dirichlet(np.full(512, 0.1)))
    columns = rng.choice(1600, 3000, p=rng.dirichlet(np.full(1600, 0.1)))
    update = ternary(layout, np.unique(rows * 1600 + columns), rng)
    assert len(ADAPTIVE.encode(update, layout)) < 0.7 * len(PLAIN.encode(update, layout))


def test_an_update_is_never_longer_than_with_golomb_codes():
    rng = np.random.default_rng(1)
    for size in (1, 2, 7, 40, 1000):
        layout = Layout(("a", "b"), ((size, 3), (size,)))
        for count in {0, 1, size // 2, layout.size}:
            update = ternary(layout, rng.choice(layout.size, count, replace=False), rng)
            if not count:
                update = Ternary(update.size, update.indices, update.signs, np.float32([0]))
            assert len(ADAPTIVE.encode(update, layout)) <= len(PLAIN.encode(update, layout))


def test_a_decoder_of_adaptive_positions_reads_golomb_positions():
    rng = np.random.default_rng(2)
    update = ternary(CONV, rng.choice(CONV.size, 50, replace=False), rng)
    decoded = ADAPTIVE.decode(PLAIN.encode(update, CONV), CONV)
    assert np.array_equal(decoded.to_dense(), update.to_dense())


@pytest.mark.parametrize("fill", [0x00, 0x01, 0x55, 0xAA, 0xFF])
def test_the_slowest_streams_are_read_in_the_time_of_the_layout(fill):
    """A stream of any bytes ends after as many entries as the header names."""
    layout = Layout(("embedding", "wide", "bias"), ((2000, 50), (3, 60_000), (10_000,)))
    rng = np.random.default_rng(0)
    honest = StepsCodec().encode(
        Steps(
            layout.size,
            np.arange(0, layout.size, 3),
            rng.integers(1, 90, len(range(0, layout.size, 3))).astype(np.int32),
            np.array([-10]),
        ),
        layout,
    )
    start = time.perf_counter()
    StepsCodec().decode(honest, layout)
    honest_seconds = time.perf_counter() - start
    count = layout.size
    for length in (1, 1000, 40_000):
        stream = bytes([fill]) * (length - 1) + b"\1"
        signs = bytes((count + 7) // 8)
        head = bytes([19]) + varint(count) + varint(2**31 - 1) + bytes([120]) + signs
        data = head + b"\1" + varint(length) + stream
        start = time.perf_counter()
        with pytest.raises(DecodeError):
            StepsCodec().decode(data, layout)
        assert time.perf_counter() - start < 20 * honest_seconds + 0.1
