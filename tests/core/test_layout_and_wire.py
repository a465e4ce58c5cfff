"""Layouts, and numbers on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import LAYOUT
from fedtern import DecodeError, Layout, Method, fedavg, stc
from fedtern.core.methods import METHODS
from fedtern.core.wire import Reader, ids, varint


def test_unflatten_undoes_flatten():
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(s) for n, s in zip(LAYOUT.names, LAYOUT.shapes, strict=True)}
    assert Layout.of(arrays) == LAYOUT
    vector = LAYOUT.flatten(arrays.values())
    for name, view in LAYOUT.unflatten(vector).items():
        assert np.array_equal(view, arrays[name].astype(np.float32))
        assert np.shares_memory(view, vector)


def test_parameters_are_named_by_tensor_and_index():
    assert [LAYOUT.name_at(i) for i in (0, 23, 24, 28)] == [
        "conv[0, 0, 0]",
        "conv[3, 2, 1]",
        "bias[0]",
        "fc[0, 0]",
    ]
    assert Layout(("scalar", "empty", "x"), ((), (0,), (2,))).name_at(1) == "x[0]"


def test_different_layouts_have_different_digests():
    layouts = [
        LAYOUT,
        Layout.flat(43),
        Layout.flat(44),
        Layout(("a",), ((43,),)),
        Layout(("conv", "bias", "fc"), ((4, 3, 2), (4,), (5, 3))),
    ]
    assert len({layout.digest for layout in layouts}) == len(layouts)


def test_different_methods_have_different_digests():
    methods = [make() for make in METHODS.values()]
    methods += [
        stc(p_up=0.1),
        stc(p_down=0.1),
        stc(scope="tensor"),
        fedavg(100),
        fedavg(weighted=True),
    ]
    assert len({method.digest for method in methods}) == len(methods)


def test_invalid_layouts_are_refused():
    with pytest.raises(ValueError, match="got 1 names for 2 shapes"):
        Layout(("a",), ((1,), (2,)))
    with pytest.raises(ValueError, match="tensor names must differ"):
        Layout(("a", "a"), ((1,), (2,)))
    with pytest.raises(ValueError, match="must not be negative"):
        Layout(("a",), ((-1,),))


def test_arrays_that_do_not_fit_the_layout_are_refused():
    with pytest.raises(ValueError, match="got 1 arrays for a layout of 3"):
        LAYOUT.flatten([np.zeros(3)])
    with pytest.raises(ValueError, match=r"tensor 'conv' has shape \(1,\), expected \(4, 3, 2\)"):
        LAYOUT.flatten([np.zeros(1)] * 3)
    with pytest.raises(ValueError, match="expected a vector of 43 values"):
        LAYOUT.unflatten(np.zeros(3, np.float32))


def test_methods_without_local_steps_are_refused():
    with pytest.raises(ValueError, match="local_steps must be at least 1, got 0"):
        stc(local_steps=0)


def test_every_method_is_registered_under_its_own_name():
    for name, make in METHODS.items():
        method = make()
        assert isinstance(method, Method)
        assert method.name == name


@given(st.integers(0, 2**64 - 1))
def test_numbers_are_read_back_and_longer_forms_are_refused(value):
    data = varint(value)
    assert Reader(data).varint() == value
    longer = data[:-1] + bytes([data[-1] | 0x80, 0])
    with pytest.raises(DecodeError):
        Reader(longer).varint()


@given(st.sets(st.integers(0, 2**64 - 1), max_size=20))
def test_sets_of_ids_are_read_back(values):
    assert Reader(ids(values)).ids() == tuple(sorted(values))


def test_numbers_longer_than_64_bits_are_refused():
    with pytest.raises(DecodeError, match="longer than 64 bits"):
        Reader(b"\xff" * 9 + b"\x7f").varint()
    with pytest.raises(DecodeError, match="longer than 64 bits"):
        Reader(b"\xff" * 11).varint()
    with pytest.raises(DecodeError, match="longer than 64 bits"):
        Reader(varint(2) + varint(2**64 - 1) * 2).ids()


def test_more_ids_than_bytes_are_refused():
    with pytest.raises(DecodeError, match="too short for 900 ids"):
        Reader(varint(900)).ids()


def test_layouts_of_lists_and_tuples_are_equal():
    assert Layout(["w"], [[2, 3]]) == Layout(("w",), ((2, 3),))  # type: ignore[arg-type]
