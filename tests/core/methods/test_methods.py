"""What each method's publication promises, by name, for every method that promises it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import LAYOUT, METHODS, pair, random_vector, same, trained, vectors
from fedtern import METHODS as BY_NAME
from fedtern import DecodeError, Layout, Method, NonFiniteError, register_method, sgd
from fedtern.core.analytic import bits
from fedtern.core.codecs import (
    EliasCodec,
    LowRankCodec,
    PowersCodec,
    SketchedCodec,
    TensorSignsCodec,
    TritsCodec,
)
from fedtern.core.compressors import (
    ScaledSign,
    Sketch,
    SparseBinary,
    SparseTernary,
    SpectralAtoms,
    StochasticLevels,
    StochasticTernary,
    Threshold,
    TopK,
    count_kept,
)
from fedtern.core.compressors.lowrank import atom_probabilities
from fedtern.core.feedback import (
    EMPTY,
    MomentumCorrection,
    PowerIteration,
    VarianceThreshold,
)
from fedtern.core.feedback.variance_threshold import powers_of_two
from fedtern.core.methods import Mean, MethodSpec
from fedtern.core.updates import Dense, LowRank, Sparse, Ternary, is_empty

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)

_CHANNELS = (3, 32, 64, 128, 128, 128, 128, 128, 128)
_PLANES = [(f"conv{i}", (b, a, 3, 3)) for i, (a, b) in enumerate(pairwise(_CHANNELS))]
_DENSE = [("fc0", (128, 128)), ("fc1", (128, 128)), ("fc2", (10, 128))]
_TENSORS = [
    t for name, shape in _PLANES + _DENSE for t in ((name, shape), (f"{name}.b", shape[:1]))
]
VGG = Layout(*zip(*_TENSORS, strict=True))
"""The layout of VGG11*, of 865,482 parameters."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_layout_is_that_of_vgg():
    assert VGG.size == 865_482


# Unbiasedness ------------------------------------------------------------------------------------

UNBIASED = {
    "terngrad": StochasticTernary(),
    "qsgd": StochasticLevels(4, 16),
    "qsgd-max": StochasticLevels(2, 16, "max"),
    "atomo": SpectralAtoms(1),
    "sketched": Sketch(0.5, bits=2),
    "sketched-1-bit": Sketch(1.0),
}


@pytest.mark.parametrize("compressor", UNBIASED.values(), ids=UNBIASED)
def test_the_mean_of_many_updates_is_what_was_compressed(compressor):
    """Within five standard errors at each of 43 places, over 4,000 draws with a fixed seed.

    By chance alone one run in 40,000 would fail.
    """
    draws, generator = 4_000, rng(11)
    x = generator.standard_normal(LAYOUT.size).astype(np.float32)
    many = np.stack([compressor.compress(x, LAYOUT, generator).to_dense() for _ in range(draws)])
    error = many.mean(0, dtype=np.float64) - x
    spread = many.std(0, dtype=np.float64) / np.sqrt(draws)
    assert np.all(np.abs(error) <= 5 * spread + 1e-5)
    assert many.std(0).max() > 0.1  # or nothing was random
    assert compressor.loss == "unbiased"


def test_clipping_is_unbiased_for_what_it_leaves():
    generator = rng(3)
    x = generator.standard_normal(500).astype(np.float32)
    x[7] = 40.0
    compressor, layout = StochasticTernary(clip=2.5), Layout.flat(500)
    many = [compressor.compress(x, layout, generator).to_dense() for _ in range(3_000)]
    most = 2.5 * x.std()
    clipped = np.clip(x, -most, most)
    spread = np.std(many, axis=0) / np.sqrt(len(many))
    assert np.all(np.abs(np.mean(many, axis=0) - clipped) <= 5 * spread + 1e-4)
    assert np.abs(many[0]).max() == pytest.approx(most, rel=1e-5)


@given(st.lists(st.just(0.0) | st.floats(1e-3, 100), min_size=1, max_size=12), st.integers(1, 14))
def test_atoms_are_kept_with_the_chances_of_least_variance(sizes, budget):
    ordered = np.sort(np.array(sizes))[::-1]
    chances = atom_probabilities(ordered, budget)
    assert np.all((chances >= 0) & (chances <= 1))
    assert np.all(chances[ordered > 0] > 0)
    assert chances.sum() <= budget + 1e-9
    nonzeros = np.count_nonzero(ordered)
    assert chances.sum() == pytest.approx(min(budget, nonzeros), abs=1e-6)
    below = (chances < 1 - 1e-12) & (ordered > 0)  # those that are not certain: in proportion
    ratios = chances[below] / ordered[below]
    assert np.allclose(ratios, ratios[:1])


