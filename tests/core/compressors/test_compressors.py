"""Compressors keep the right values, have the promised error, and refuse bad values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import LAYOUT, random_vector, vectors
from fedtern import Layout, NonFiniteError
from fedtern.core.codecs import EliasCodec
from fedtern.core.compressors import (
    CosineTopK,
    Identity,
    NearestLevels,
    RotatedCentroids,
    ScaledSign,
    Sign,
    Sketch,
    SparseBinary,
    SparsePalette,
    SparseTernary,
    SpectralAtoms,
    StochasticLevels,
    StochasticTernary,
    Threshold,
    TopK,
    count_kept,
)
from fedtern.core.compressors.lowrank import atom_probabilities

RNG = np.random.default_rng(0)
rates = st.floats(1e-4, 1.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(vectors, rates)
def test_exactly_k_entries_are_kept_or_all_nonzeros(x, p):
    k = min(count_kept(x.size, p), np.count_nonzero(x))
    for compressor in (SparseTernary(p), TopK(p)):
        update = compressor.compress(x, Layout.flat(x.size), RNG)
        assert update.indices.size == k
        assert np.all(np.diff(update.indices) > 0)


@given(vectors, rates)
def test_ternary_values_are_the_mean_magnitude_of_the_values_topk_keeps(x, p):
    ternary = SparseTernary(p).compress(x, Layout.flat(x.size), RNG)
    sparse = TopK(p).compress(x, Layout.flat(x.size), RNG)
    assert np.array_equal(ternary.indices, sparse.indices)
    assert np.array_equal(np.sign(ternary.values), np.sign(sparse.values))
    if sparse.indices.size:
        mean = np.abs(sparse.values.astype(np.float64)).mean()
        assert np.allclose(np.abs(ternary.values), mean, rtol=1e-6)


@given(vectors, rates)
def test_compressing_an_update_again_does_not_change_it(x, p):
    layout = Layout.flat(x.size)
    once = SparseTernary(p).compress(x, layout, RNG).to_dense()
    assert np.array_equal(SparseTernary(p).compress(once, layout, RNG).to_dense(), once)


@given(vectors, rates)
def test_sparse_compressors_are_contractions(x, p):
    """||x - C(x)||^2 <= (1 - k/n) ||x||^2 for top-k; ternary is never worse than sending 0."""
    layout = Layout.flat(x.size)
    x64 = x.astype(np.float64)
    norm = (x64**2).sum()
    share = min(count_kept(x.size, p), x.size) / x.size
    sparse = TopK(p).compress(x, layout, RNG).to_dense()
    assert ((x64 - sparse) ** 2).sum() <= (1 - share) * norm * (1 + 1e-5)
    ternary = SparseTernary(p).compress(x, layout, RNG).to_dense()
    assert ((x64 - ternary) ** 2).sum() <= norm * (1 + 1e-5)


def test_tensor_scope_keeps_the_largest_entry_of_every_tensor():
    x = np.zeros(LAYOUT.size, np.float32)
    x[[0, 25, 40]] = 1e-6, 1.0, -1e6
    update = SparseTernary(0.01, "tensor").compress(x, LAYOUT, RNG)
    assert update.indices.tolist() == [0, 25, 40]
    assert np.array_equal(update.values, x[update.indices])
    assert SparseTernary(0.03, "model").compress(x, LAYOUT, RNG).indices.tolist() == [40]


def test_tensor_scope_compresses_each_tensor_separately():
    x = random_vector(np.random.default_rng(5), LAYOUT.size, zeros=0)
    whole = SparseTernary(0.2, "tensor").compress(x, LAYOUT, RNG).to_dense()
    for name, view in LAYOUT.unflatten(x).items():
        alone = SparseTernary(0.2).compress(view.reshape(-1), Layout.flat(view.size), RNG)
        assert np.array_equal(LAYOUT.unflatten(whole)[name].reshape(-1), alone.to_dense())


def test_all_zeros_give_an_empty_update():
    x = np.zeros(LAYOUT.size, np.float32)
    for compressor in (SparseTernary(0.5), SparseTernary(0.5, "tensor"), TopK(0.5)):
        update = compressor.compress(x, LAYOUT, RNG)
        assert update.indices.size == 0
        assert not update.to_dense().any()


def test_zeros_are_not_kept_if_there_are_fewer_than_k_nonzeros():
    """With the paper's mask, a threshold of zero would keep every value."""
    update = SparseTernary(0.5).compress(np.float32([1, 0, 0, 0]), Layout.flat(4), RNG)
    assert update.to_dense().tolist() == [1, 0, 0, 0]


