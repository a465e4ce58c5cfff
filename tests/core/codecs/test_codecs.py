from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import CODECS, LAYOUT, check_codec, sample_update
from fedtern import DecodeError, Layout
from fedtern.core.codecs import CODECS as BY_ID
from fedtern.core.codecs import DenseCodec, ExactCodec, SparseCodec, TernaryCodec
from fedtern.core.codecs.golomb import WIDEST_DENSITY, golomb_width
from fedtern.core.updates import Dense, Sparse, Ternary


@pytest.mark.parametrize("name", CODECS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_decoding_undoes_encoding_and_refuses_everything_shorter_or_longer(name, seed):
    rng = np.random.default_rng(seed)
    check_codec(CODECS[name], sample_update(name, LAYOUT, rng), LAYOUT)


@pytest.mark.parametrize("name", CODECS)
def test_decoding_undoes_encoding_on_one_large_tensor(name):
    layout, rng = Layout.flat(40_000), np.random.default_rng(3)
    update = sample_update(name, layout, rng)
    decoded = CODECS[name].decode(CODECS[name].encode(update, layout), layout)
    assert np.array_equal(decoded.to_dense(), update.to_dense())


def test_every_codec_is_listed_under_the_id_it_writes():
    rng = np.random.default_rng(0)
    for name, codec in CODECS.items():
        data = codec.encode(sample_update(name, LAYOUT, rng), LAYOUT)
        assert BY_ID[data[0]].decode(data, LAYOUT).size == LAYOUT.size


def test_codecs_refuse_what_they_are_not_for():
    for name, codec in CODECS.items():
        other = Dense(np.zeros(LAYOUT.size, np.float32))
        if name in ("dense", "exact"):
            other = Sparse.empty(LAYOUT.size)
        with pytest.raises(TypeError, match="this codec writes"):
            codec.encode(other, LAYOUT)


def test_the_width_is_the_formula_of_algorithm_3():
    golden = (np.sqrt(5) - 1) / 2
    for b, limit in enumerate(WIDEST_DENSITY, start=1):
        for p in (limit * (1 - 1e-9), limit * (1 + 1e-9)):
            formula = 1 + np.floor(np.log2(np.log(golden) / np.log1p(-p)))
            assert sum(p <= density for density in WIDEST_DENSITY) == max(formula, 0)
        assert golomb_width(1, int(1 / limit) + 1) >= b
    assert (golomb_width(1, 100), golomb_width(0, 5), golomb_width(5, 5)) == (6, 0, 0)


@pytest.mark.parametrize(("p", "b"), [(0.01, 6), (1 / 400, 8), (1 / 25, 4), (0.4, 0)])
def test_bits_per_position_are_within_half_a_percent_of_the_formula(p, b):
    size, rng = 4_000_000, np.random.default_rng(1)
    kept = np.flatnonzero(rng.random(size) < p)
    update = Ternary(size, kept, rng.random(kept.size) < 0.5, np.float32([1.0]))
    data = TernaryCodec().encode(update, Layout.flat(size))
    framing = 1 + len(_varint(kept.size)) + 4
    signs = (kept.size + 7) // 8
    measured = 8 * (len(data) - framing - signs) / kept.size
    formula = b + 1 / (1 - (1 - p) ** 2**b)
    assert golomb_width(kept.size, size) == b
    assert abs(measured / formula - 1) < 0.005


def _varint(value: int) -> bytes:
    return b"\0" * max(-(-value.bit_length() // 7), 1)


def test_a_tensor_costs_four_bytes_of_framing():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(LAYOUT.size).astype(np.float32)
    indices = np.array([0, 25, 30])  # one in each tensor
    signs = x[indices] > 0
    one = TernaryCodec("model").encode(
        Ternary(LAYOUT.size, indices, signs, np.float32([1])), LAYOUT
    )
    each = TernaryCodec("tensor").encode(
        Ternary(LAYOUT.size, indices, signs, np.float32([1, 2, 3]), LAYOUT.ends), LAYOUT
    )
    assert len(each) - len(one) == 4 * 2


def test_exact_takes_the_shorter_coding():
    layout = Layout.flat(1000)
    values = np.zeros(1000, np.float32)
    values[[3, 500, 600]] = -1.0, 2.5, -0.0
    data = ExactCodec().encode(Dense(values), layout)
    assert data[0] == SparseCodec.id
    assert ExactCodec().decode(data, layout).indices.tolist() == [3, 500]
    full = ExactCodec().encode(Dense(np.ones(1000, np.float32)), layout)
    assert full == DenseCodec().encode(Dense(np.ones(1000, np.float32)), layout)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e30])
def test_values_that_are_not_finite_are_refused(bad):
    layout = Layout.flat(3)
    data = DenseCodec().encode(Dense(np.float32([1, bad, 2])), layout)
    with pytest.raises(DecodeError, match=r"not finite or is beyond 2\*\*100"):
        DenseCodec().decode(data, layout)
    with pytest.raises(DecodeError):
        TernaryCodec().decode(
            TernaryCodec().encode(
                Ternary(3, np.array([1]), np.array([True]), np.float32([bad])), layout
            ),
            layout,
        )


@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_a_magnitude_must_be_positive(mu):
    layout = Layout.flat(3)
    update = Ternary(3, np.array([1]), np.array([True]), np.float32([mu]))
    with pytest.raises(DecodeError, match="magnitude"):
        TernaryCodec().decode(TernaryCodec().encode(update, layout), layout)


def test_a_count_is_checked_before_anything_is_allocated_for_it():
    layout = Layout.flat(1 << 40)  # never allocated
    huge = bytes([3]) + b"\xff\xff\xff\xff\xff\x07" + b"\0" * 50
    with pytest.raises(DecodeError, match="do not fit"):
        TernaryCodec().decode(huge, layout)