# Contraction -------------------------------------------------------------------------------------


def power_step(x: np.ndarray, layout: Layout) -> np.ndarray:
    update, _ = PowerIteration(1).step(x.copy(), {}, layout, rng())
    return update.to_dense()


def gain(x: np.ndarray, c: np.ndarray) -> float:
    """||C(x)||^2 / ||x||^2: what a mean of the values it stands for takes away, at the least."""
    return float((c.astype(np.float64) ** 2).sum() / (x**2).sum())


CONTRACTIONS = {
    # What each leaves: at most (1 - d) of the squared norm, with this d.
    "topk": (lambda: TopK(0.1), lambda x, c: min(count_kept(x.size, 0.1), x.size) / x.size),
    "stc": (lambda: SparseTernary(0.1), gain),
    "sbc": (lambda: SparseBinary(0.1), gain),
    "ef_signsgd": (
        ScaledSign,
        lambda x, c: np.abs(x).sum() ** 2 / (x.size * (x**2).sum()),
    ),
    "strom": (lambda: Threshold(0.5), gain),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
@given(x=vectors)
def test_error_feedback_compressors_contract(name, x):
    make, share = CONTRACTIONS[name]
    x64 = x.astype(np.float64)
    norm = (x64**2).sum()
    c = make().compress(x, Layout.flat(x.size), rng()).to_dense()
    if norm == 0:
        assert not c.any()
        return
    d = share(x64, c)
    assert 0 <= d <= 1 + 1e-6
    # A mean is rounded to float32: by 2**-24 of it, which counts twice in what is left.
    assert ((x64 - c) ** 2).sum() <= (1 - d) * norm * (1 + 1e-5) + 2e-7 * norm


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=40)
def test_a_power_iteration_never_adds_to_what_is_left(seed, zeros):
    x = random_vector(rng(seed), LAYOUT.size, zeros)
    x64 = x.astype(np.float64)
    left = ((x64 - power_step(x, LAYOUT)) ** 2).sum()
    assert left <= (x64**2).sum() * (1 + 1e-5)


def test_power_iterations_converge_to_the_best_factors():
    """With its warm start, a few rounds of the same matrix give the singular vectors."""
    layout = Layout(("w",), ((40, 30),))
    matrix = rng(1).standard_normal((40, 30)) * 0.05
    matrix += np.outer(rng(2).standard_normal(40), rng(3).standard_normal(30))
    memory, state = PowerIteration(2), {}
    for _ in range(12):
        query = {name: v for name, v in state.items() if name == "query"}
        update, state = memory.step(matrix.reshape(-1).astype(np.float32), query, layout, rng())
    left, sizes, right = np.linalg.svd(matrix)
    best = (left[:, :2] * sizes[:2]) @ right[:2]
    found = np.linalg.norm(matrix - update.to_dense().reshape(40, 30))
    assert found <= np.linalg.norm(matrix - best) * 1.02


# Identity, determinism, sizes --------------------------------------------------------------------


def real_update(method: Method, layout: Layout, seed: int = 0):
    """What a method would send of something like a real change, after a few rounds."""
    state, generator = {}, rng(seed)
    for _ in range(3):
        delta = (0.1 * generator.standard_t(4, layout.size)).astype(np.float32)
        update, state = method.up.feedback.step(delta, state, layout, generator)
    return update


@every_method
def test_what_is_sent_of_a_real_model_is_read_back(method):
    update = real_update(method, VGG)
    data = method.up.codec.encode(update, VGG)
    again = method.up.codec.decode(data, VGG)
    assert again.to_dense().tobytes() == update.to_dense().tobytes() or np.array_equal(
        again.to_dense(), update.to_dense()
    )
    assert method.up.codec.encode(again, VGG) == data


@every_method
def test_the_same_seed_gives_the_same_update(method):
    one, two, other = (real_update(method, LAYOUT, seed) for seed in (5, 5, 6))
    encode = method.up.codec.encode
    assert encode(one, LAYOUT) == encode(two, LAYOUT) != encode(other, LAYOUT)


