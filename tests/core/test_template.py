"""Templates: named arrays of any dtype as a flat vector and carried tensors, and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedtern import NonFiniteError
from fedtern.core.dtypes import from_float32, to_float32
from fedtern.core.template import Template

RNG = np.random.default_rng(0)
MODEL = {
    "embedding": RNG.standard_normal((4, 3)).astype(np.float16),
    "bn.running_mean": RNG.standard_normal(3).astype(np.float32),
    "dense": RNG.standard_normal((3, 2)),
    "bn.num_batches_tracked": np.array(7),
    "mask": np.array([True, False]),
    "bias": np.zeros(2, np.float32),
}


def test_floats_are_trained_and_statistics_and_integers_are_carried():
    layout = Template.of(MODEL).layout
    assert layout.names == ("embedding", "dense", "bias")
    assert [t.name for t in layout.carried] == ["bn.running_mean", "bn.num_batches_tracked", "mask"]


def test_join_undoes_split_up_to_float32():
    template = Template.of(MODEL)
    parts = template.split(MODEL)
    joined = template.join(parts.weights, parts.carried)
    assert list(joined) == list(MODEL)
    for name, array in joined.items():
        assert array.dtype == MODEL[name].dtype
        np.testing.assert_array_equal(array, MODEL[name].astype(np.float32).astype(array.dtype))


def test_local_tensors_are_in_no_layout():
    template = Template.of(MODEL, carry="local")
    parts = template.split(MODEL)
    assert not template.layout.carried
    assert parts.local["bn.num_batches_tracked"] == 7
    assert list(template.join(parts.weights, local=parts.local)) == list(MODEL)


def test_tensors_outside_of_trainable_are_fixed():
    template = Template.of(MODEL, trainable=("bias", "embed*"))
    assert template.layout.names == ("embedding", "bias")
    parts = template.split(MODEL)
    joined = template.join(parts.weights, parts.carried, fixed=template.fixed(MODEL))
    np.testing.assert_array_equal(joined["dense"], MODEL["dense"])


def test_tied_tensors_are_sent_once():
    tied = {"embedding": MODEL["dense"], "bias": np.zeros(2), "head": MODEL["dense"].copy()}
    template = Template.of(tied)
    assert template.layout.names == ("embedding", "bias")
    joined = template.join(template.split(tied).weights * 2)
    np.testing.assert_array_equal(joined["head"], joined["embedding"])
    with pytest.raises(ValueError, match=r"'head' had the same values as 'embedding'.*differ"):
        template.split({**tied, "head": MODEL["dense"] + 1})
    assert len(Template.of(tied, detect_ties=False).layout.names) == 3


def test_constant_tensors_are_never_tied():
    template = Template.of({"a": np.ones(5, np.float32), "b": np.ones(5, np.float32)})
    assert template.layout.names == ("a", "b")


@pytest.mark.parametrize("dtype", ["float16", "float64", "float32"])
def test_arrays_that_training_has_not_changed_give_a_delta_of_zero(dtype):
    template = Template.of({"w": np.zeros(50, dtype)})
    weights = RNG.standard_normal(50).astype(np.float32)  # not representable in float16
    assert not template.delta(template.join(weights), weights).any()


def test_small_changes_of_float64_survive():
    template = Template.of({"w": np.zeros(1, np.float64)})
    weights = np.ones(1, np.float32)
    delta = template.delta({"w": np.array([1 + 1e-12])}, weights)
    assert delta[0] == pytest.approx(1e-12, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": None}, r"'bias' \(float32, shape \(2,\)\) is missing"),
        ({"extra": np.zeros(3)}, r"'extra' \(float64, shape \(3,\)\) is not one of the 6"),
        ({"bias": np.zeros(3, np.float32)}, r"'bias' has shape \(3,\), expected \(2,\)"),
        ({"bias": np.zeros(2)}, "'bias' has dtype float64, expected float32"),
        ({"mask": np.zeros(2, np.int8)}, "'mask' has dtype int8, expected bool"),
    ],
)
def test_a_tensor_that_changes_is_named_with_both_values(change, message):
    template = Template.of(MODEL)
    arrays = {name: array for name, array in {**MODEL, **change}.items() if array is not None}
    with pytest.raises(ValueError, match=message):
        template.split(arrays)
    with pytest.raises(ValueError, match=message):
        template.delta(arrays, np.zeros(template.layout.size, np.float32))


def test_overflow_is_refused_by_name_or_saturated():
    half = {"w": np.zeros(2, np.float16)}
    weights = np.float32([7e4, -1])
    with pytest.raises(NonFiniteError, match=r"70000\.0 of tensor 'w' is too large for float16"):
        Template.of(half).join(weights)
    saturated = Template.of(half, overflow="saturate").join(weights)["w"]
    np.testing.assert_array_equal(saturated, np.float16([65504, -1]))


def test_models_without_trained_tensors_and_unknown_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"no floating-point tensor to train.*steps"):
        Template.of({"steps": np.array(3)})
    with pytest.raises(ValueError, match=r"'z' is complex128; supported are"):
        Template.of({"z": np.zeros(2, complex)})
    with pytest.raises(ValueError, match="carry must be"):
        Template.of(MODEL, carry="sometimes")


def test_a_template_survives_json():
    template = Template.of(MODEL, carry="latest", overflow="saturate")
    assert Template.from_json(json.loads(json.dumps(template.to_json()))) == template


def test_bfloat16_rounds_like_torch():
    values = np.concatenate(
        [RNG.standard_normal(10_000) * 10.0**power for power in (-30, -3, 0, 3, 30)]
    ).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16)
    bits = from_float32(values, "bfloat16", "refuse", "w")
    np.testing.assert_array_equal(bits, expected.view(torch.uint16).numpy())
    np.testing.assert_array_equal(to_float32(bits, "bfloat16"), expected.float().numpy())
    with pytest.raises(NonFiniteError, match="too large for bfloat16"):
        from_float32(np.float32([3.4028e38]), "bfloat16", "refuse", "w")
    saturated = from_float32(np.float32([-3.4028e38]), "bfloat16", "saturate", "w")
    assert np.isfinite(to_float32(saturated, "bfloat16")).all()