def test_k_is_rounded_down_to_at_least_one_without_float_errors():
    assert [count_kept(100, p) for p in (0.29, 0.57, 0.001, 1.0)] == [29, 57, 1, 100]
    assert count_kept(865_482, 1 / 400) == 2163


def test_only_zeros_get_random_signs():
    x = np.float32([3, -0.5, 0, -0.0] * 500)
    signs = Sign(0.5).compress(x, Layout.flat(x.size), np.random.default_rng(1)).positive
    assert signs[0::4].all()
    assert not signs[1::4].any()
    assert 400 < signs[2::4].sum() + signs[3::4].sum() < 600


@pytest.mark.parametrize("compressor", [Identity(), TopK(0.1), SparseTernary(0.1), Sign()])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e30])
def test_errors_about_values_that_are_not_finite_name_the_tensor(compressor, bad):
    x = np.zeros(LAYOUT.size, np.float32)
    x[26] = bad
    with pytest.raises(NonFiniteError, match=r"at bias\[2\] cannot be sent"):
        compressor.compress(x, LAYOUT, RNG)


@pytest.mark.parametrize("p", [0, -0.1, 1.5, float("nan")])
def test_rates_out_of_range_are_refused(p):
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\], got"):
        SparseTernary(p)
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\], got"):
        TopK(p)


def test_unknown_scopes_are_refused():
    with pytest.raises(ValueError, match='scope must be "model" or "tensor", got \'layer\''):
        SparseTernary(0.1, "layer")


def test_a_step_of_zero_is_refused():
    with pytest.raises(ValueError, match="step must be a positive"):
        Sign(0.0)


UNBIASED = {
    "terngrad": StochasticTernary(),
    "qsgd": StochasticLevels(4, 16),
    "qsgd-max": StochasticLevels(2, 16, "max"),
    "atomo": SpectralAtoms(1),
    "sketched": Sketch(0.5, bits=2),
    "sketched-1-bit": Sketch(1.0),
}


@pytest.mark.parametrize("compressor", UNBIASED.values(), ids=UNBIASED)
def test_the_mean_of_many_unbiased_updates_is_the_compressed_vector(compressor):
    """Check five standard errors at 43 positions, over 4,000 draws with a fixed seed.

    With random seeds, one run in 40,000 would fail.
    """
    draws = 4_000
    generator = rng(11)
    x = generator.standard_normal(LAYOUT.size).astype(np.float32)
    many = np.stack([compressor.compress(x, LAYOUT, generator).to_dense() for _ in range(draws)])
    error = many.mean(0, dtype=np.float64) - x
    spread = many.std(0, dtype=np.float64) / np.sqrt(draws)
    assert np.all(np.abs(error) <= 5 * spread + 1e-5)
    assert many.std(0).max() > 0.1  # the updates are random
    assert compressor.loss == "unbiased"


@pytest.mark.parametrize(("bits", "error"), [(1, 0.571), (2, 0.133), (3, 0.0358), (4, 0.0096)])
def test_rotated_centroids_have_the_error_and_the_small_bias_of_the_publication(bits, error):
    """The error of n independent estimates of the same vector is that of one, divided by n.

    With the unbiased scale, the expected squared error of one is 1 / (1 - d) - 1, where d is the
    distortion of the best quantiser of a normal variable; pi / 2 - 1 with one bit.
    """
    generator = rng(12)
    x = (generator.standard_normal(4096) * np.exp(generator.standard_normal(4096))).astype("f4")
    norm = np.square(x, dtype=np.float64).sum()
    layout = Layout.flat(x.size)
    many = [RotatedCentroids(bits).compress(x, layout, generator).to_dense() for _ in range(40)]
    errors = [np.square(each - x, dtype=np.float64).sum() / norm for each in many]
    assert np.mean(errors) == pytest.approx(error, rel=0.05)
    of_mean = np.square(np.mean(many, axis=0, dtype=np.float64) - x).sum() / norm
    assert of_mean == pytest.approx(error / 40, rel=0.15)


def test_updates_of_rotated_centroids_keep_the_inner_product_with_the_vector():
    x = random_vector(rng(13), 700)
    update = RotatedCentroids(2).compress(x, Layout.flat(700), rng(1))
    inner = update.to_dense().astype(np.float64) @ x
    assert inner == pytest.approx(np.square(x, dtype=np.float64).sum(), rel=1e-5)


@pytest.mark.parametrize("x", [np.zeros(5), np.full(300, 1e-42), np.eye(1, 256)[0] * 2.0**99])
def test_rotated_centroids_of_extreme_vectors_are_finite(x):
    update = RotatedCentroids().compress(x.astype(np.float32), Layout.flat(x.size), rng())
    assert np.isfinite(update.to_dense()).all()
    assert update.to_dense().any() == x.any()
    assert update.scales.max() <= 2.0**100