SIZES = {
    # At the publications' settings: how far the bytes may be from the formula's bits.
    "sgd": 0.02,
    "fedavg": 0.02,
    "signsgd": 0.02,
    "ef_signsgd": 0.02,
    "stc": 0.02,
    "sbc": 0.02,
    "topk": 0.02,
    "gradient_dropping": 0.02,
    "dgc": 0.02,
    "terngrad": 0.02,
    "powersgd": 0.02,
    "structured": 0.02,
    "sketched": 0.02,
}


@pytest.mark.parametrize("name", SIZES)
def test_an_upload_is_as_long_as_the_publications_formula_says(name):
    method = BY_NAME[name](**({"warmup": 0} if name == "dgc" else {}))
    data = method.up.codec.encode(real_update(method, VGG), VGG)
    assert abs(8 * len(data) / bits(method.up, VGG) - 1) <= SIZES[name]


def test_atomo_sends_its_rank_on_average():
    layout = Layout(("a", "b"), ((20, 30), (20,)))
    method, generator, sizes = BY_NAME["atomo"](rank=4), rng(1), []
    x = generator.standard_normal(layout.size).astype(np.float32)
    for _ in range(5_000):
        update = method.up.feedback.compressor.compress(x, layout, generator)
        sizes.append(len(method.up.codec.encode(update, layout)))
    assert abs(8 * np.mean(sizes) / bits(method.up, layout) - 1) <= 0.02


@pytest.mark.parametrize("name", ["strom", "variance", "qsgd"])
def test_an_upload_is_no_longer_than_the_publications_bound(name):
    method = BY_NAME[name]()
    update = real_update(method, VGG)
    sent = update.indices.size if isinstance(update, Sparse | Ternary) else None
    assert 8 * len(method.up.codec.encode(update, VGG)) <= bits(method.up, VGG, sent=sent)


def test_nothing_takes_more_bits_a_parameter_than_it_should():
    for name, most in (("terngrad", 1.6), ("signsgd", 1.001), ("ef_signsgd", 1.001), ("qsgd", 4)):
        method = BY_NAME[name]()
        data = method.up.codec.encode(real_update(method, VGG), VGG)
        assert 8 * len(data) / VGG.size <= most, name


# Each in its own way -----------------------------------------------------------------------------


def test_momentum_correction_is_momentum_sgd_where_everything_is_sent():
    """With p = 1 nothing waits; velocities start anew each time, as momentum masking has it."""
    memory, state = MomentumCorrection(p=1.0), {}
    for t in range(3):
        delta = rng(t).standard_normal(LAYOUT.size).astype(np.float32)
        update, state = memory.step(delta.copy(), state, LAYOUT, rng())
        assert np.array_equal(update.to_dense(), delta)
    assert not state["velocity"].any()


def test_momentum_correction_accumulates_velocities_until_they_are_sent():
    layout, memory, state = Layout.flat(2), MomentumCorrection(p=0.5, momentum=0.5), {}
    sent = []
    for _ in range(4):
        update, state = memory.step(np.float32([8, 3]), state, layout, rng())
        sent.append(update.to_dense().tolist())
    # The second weight's residual: 3, 3 + 4.5, 3 + 4.5 + 5.25 > 8.
    assert sent == [[8, 0], [8, 0], [0, 12.75], [20, 0]]


def test_a_long_delta_is_clipped_before_it_counts():
    memory = MomentumCorrection(p=1.0, clip=5.0)
    update, _ = memory.step(np.float32([30, 40]), {}, Layout.flat(2), rng())
    assert update.to_dense() == pytest.approx([3, 4])


def test_the_warm_up_sends_a_quarter_first():
    memory, state, counts = MomentumCorrection(0.01, warmup=1), {}, []
    for t in range(5):
        delta = rng(t).standard_normal(1000).astype(np.float32)
        update, state = memory.step(delta, state, Layout.flat(1000), rng())
        counts.append(update.indices.size)
    assert counts == [250, 62, 15, 10, 10]


def test_what_is_ambiguous_waits():
    memory, layout, state = VarianceThreshold(alpha=1.5), Layout.flat(2), {}
    sent = []
    for t in range(4):
        delta = np.float32([1, 1 if t % 2 else -1])  # steady, and back and forth
        moments = np.float32([0.9, 0.9])
        update, state = memory.step(delta, state, layout, rng(), moments)
        sent.append(update.to_dense().tolist())
    assert sent == [[0, 0], [2, 0], [0, 0], [2, 0]]


