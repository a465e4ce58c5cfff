"""Codecs are lossless, as small as the formulas say, and refuse bad bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import CODECS, LAYOUT, check_codec, sample_update
from fedtern import DecodeError, Layout
from fedtern.core.codecs import CODECS as BY_ID
from fedtern.core.codecs import (
    DenseCodec,
    EliasCodec,
    LowRankCodec,
    PowersCodec,
    SketchedCodec,
    SparseCodec,
    SparseOrDenseCodec,
    TensorSignsCodec,
    TernaryCodec,
    TritsCodec,
)
from fedtern.core.codecs.golomb import MAX_DENSITY, golomb_width
from fedtern.core.updates import Dense, Sparse, Ternary
from fedtern.core.wire import varint


@pytest.mark.parametrize("name", CODECS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_decoding_undoes_encoding_and_refuses_shorter_and_longer_bytes(name, seed):
    rng = np.random.default_rng(seed)
    check_codec(CODECS[name], sample_update(name, LAYOUT, rng), LAYOUT)


@pytest.mark.parametrize("name", CODECS)
def test_decoding_undoes_encoding_on_one_large_tensor(name):
    layout = Layout.flat(40_000)
    rng = np.random.default_rng(3)
    update = sample_update(name, layout, rng)
    decoded = CODECS[name].decode(CODECS[name].encode(update, layout), layout)
    assert np.array_equal(decoded.to_dense(), update.to_dense())


def test_every_codec_is_listed_under_the_id_it_writes():
    rng = np.random.default_rng(0)
    for name, codec in CODECS.items():
        data = codec.encode(sample_update(name, LAYOUT, rng), LAYOUT)
        assert BY_ID[data[0]].decode(data, LAYOUT).size == LAYOUT.size


def test_codecs_refuse_updates_of_another_kind():
    for name, codec in CODECS.items():
        other = Dense(np.zeros(LAYOUT.size, np.float32))
        if name in ("dense", "exact"):
            other = Sparse.empty(LAYOUT.size)
        with pytest.raises(TypeError, match="this codec writes"):
            codec.encode(other, LAYOUT)


def test_the_golomb_width_equals_the_formula_of_algorithm_3():
    golden = (np.sqrt(5) - 1) / 2
    for b, limit in enumerate(MAX_DENSITY, start=1):
        for p in (limit * (1 - 1e-9), limit * (1 + 1e-9)):
            formula = 1 + np.floor(np.log2(np.log(golden) / np.log1p(-p)))
            assert sum(p <= density for density in MAX_DENSITY) == max(formula, 0)
        assert golomb_width(1, int(1 / limit) + 1) >= b
    assert (golomb_width(1, 100), golomb_width(0, 5), golomb_width(5, 5)) == (6, 0, 0)


@pytest.mark.parametrize(("p", "b"), [(0.01, 6), (1 / 400, 8), (1 / 25, 4), (0.4, 0)])
def test_bits_per_position_are_within_half_a_percent_of_the_formula(p, b):
    size = 4_000_000
    rng = np.random.default_rng(1)
    kept = np.flatnonzero(rng.random(size) < p)
    update = Ternary(size, kept, rng.random(kept.size) < 0.5, np.float32([1.0]))
    data = TernaryCodec().encode(update, Layout.flat(size))
    header = 1 + len(varint(kept.size)) + 4
    signs = (kept.size + 7) // 8
    measured = 8 * (len(data) - header - signs) / kept.size
    formula = b + 1 / (1 - (1 - p) ** 2**b)
    assert golomb_width(kept.size, size) == b
    assert abs(measured / formula - 1) < 0.005


def test_a_magnitude_per_tensor_takes_four_bytes_each():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(LAYOUT.size).astype(np.float32)
    indices = np.array([0, 25, 30])  # one in each tensor
    signs = x[indices] > 0
    one_magnitude = Ternary(LAYOUT.size, indices, signs, np.float32([1]))
    per_tensor = Ternary(LAYOUT.size, indices, signs, np.float32([1, 2, 3]), LAYOUT.ends)
    shorter = TernaryCodec("model").encode(one_magnitude, LAYOUT)
    longer = TernaryCodec("tensor").encode(per_tensor, LAYOUT)
    assert len(longer) - len(shorter) == 4 * 2


def test_few_nonzeros_are_encoded_sparse():
    layout = Layout.flat(1000)
    codec = SparseOrDenseCodec()
    values = np.zeros(1000, np.float32)
    values[[3, 500, 600]] = -1.0, 2.5, -0.0
    data = codec.encode(Dense(values), layout)
    assert data[0] == SparseCodec.id
    assert codec.decode(data, layout).indices.tolist() == [3, 500]


def test_many_nonzeros_are_encoded_dense():
    layout = Layout.flat(1000)
    ones = Dense(np.ones(1000, np.float32))
    assert SparseOrDenseCodec().encode(ones, layout) == DenseCodec().encode(ones, layout)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e30])
def test_values_that_are_not_finite_are_refused(bad):
    layout = Layout.flat(3)
    data = DenseCodec().encode(Dense(np.float32([1, bad, 2])), layout)
    with pytest.raises(DecodeError, match=r"not finite or is beyond 2\*\*100"):
        DenseCodec().decode(data, layout)
    ternary = Ternary(3, np.array([1]), np.array([True]), np.float32([bad]))
    data = TernaryCodec().encode(ternary, layout)
    with pytest.raises(DecodeError):
        TernaryCodec().decode(data, layout)


@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_magnitudes_that_are_not_positive_are_refused(mu):
    layout = Layout.flat(3)
    update = Ternary(3, np.array([1]), np.array([True]), np.float32([mu]))
    data = TernaryCodec().encode(update, layout)
    with pytest.raises(DecodeError, match="magnitude"):
        TernaryCodec().decode(data, layout)


def test_counts_are_checked_before_memory_is_allocated():
    layout = Layout.flat(1 << 40)  # never allocated
    huge = bytes([3]) + b"\xff\xff\xff\xff\xff\x07" + b"\0" * 50
    with pytest.raises(DecodeError, match="do not fit"):
        TernaryCodec().decode(huge, layout)


REFUSED = {
    "a bucket larger than the model": (EliasCodec, "0b01016b67cd494501e503", 43),
    "a bucket in an empty model": (EliasCodec, "0b000101", 0),
    "a non-zero level with a scale of zero": (EliasCodec, "0b000100000000000b", 1),
    "too many steps": (EliasCodec, "0b00ffffff0700cdcccc3d00", 1),
    "a negative scale": (TensorSignsCodec, "0c000080bf01", 1),
    "a trit out of range": (TritsCodec, "0a0000803fffffff07", 1),
    "a rank too large for its matrix": (LowRankCodec, "0d02" + 2 * "0000803f", 1),
    "a low above its high": (SketchedCodec, "10" + 16 * "0" + "01010000803f" + 10 * "0", 1),
    "an exponent of an empty tensor": (PowersCodec, "110005", 1),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_payloads_that_break_a_rule_are_refused(reason):
    codec, data, size = REFUSED[reason]
    with pytest.raises(DecodeError):
        codec().decode(bytes.fromhex(data), Layout.flat(size))