def test_updates_with_clipping_are_unbiased_for_the_clipped_vector():
    generator = rng(3)
    x = generator.standard_normal(500).astype(np.float32)
    x[7] = 40.0
    compressor = StochasticTernary(clip=2.5)
    layout = Layout.flat(500)
    many = [compressor.compress(x, layout, generator).to_dense() for _ in range(3_000)]
    limit = 2.5 * x.std()
    clipped = np.clip(x, -limit, limit)
    spread = np.std(many, axis=0) / np.sqrt(len(many))
    assert np.all(np.abs(np.mean(many, axis=0) - clipped) <= 5 * spread + 1e-4)
    assert np.abs(many[0]).max() == pytest.approx(limit, rel=1e-5)


def test_a_tensor_of_one_value_is_not_clipped():
    layout = Layout(("w", "b"), ((4,), (1,)))
    update = StochasticTernary(2.5).compress(np.float32([1, 2, 3, 4, 7]), layout, rng())
    assert update.to_dense()[4] == 7


@given(st.lists(st.just(0.0) | st.floats(1e-3, 100), min_size=1, max_size=12), st.integers(1, 14))
def test_atoms_are_kept_with_the_probabilities_of_least_variance(sizes, budget):
    ordered = np.sort(np.array(sizes))[::-1]
    probabilities = atom_probabilities(ordered, budget)
    assert np.all((probabilities >= 0) & (probabilities <= 1))
    assert np.all(probabilities[ordered > 0] > 0)
    assert probabilities.sum() <= budget + 1e-9
    nonzeros = np.count_nonzero(ordered)
    assert probabilities.sum() == pytest.approx(min(budget, nonzeros), abs=1e-6)
    # Atoms that are not always kept have probabilities in proportion to their size.
    uncertain = (probabilities < 1 - 1e-12) & (ordered > 0)
    ratios = probabilities[uncertain] / ordered[uncertain]
    assert np.allclose(ratios, ratios[:1])


def energy_share(x: np.ndarray, c: np.ndarray) -> float:
    """||C(x)||^2 / ||x||^2, which values at their mean remove at least."""
    return float((c.astype(np.float64) ** 2).sum() / (x**2).sum())