def test_without_moments_a_delta_counts_as_one_example():
    memory, layout, state = VarianceThreshold(alpha=1.5), Layout.flat(1), {}
    sent = []
    for _ in range(4):
        update, state = memory.step(np.float32([1]), state, layout, rng())
        sent.append(update.to_dense()[0])
    assert sent == [0, 2, 0, 2]  # 1 > 1.5 * 1 is not so; 2**2 > 1.5 * 2 is


@given(vectors)
def test_powers_of_two_are_within_a_third_or_the_largest(x):
    layout = Layout.flat(x.size)
    update = powers_of_two(x, np.flatnonzero(x), layout)
    exact = x[update.indices].astype(np.float64)
    ratio = update.values / exact
    assert np.all((ratio > 0.5) & (ratio <= 4 / 3 + 1e-6))
    assert np.all(np.frexp(np.abs(update.values))[0] == 0.5)


def test_strom_sends_tau_and_keeps_the_rest():
    method, state = BY_NAME["strom"](tau=1.0), {}
    for expected in ([1, 0, -1], [1, 1, -1], [1, 0, -1]):
        delta = np.float32([2.5, 0.6, -1.1])
        update, state = method.up.feedback.step(delta, state, Layout.flat(3), rng())
        assert update.to_dense().tolist() == expected


def test_binary_updates_have_one_sign_in_each_tensor():
    x = random_vector(rng(4), LAYOUT.size, zeros=0)
    update = SparseBinary(0.2, "tensor").compress(x, LAYOUT, rng())
    for part in LAYOUT.unflatten(update.to_dense()).values():
        assert np.unique(part[part != 0]).size == 1


def test_the_stronger_sign_is_that_of_k_values():
    x = np.full(1000, -9.0, np.float32)
    x[5] = 10.0
    update = SparseBinary(0.1).compress(x, Layout.flat(1000), rng())
    assert update.indices.size == 100
    assert update.values.tolist() == [-9.0] * 100


def test_a_tensor_of_one_value_is_not_clipped_away():
    layout = Layout(("w", "b"), ((4,), (1,)))
    update = StochasticTernary(2.5).compress(np.float32([1, 2, 3, 4, 7]), layout, rng())
    assert update.to_dense()[4] == 7


def test_equal_settings_have_equal_digests():
    assert BY_NAME["dgc"](warmup=np.int64(30)).digest == BY_NAME["dgc"]().digest


@pytest.mark.parametrize("name", ["structured", "structured-rank"])
def test_training_in_the_subspace_loses_nothing(name):
    """Steps within the subspace that a round's upload tells of arrive as they were."""
    server, (client, *_) = pair(METHODS[name])
    restrict = client.restriction()
    delta = np.zeros(LAYOUT.size, np.float32)
    for t in range(4):
        gradient = rng(t).standard_normal(LAYOUT.size).astype(np.float32)
        restrict(gradient)
        delta += gradient
    server.receive(0, client.send(client.weights + delta).data)
    before = server.weights.copy()
    server.finish_round()
    assert np.allclose(server.weights - before, delta, atol=1e-5)
    assert np.count_nonzero(delta) > 0


def test_other_methods_do_not_restrict_training():
    for name, method in METHODS.items():
        client = pair(method)[1][0]
        assert (client.restriction() is None) == (not name.startswith("structured"))


def test_one_group_of_examples_is_never_unambiguous_by_rounding():
    layout = Layout.flat(5000)
    memory, rng = BY_NAME["variance"]().up.feedback, np.random.default_rng(0)
    update, _ = memory.step(rng.standard_normal(5000).astype(np.float32), EMPTY, layout, rng)
    assert is_empty(update)


def test_low_rank_comes_back_after_a_delta_of_zeros():
    """As where a layer is frozen at first, and rows that stay zero come first in it."""
    layout, rng = Layout(("kernel",), ((40, 10),)), np.random.default_rng(0)
    memory, state = BY_NAME["powersgd"](rank=2).up.feedback, EMPTY
    norms = []
    for _ in range(3):
        delta = rng.standard_normal((40, 10)).astype(np.float32)
        delta[:5] = 0
        delta *= bool(norms)
        update, state = memory.step(delta.reshape(-1), state, layout, rng)
        norms.append(float(np.linalg.norm(update.to_dense())))
    assert norms[0] == 0
    assert min(norms[1:]) > 5


def test_sketches_of_values_whose_inverse_is_no_float32_have_no_surprises():
    tiny = np.float32([1, -1, 2, 0]) * np.float32(1e-42)
    update = Sketch(p=1.0, bits=4).compress(tiny, Layout.flat(4), np.random.default_rng(0))
    assert np.allclose(update.to_dense() / 1e-42, tiny / 1e-42, atol=1)


