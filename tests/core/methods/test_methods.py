"""Properties that every method has, and sizes of uploads compared with publications."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from checks import LAYOUT, METHODS, pair, trained
from fedtern import METHODS as BY_NAME
from fedtern import Client, Layout, Method, NonFiniteError, Server, stc, stc_plus
from fedtern.core.analytic import analytic_bits
from fedtern.core.updates import Sparse, Ternary, count_entries

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)

_CHANNELS = (3, 32, 64, 128, 128, 128, 128, 128, 128)
_CONVOLUTIONS = [(f"conv{i}", (b, a, 3, 3)) for i, (a, b) in enumerate(pairwise(_CHANNELS))]
_DENSE = [("fc0", (128, 128)), ("fc1", (128, 128)), ("fc2", (10, 128))]
_TENSORS = [
    t for name, shape in _CONVOLUTIONS + _DENSE for t in ((name, shape), (f"{name}.b", shape[:1]))
]
VGG = Layout(*zip(*_TENSORS, strict=True))
"""The layout of VGG11* with 865,482 parameters."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_vgg_layout_has_the_size_of_the_paper():
    assert VGG.size == 865_482


def realistic_update(method: Method, layout: Layout, seed: int = 0):
    """The update of a method after three rounds of heavy-tailed random deltas."""
    state = {}
    generator = rng(seed)
    for _ in range(3):
        delta = (0.1 * generator.standard_t(4, layout.size)).astype(np.float32)
        update, state = method.up.feedback.step(delta, state, layout, generator)
        if not state:  # without a memory every round is like the first
            break
    return update


@every_method
def test_updates_of_a_real_layout_are_decoded_exactly(method):
    update = realistic_update(method, VGG)
    data = method.up.codec.encode(update, VGG)
    decoded = method.up.codec.decode(data, VGG)
    assert decoded.to_dense().tobytes() == update.to_dense().tobytes() or np.array_equal(
        decoded.to_dense(), update.to_dense()
    )
    assert method.up.codec.encode(decoded, VGG) == data


@every_method
def test_the_same_seed_gives_the_same_update(method):
    first, second, other = (realistic_update(method, LAYOUT, seed) for seed in (5, 5, 6))
    encode = method.up.codec.encode
    assert encode(first, LAYOUT) == encode(second, LAYOUT) != encode(other, LAYOUT)


SIZES = {
    # Tolerated relative difference between the bytes and the formula, at default parameters.
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
    "eden": 0.02,
    "sparseloco": 0.02,
}


@pytest.mark.parametrize("name", SIZES)
def test_the_size_of_an_upload_matches_the_formula_of_the_publication(name):
    method = BY_NAME[name](**({"warmup": 0} if name == "dgc" else {}))
    data = method.up.codec.encode(realistic_update(method, VGG), VGG)
    assert abs(8 * len(data) / analytic_bits(method.up, VGG) - 1) <= SIZES[name]


def test_the_mean_size_of_an_atomo_upload_matches_its_rank():
    layout = Layout(("a", "b"), ((20, 30), (20,)))
    method = BY_NAME["atomo"](rank=4)
    generator = rng(1)
    sizes = []
    x = generator.standard_normal(layout.size).astype(np.float32)
    for _ in range(5_000):
        update = method.up.feedback.compressor.compress(x, layout, generator)
        sizes.append(len(method.up.codec.encode(update, layout)))
    assert abs(8 * np.mean(sizes) / analytic_bits(method.up, layout) - 1) <= 0.02


@pytest.mark.parametrize("name", ["strom", "variance", "qsgd", "demo"])
def test_the_size_of_an_upload_is_within_the_bound_of_the_publication(name):
    method = BY_NAME[name]()
    update = realistic_update(method, VGG)
    sent = update.indices.size if isinstance(update, Sparse | Ternary) else None
    assert 8 * len(method.up.codec.encode(update, VGG)) <= analytic_bits(method.up, VGG, sent=sent)


@pytest.mark.parametrize(
    ("name", "max_bits"),
    [("terngrad", 1.6), ("eden", 1.001), ("signsgd", 1.001), ("ef_signsgd", 1.001), ("qsgd", 4)],
)
def test_dense_methods_take_few_bits_per_parameter(name, max_bits):
    method = BY_NAME[name]()
    data = method.up.codec.encode(realistic_update(method, VGG), VGG)
    assert 8 * len(data) / VGG.size <= max_bits


@pytest.mark.parametrize("name", ["structured", "structured-rank"])
def test_training_in_the_subspace_loses_nothing(name):
    """The upload of a round contains all steps within the round's subspace."""
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


def test_only_structured_methods_restrict_training():
    for name, method in METHODS.items():
        client = pair(method)[1][0]
        assert (client.restriction() is None) == (not name.startswith("structured"))


def test_invalid_moments_are_refused():
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
def test_weights_that_are_not_finite_are_refused_without_side_effects(method, bad):
    if np.isfinite(bad) and method.name == "dgc":
        pytest.skip("dgc clips large deltas")
    _, (client, *_) = pair(method)
    before = client.snapshot().to_bytes()
    weights = client.weights.copy()
    weights[26] = bad
    with pytest.raises(NonFiniteError):
        client.send(weights)
    assert client.snapshot().to_bytes() == before