CONTRACTIONS = {
    # A compressor and its d: at most (1 - d) of the squared norm is left.
    "topk": (lambda: TopK(0.1), lambda x, c: min(count_kept(x.size, 0.1), x.size) / x.size),
    "stc": (lambda: SparseTernary(0.1), energy_share),
    "sbc": (lambda: SparseBinary(0.1), energy_share),
    "ef_signsgd": (
        ScaledSign,
        lambda x, c: np.abs(x).sum() ** 2 / (x.size * (x**2).sum()),
    ),
    "strom": (lambda: Threshold(0.5), energy_share),
    "sparseloco": (lambda: SparsePalette(0.1, 64), energy_share),
    # Of each block of at most 64 coefficients, the largest one.
    "demo": (lambda: CosineTopK(1), lambda x, c: 1 / 64),
    # 1 - e / (1 - e) with e = 1/4; values far below the normal numbers are not sent at all.
    "grid": (lambda: NearestLevels(1.0), lambda x, c: 2 / 3 if np.abs(x).max() > 1e-30 else 0.0),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
@given(x=vectors)
def test_compressors_for_error_feedback_are_contractions(name, x):
    make, share = CONTRACTIONS[name]
    x64 = x.astype(np.float64)
    norm = (x64**2).sum()
    c = make().compress(x, Layout.flat(x.size), rng()).to_dense()
    if norm == 0:
        assert not c.any()
        return
    d = share(x64, c)
    assert 0 <= d <= 1 + 1e-6
    # A mean is rounded to float32, with a relative error of 2**-24, which counts twice here.
    assert ((x64 - c) ** 2).sum() <= (1 - d) * norm * (1 + 1e-5) + 2e-7 * norm


def test_palettes_keep_the_largest_values_of_each_chunk_at_the_mean_of_their_group():
    x = random_vector(rng(6), LAYOUT.size, zeros=0)
    found = SparsePalette(0.25, 8).compress(x, LAYOUT, rng())
    start = 0
    for end in LAYOUT.ends.tolist():
        expected = []
        for first in range(start, end, 8):
            part = np.abs(x[first : min(first + 8, end)])
            k = max(part.size // 4, 1)
            expected += sorted((first + np.argsort(-part, kind="stable")[:k]).tolist())
        inside = (found.indices >= start) & (found.indices < end)
        assert found.indices[inside].tolist() == expected
        values = x[expected].astype(np.float64)
        split = np.float32(np.abs(values).mean())
        groups = {(v > 0, abs(v) > split) for v in values}
        means = {g: np.mean([v for v in values if (v > 0, abs(v) > split) == g]) for g in groups}
        rounded = [means[v > 0, abs(v) > split] for v in values]
        assert found.values[inside] == pytest.approx(rounded, rel=1e-6)
        start = end


def slow_cosines(block: np.ndarray) -> np.ndarray:
    """Return the orthonormal cosine transform of a matrix by its definition."""
    out = np.zeros(block.shape)
    high, wide = block.shape
    for u in range(high):
        for v in range(wide):
            rows = np.cos(np.pi * (2 * np.arange(high) + 1) * u / (2 * high))
            columns = np.cos(np.pi * (2 * np.arange(wide) + 1) * v / (2 * wide))
            scale = np.sqrt((1 if u == 0 else 2) / high * (1 if v == 0 else 2) / wide)
            out[u, v] = scale * rows @ block @ columns
    return out


def test_coefficients_are_the_largest_ones_of_the_cosine_transform_of_each_block():
    layout = Layout(("w", "b"), ((6, 130), (7,)))
    x = rng(8).standard_normal(layout.size).astype(np.float32)
    update = CosineTopK(3).compress(x, layout, rng())
    found = np.zeros(layout.size)
    found[update.indices] = update.coefficients
    matrix = x[:780].reshape(6, 130)
    blocks = [
        (matrix[:, a : a + 26], found[:780].reshape(6, 130)[:, a : a + 26])
        for a in range(0, 130, 26)
    ]
    blocks += [(x[780:][None], found[780:][None])]
    for block, kept in blocks:
        exact = slow_cosines(block.astype(np.float64)).reshape(-1)
        largest = np.argsort(-np.abs(exact))[:3]
        assert sorted(np.flatnonzero(kept.reshape(-1))) == sorted(largest)
        assert kept.reshape(-1)[largest] == pytest.approx(exact[largest], rel=1e-5)


def test_all_coefficients_give_the_vector_back():
    layout = Layout(("a", "b", "c", "d"), ((5, 128), (0, 3), (127,), ()))
    x = rng(9).standard_normal(layout.size).astype(np.float32)
    update = CosineTopK(4096).compress(x, layout, rng())
    assert update.to_dense() == pytest.approx(x, abs=2e-6)


def test_binary_updates_have_one_sign_in_each_tensor():
    x = random_vector(rng(4), LAYOUT.size, zeros=0)
    update = SparseBinary(0.2, "tensor").compress(x, LAYOUT, rng())
    for part in LAYOUT.unflatten(update.to_dense()).values():
        assert np.unique(part[part != 0]).size == 1


def test_the_stronger_sign_is_decided_by_k_values():
    x = np.full(1000, -9.0, np.float32)
    x[5] = 10.0
    update = SparseBinary(0.1).compress(x, Layout.flat(1000), rng())
    assert update.indices.size == 100
    assert update.values.tolist() == [-9.0] * 100


def test_sketches_of_subnormal_values_are_accurate():
    """The inverse of such a value does not fit in float32."""
    tiny = np.float32([1, -1, 2, 0]) * np.float32(1e-42)
    update = Sketch(p=1.0, bits=4).compress(tiny, Layout.flat(4), rng())
    assert np.allclose(update.to_dense() / 1e-42, tiny / 1e-42, atol=1)


def test_levels_of_subnormal_values_stay_within_the_steps():
    x = np.float32([1e-38, 0, -3e-39])
    update = StochasticLevels(7, 512).compress(x, Layout.flat(3), rng())
    assert np.abs(update.levels).max() <= 7
    assert EliasCodec().decode(EliasCodec().encode(update, Layout.flat(3)), Layout.flat(3))


@pytest.mark.parametrize("step", [0.01, 0.7, 1.0, 1.4])
def test_single_values_and_equal_magnitudes_are_sent_exactly_by_a_grid(step):
    layout = Layout(("w", "b", "c"), ((4,), (1,), (3,)))
    x = np.float32([1, 2, 3, 4, -0.3, 7, -7, 7])
    update = NearestLevels(step).compress(x, layout, rng())
    assert update.to_dense()[4:] == pytest.approx(x[4:], rel=1e-6)


def test_grids_of_tensors_with_very_different_values_stay_finite():
    layout = Layout(("huge", "spiky", "none"), ((1,), (10_000,), (0,)))
    x = np.zeros(10_001, np.float32)
    x[0] = 2.0**100
    x[7] = 1e-20
    update = NearestLevels(0.01).compress(x, layout, rng())
    assert np.isfinite(update.to_dense()).all()
    assert update.to_dense()[7] == pytest.approx(1e-20, rel=1e-3)