def test_moments_must_fit():
    _, (client, *_) = pair(METHODS["variance"])
    new = trained(client, 0)
    for bad in (
        np.ones(3),
        -np.ones(LAYOUT.size),
        np.full(LAYOUT.size, np.nan),
        np.full(LAYOUT.size, np.inf),
        np.full(LAYOUT.size, 1e39),
    ):
        with pytest.raises(ValueError, match="moments"):
            client.send(new, bad)
    assert client.send(new, np.zeros(LAYOUT.size)).data


@every_method
@pytest.mark.parametrize("bad", [np.nan, np.inf, 2e30])
def test_a_change_that_is_not_finite_is_refused_and_nothing_lost(method, bad):
    if np.isfinite(bad) and method.name == "dgc":
        pytest.skip("it clips what is large")
    _, (client, *_) = pair(method)
    before = client.snapshot().to_bytes()
    weights = client.weights.copy()
    weights[26] = bad
    with pytest.raises(NonFiniteError):
        client.send(weights)
    assert client.snapshot().to_bytes() == before


BAD = {
    "dgc:momentum": ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
    "dgc:clip": ({"clip": 0.0}, "clip must be positive or None, got 0.0"),
    "dgc:warmup": ({"warmup": -1}, "warmup must be from 0"),
    "strom:": ({"tau": 0.0}, "tau must be a positive float32"),
    "variance:alpha": ({"alpha": 0.0}, "alpha must be positive"),
    "variance:decay": ({"decay": 1.5}, r"decay must be in \(0, 1\]"),
    "terngrad:": ({"clip": -1.0}, "clip must be positive or None"),
    "qsgd:levels": ({"levels": 0}, "steps must be from 1"),
    "qsgd:norm": ({"norm": "l1"}, 'norm must be "l2" or "max"'),
    "atomo:": ({"rank": 0}, "rank must be from 1"),
    "powersgd:": ({"rank": 0}, "rank must be from 1"),
    "sketched:": ({"bits": 17}, "bits must be from 1 to 16"),
    "structured:": ({"p": 0.0}, r"p must be in \(0, 1\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_parameter_outside_of_its_range_is_refused(case):
    parameters, sentence = BAD[case]
    with pytest.raises(ValueError, match=sentence):
        BY_NAME[case.partition(":")[0]](**parameters)


# The catalogue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_every_row_names_its_publication_and_functions_that_exist(name):
    recipe = BY_NAME[name]
    method = recipe()
    assert method.name == name == recipe.name
    assert recipe.about.endswith(".")
    assert recipe.publication.bibtex.startswith("@")
    assert recipe.publication.bibtex.count("{") == recipe.publication.bibtex.count("}")
    for dotted in recipe.publication.equations.values():
        found = None
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                if ".training." in dotted:
                    pytest.importorskip("torch")
                module = importlib.import_module(".".join(parts[:cut]))
            except ModuleNotFoundError:
                continue
            found = reduce(getattr, parts[cut:], module)
            break
        assert callable(found), dotted
        assert inspect.getdoc(found)


def test_two_methods_never_share_a_digest():
    digests = [recipe().digest for recipe in BY_NAME.values()]
    assert len(set(digests)) == len(digests)


def test_a_digest_changes_with_every_part_of_a_method():
    base = BY_NAME["stc"]()
    others = [
        replace(base, local_steps=2),
        replace(base, momentum="mask"),
        replace(base, up=sgd().up),
        replace(base, down=sgd().down),
        replace(base, aggregate=Mean(weighted=True)),
        replace(base, name="other"),
        replace(base, version=2),
        BY_NAME["stc"](p_up=1 / 399),
    ]
    digests = {method.digest for method in [base, *others]}
    assert len(digests) == 1 + len(others)


def test_parameters_of_equal_value_give_equal_methods():
    stc = BY_NAME["stc"]
    assert stc(p_up=1, local_steps=np.int64(3)) == stc(p_up=1.0, local_steps=3)
    assert BY_NAME["topk"](p_down=1).digest == BY_NAME["topk"](p_down=1.0).digest
    assert stc(np.float32(0.5)).digest == stc(0.5).digest


def test_a_part_without_a_stable_id_is_named():
    @dataclass(frozen=True)
    class Anonymous:
        def combine(self, updates, examples):
            return sgd().aggregate.combine(updates, examples)

    with pytest.raises(ValueError, match=r"Anonymous\(\) cannot be part of a method: .* part_id"):
        _ = replace(sgd(), aggregate=Anonymous()).digest


_RENAME_EVERY_CLASS = """
import gc
import sys

import fedtern
from fedtern.core.methods import METHODS

if sys.argv[1] == "rename":
    for number, found in enumerate([o for o in gc.get_objects() if isinstance(o, type)]):
        if found.__module__.startswith("fedtern."):
            found.__name__ = found.__qualname__ = f"Renamed{number}"
            found.__module__ = f"elsewhere{number}"
    for number, recipe in enumerate(METHODS.values()):
        recipe.__wrapped__.__name__ = f"renamed_{number}"
    assert "Renamed" in repr(METHODS["stc"]())
for name, recipe in METHODS.items():
    print(name, recipe().digest.hex(), recipe().spec.to_text())
"""


def test_digests_and_specs_do_not_depend_on_python_names():
    def run(mode: str) -> str:
        command = [sys.executable, "-c", _RENAME_EVERY_CLASS, mode]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    plain = run("plain")
    assert plain == run("rename")
    assert plain.count("\n") == len(BY_NAME)


def test_a_method_cannot_be_registered_twice_by_accident():
    def like_sgd() -> Method:
        """Like uncompressed SGD."""
        return sgd()

    try:
        register_method("mine")(like_sgd)
        with pytest.raises(ValueError, match="Method 'mine' already exists"):
            register_method("mine")
        again = register_method("mine", version=2, replace=True)(like_sgd)
        assert BY_NAME["mine"] is again
        assert again().spec == MethodSpec("mine", 2)
        assert same(again().up, sgd().up)
    finally:
        BY_NAME.pop("mine", None)


# What a hostile or an empty model must not do ----------------------------------------------------


def test_factors_that_cancel_do_not_wipe_out_other_uploads():
    """Both outer products are huge; their sum is nothing, and that is what it adds."""
    layout = Layout(("w",), ((8, 8),))
    honest = Dense(np.ones(64, np.float32))
    left, right = np.ones((2, 8), np.float32), np.full((2, 8), 2.0**80, np.float32)
    right[1] *= -1
    evil = LowRank(((8, 8),), (2,), np.concatenate([left.reshape(-1), right.reshape(-1)]))
    assert LowRankCodec().decode(LowRankCodec().encode(evil, layout), layout).size == 64
    assert Mean().combine([honest, evil], [1, 1]).tolist() == [0.5] * 64


@pytest.mark.parametrize("layout", [Layout((), ()), Layout.flat(0), Layout.flat(1)])
@every_method
def test_models_of_next_to_nothing_work(method, layout):
    x = np.full(layout.size, 0.5, np.float32)
    update, _ = method.up.feedback.step(x, {}, layout, rng())
    data = method.up.codec.encode(update, layout)
    assert method.up.codec.decode(data, layout).to_dense().shape == (layout.size,)


def test_values_next_to_nothing_are_rounded_like_others():
    x = np.float32([1e-38, 0, -3e-39])
    update = StochasticLevels(7, 512).compress(x, Layout.flat(3), rng())
    assert np.abs(update.levels).max() <= 7
    assert EliasCodec().decode(EliasCodec().encode(update, Layout.flat(3)), Layout.flat(3))


REFUSED = {
    "a bucket larger than the model": (EliasCodec, "0b01016b67cd494501e503", 43),
    "a bucket in a model of nothing": (EliasCodec, "0b000101", 0),
    "a level of a scale of zero": (EliasCodec, "0b000100000000000b", 1),
    "more steps than there can be": (EliasCodec, "0b00ffffff0700cdcccc3d00", 1),
    "a negative scale": (TensorSignsCodec, "0c000080bf01", 1),
    "a trit out of range": (TritsCodec, "0a0000803fffffff07", 1),
    "a rank that does not pay": (LowRankCodec, "0d02" + 2 * "0000803f", 1),
    "a low above its high": (SketchedCodec, "10" + 16 * "0" + "01010000803f" + 10 * "0", 1),
    "an exponent of nobody": (PowersCodec, "110005", 1),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_payloads_that_break_a_rule_are_refused(reason):
    codec, data, size = REFUSED[reason]
    with pytest.raises(DecodeError):
        codec().decode(bytes.fromhex(data), Layout.flat(size))
