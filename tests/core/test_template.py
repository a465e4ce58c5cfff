"""Templates: named arrays of any dtype as a flat vector and carried tensors, and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedtern import NonFiniteError
from fedtern.core.dtypes import from_float32, to_float32
from fedtern.core.template import Template

torch = pytest.importorskip("torch")

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
    tied = {"embedding": MODEL["dense"], "bias": np.zeros(2), "head": MODEL["dense"]}
    template = Template.of(tied)
    assert template.layout.names == ("embedding", "bias")
    joined = template.join(template.split(tied).weights * 2)
    np.testing.assert_array_equal(joined["head"], joined["embedding"])
    assert not np.shares_memory(joined["head"], joined["embedding"])
    template.check({**tied, "head": MODEL["dense"].copy()})
    with pytest.raises(ValueError, match=r"'head' was the same as 'embedding'.*now they differ"):
        template.split({**tied, "head": MODEL["dense"] + 1})
    assert len(Template.of(tied, detect_ties=False).layout.names) == 3


def test_the_state_dict_of_a_torch_model_with_tied_weights_has_a_tie():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert Template.of(arrays).layout.names == ("0.weight",)


def test_layers_with_the_same_initial_values_are_independent():
    layer = torch.nn.TransformerEncoderLayer(4, 1, 8)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    names = Template.of(arrays).layout.names
    assert len(names) == len(arrays)
    assert len(Template.of(arrays, detect_ties="values").layout.names) < len(names)


def test_views_of_the_same_memory_with_other_shapes_are_not_tied():
    square = np.eye(3, dtype=np.float32)
    arrays = {"a": square, "transposed": square.T, "flat": square.reshape(-1), "row": square[0]}
    assert len(Template.of(arrays).layout.names) == 4


def test_copies_of_tied_tensors_are_found_by_their_values():
    tied = {"embedding": MODEL["dense"], "head": MODEL["dense"].copy(), "a": np.ones(5)}
    template = Template.of({**tied, "b": np.ones(5)}, detect_ties="values")
    assert template.layout.names == ("embedding", "a", "b")  # constants are never tied
    with pytest.raises(ValueError, match='detect_ties must be True, False or "values"'):
        Template.of(tied, detect_ties="always")


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
    with pytest.raises(ValueError, match=r"no floating-point tensor to train.*none"):
        Template.of({})
    with pytest.raises(ValueError, match=r"'z' is complex128; supported are"):
        Template.of({"z": np.zeros(2, complex)})
    with pytest.raises(ValueError, match="carry must be"):
        Template.of(MODEL, carry="sometimes")


@pytest.mark.parametrize("trainable", [["lora_*"], ["bias", "lora_*"], "lora_*"])
def test_trainable_patterns_without_a_match_are_refused(trainable):
    with pytest.raises(ValueError, match=r"no tensor matches trainable='lora_\*'; .*embedding"):
        Template.of(MODEL, trainable=trainable)


def test_trainable_patterns_that_match_only_carried_tensors_are_refused():
    with pytest.raises(ValueError, match=r"no floating-point tensor to train that matches mask"):
        Template.of(MODEL, trainable="mask")


def test_a_single_pattern_may_be_a_string():
    assert Template.of(MODEL, trainable="b*").layout.names == ("bias",)
    carried = Template.of(MODEL, carried="dense").layout.carried
    assert [t.name for t in carried] == ["dense", "bn.num_batches_tracked", "mask"]


def test_scalars_lists_and_strided_arrays_are_arrays():
    model = {
        "scalar": np.float64(2.5),
        "zero_d": np.array(1.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "list": [1.0, 2.0],
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "reversed": np.arange(4, dtype=np.float16)[::-1],
        "big_endian": np.array([7, 8], ">f4"),
        "count": 3,
    }
    template = Template.of(model)
    parts = template.split(model)
    joined = template.join(parts.weights * 2, parts.carried)
    for name, array in joined.items():
        factor = 1 if name == "count" else 2
        np.testing.assert_array_equal(array, np.asarray(model[name]) * factor)
        assert array.shape == np.shape(model[name])
    assert template.delta(joined, parts.weights).tobytes() == parts.weights.tobytes()


def test_join_returns_copies():
    template = Template.of(MODEL, trainable="bias", carry="local")
    parts = template.split(MODEL)
    fixed = template.fixed(MODEL)
    joined = template.join(parts.weights, parts.carried, parts.local, fixed)
    for name, array in joined.items():
        array[...] = 1
        assert not np.shares_memory(array, MODEL[name])
    assert not parts.weights.any()
    np.testing.assert_array_equal(fixed["dense"], MODEL["dense"])


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


def test_a_fixed_tensor_that_is_tied_to_a_trained_one_is_refused():
    shared = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"'head' is trained, but 'embed', which is tied to it"):
        Template.of({"embed": shared, "head": shared}, trainable=["head"])


def test_a_pattern_of_bfloat16_bits_without_a_match_is_refused():
    bits = {"w": np.zeros(3, np.uint16), "v": np.ones(2, np.float32)}
    with pytest.raises(ValueError, match="no tensor matches bfloat16='typo"):
        Template.of(bits, bfloat16=["typo*"])


def test_nan_in_tied_tensors_does_not_count_as_a_difference():
    shared = np.ones(2, np.float32)
    template = Template.of({"a": shared, "b": shared})
    spoilt = np.float32([np.nan, 1])
    template.check({"a": spoilt, "b": spoilt.copy()})


def test_bfloat16_tensors_without_axes_are_handed_back_as_arrays():
    template = Template.of({"s": np.array(0x3F80, np.uint16)}, bfloat16=["s"])
    joined = template.join(np.float32([2.5]))
    assert isinstance(joined["s"], np.ndarray)
    assert joined["s"].shape == ()