def sent_down(method: Method, size: int) -> int:
    """Return the number of values in a broadcast of a model with one tensor."""
    server = Server(np.zeros(size), method)
    client = Client(0, method, weights=np.zeros(size))
    delta = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    server.receive(0, client.send_delta(delta).data)
    return count_entries(server.finish_round().update)


@pytest.mark.parametrize("magnitudes", ["mean", "powers"])
def test_automatic_broadcasts_follow_the_participation(magnitudes):
    options = {"p_up": 0.1, "p_down": "auto", "magnitudes": magnitudes}
    assert sent_down(stc(**options, participation=0.25), 12_000) == 300
    assert sent_down(stc(**options, participation=0.25), 4_000) == 100
    assert sent_down(stc(**options, participation=0.75), 4_000) == 400
    assert sent_down(stc(**options), 4_000) == 400


def test_automatic_broadcasts_have_at_least_four_values_of_a_model():
    assert sent_down(stc(p_up=0.1, p_down="auto", participation=0.005), 2000) == 4
    assert sent_down(stc(p_up=1.0, p_down="auto", participation=0.01), 3) == 3
    by_tensor = stc(p_up=0.1, p_down="auto", participation=0.01, scope="tensor")
    assert sent_down(by_tensor, 2000) == 2


@pytest.mark.parametrize(
    ("size", "local_steps", "up", "down"),
    [
        (400_000, 1, 1_000, 100),
        (20_000, 1, 400, 60),
        (100, 1, 100, 60),
        (400_000, 4, 4_000, 400),
        (20_000, 2, 800, 120),
        (20_000, 4, 1_000, 150),
        (400_000, 25, 25_000, 2_500),
        (400_000, 400, 50_000, 5_000),
    ],
)
def test_stc_plus_sends_more_values_after_more_local_steps(size, local_steps, up, down):
    method = stc_plus(participation=0.1, local_steps=local_steps)
    client = Client(0, method, weights=np.zeros(size))
    delta = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    assert count_entries(client.send_delta(delta).update) == up
    assert sent_down(method, size) == down


def test_stc_plus_sends_as_many_values_down_as_up_if_most_clients_take_part():
    assert sent_down(stc_plus(participation=0.75), 20_000) == 400
    assert sent_down(stc_plus(), 20_000) == 400


def test_stc_plus_is_a_combination_of_options_of_stc():
    options = {"p_up": 0.1, "p_down": "auto", "participation": 0.1}
    same = stc(**options, codec="adaptive", magnitudes="powers")
    plus = stc_plus(**options)
    assert (plus.up, plus.down, plus.local_steps) == (same.up, same.down, same.local_steps)
    assert plus.digest != same.digest


BAD = {
    "stc:p_down": ({"p_down": "most"}, "p_down must be of type float or 'auto', got 'most'"),
    "stc:participation": ({"participation": 1.5}, r"participation must be in \(0, 1\], got 1.5"),
    "dgc:momentum": ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
    "dgc:clip": ({"clip": 0.0}, "clip must be positive or None, got 0.0"),
    "dgc:warmup": ({"warmup": -1}, "warmup must be from 0"),
    "strom:": ({"tau": 0.0}, "tau must be a positive float32"),
    "variance:alpha": ({"alpha": 0.0}, "alpha must be positive"),
    "variance:decay": ({"decay": 1.5}, r"decay must be in \(0, 1\]"),
    "terngrad:": ({"clip": -1.0}, "clip must be positive or None"),
    "qsgd:levels": ({"levels": 0}, "steps must be from 1"),
    "qsgd:norm": ({"norm": "l1"}, "norm must be 'l2' or 'max', got 'l1'"),
    "grid:": ({"step_up": 0.0}, "step must be from 0.01 to 1.4, got 0.0"),
    "atomo:": ({"rank": 0}, "rank must be from 1"),
    "powersgd:": ({"rank": 0}, "rank must be from 1"),
    "sparseloco:decay": ({"decay": 1.5}, "decay must be from 0 to 1, got 1.5"),
    "sparseloco:chunk": ({"chunk": 0}, "chunk must be from 1"),
    "demo:k": ({"k": 0}, "k must be from 1 to 4096, got 0"),
    "demo:delta": ({"delta": 0.0}, "step must be a positive"),
    "eden:": ({"bits": 5}, "bits must be from 1 to 4, got 5"),
    "sketched:": ({"bits": 17}, "bits must be from 1 to 16"),
    "structured:": ({"p": 0.0}, r"p must be in \(0, 1\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_parameters_out_of_range_are_refused(case):
    parameters, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        BY_NAME[case.partition(":")[0]](**parameters)


@pytest.mark.parametrize("layout", [Layout((), ()), Layout.flat(0), Layout.flat(1)])
@every_method
def test_models_with_at_most_one_parameter_work(method, layout):
    x = np.full(layout.size, 0.5, np.float32)
    update, _ = method.up.feedback.step(x, {}, layout, rng())
    data = method.up.codec.encode(update, layout)
    assert method.up.codec.decode(data, layout).to_dense().shape == (layout.size,)
