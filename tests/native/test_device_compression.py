"""What the C client uploads, compared with the Python client on the same deltas."""

from __future__ import annotations

import numpy as np
import pytest
from device_library import CODES, Device, DeviceError, load_library
from hypothesis import given
from hypothesis import strategies as st

from checks import random_vector, vectors
from fedtern import Client, Layout, MissedRounds, NonFiniteError, Server, fedavg, signsgd, stc
from fedtern.core.compressors import SparseTernary
from fedtern.core.errors import LocalProtocolError
from fedtern.core.protocol import Upload

rates = st.sampled_from([1e-6, 1 / 400, 0.01, 0.1, 0.29, 0.38, 0.39, 0.5, 0.9, 1.0])


def pair(library, method, size, **options):
    layout, start = Layout.flat(size), np.zeros(size, np.float32)
    device = Device(library, 0, method, layout, start, **options)
    return device, Client(0, method, layout, start)


def ulps(a, b):
    return abs(int(a.view(np.int32)[0]) - int(b.view(np.int32)[0]))


def check_upload(device, client, delta, *, most_ulps=1):
    sent, expected = device.send_delta(delta), client.send_delta(delta).data
    ours, theirs = (Upload.open(data, client.terms).update for data in (sent, expected))
    assert np.array_equal(ours.indices, theirs.indices)
    assert np.array_equal(ours.signs, theirs.signs)
    assert ulps(ours.mus, theirs.mus) <= most_ulps
    if sent == expected:
        assert np.array_equal(device.residual, client.residual)
    else:
        assert len(sent) == len(expected)
        assert np.allclose(device.residual, client.residual, rtol=1e-6, atol=0)


@given(delta=vectors, p=rates)
def test_ternary_uploads_equal_those_of_python(library, delta, p):
    device, client = pair(library, stc(p_up=p), delta.size)
    check_upload(device, client, delta)
    device.state.pending = 0
    twin = device.twin()
    check_upload(device, twin, -delta)  # with a residual


@pytest.mark.parametrize("size", [1000, 65_536, 300_007])
@pytest.mark.parametrize("p", [1 / 400, 0.1, 0.45])
def test_ternary_uploads_of_large_models_equal_those_of_python(library, size, p):
    rng = np.random.default_rng(size)
    for delta in (
        rng.standard_normal(size).astype(np.float32),
        random_vector(rng, size),
        rng.integers(-3, 4, size).astype(np.float32),  # ties everywhere
        (rng.standard_normal(size) * 1e-42).astype(np.float32),  # subnormal numbers
    ):
        device, client = pair(library, stc(p_up=p), size)
        check_upload(device, client, delta)


def test_zeros_give_an_empty_upload(library):
    device, client = pair(library, stc(p_up=0.5), 40)
    assert device.send_delta(np.zeros(40)) == client.send_delta(np.zeros(40)).data


@given(size=st.integers(1, 3000), p=rates | st.floats(1e-9, 1), seed=st.integers(0, 2**32))
def test_the_room_for_uploads_is_enough_whatever_is_zero(library, size, p, seed):
    """Positions as far to the end as possible, and any number of them, take the most bytes."""
    rng = np.random.default_rng(seed)
    device, _ = pair(library, stc(p_up=p), size)
    delta = np.zeros(size, np.float32)
    delta[size - int(rng.integers(1, size + 1)) :] = 1
    if rng.random() < 0.5:
        rng.shuffle(delta)
    device.send_delta(delta)  # the buffer has exactly the room that the library asked for
    compressed = SparseTernary(p).compress(delta, device.terms.layout, rng)
    assert np.array_equal(
        Upload.open(device.pending, device.terms).update.indices, compressed.indices
    )


def test_the_room_for_uploads_is_close_to_what_is_needed(library):
    device, _ = pair(library, stc(p_up=1 / 400), 100_000)
    delta = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    assert len(device.send_delta(delta)) > 0.9 * device.state.upload_room


@pytest.mark.parametrize("method", [stc(p_up=0.1), fedavg(), signsgd()], ids=lambda m: m.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**101])
def test_values_that_are_not_finite_are_refused_and_change_nothing(library, method, bad):
    device, _ = pair(library, method, 50)
    delta = np.linspace(-1, 1, 50, dtype=np.float32)
    delta[17] = bad
    before = device.everything()
    for send in (device.send_delta, device.send):
        with pytest.raises(NonFiniteError):
            send(delta)
        assert device.everything() == before


@pytest.mark.parametrize("method", [stc(p_up=0.02), fedavg()], ids=lambda m: m.name)
def test_updates_above_the_limit_of_uploads_are_refused_and_change_nothing(library, method):
    device, client = pair(library, method, 50)
    delta = np.zeros(50, np.float32)
    delta[3] = 2.0**64
    device.twin().send_delta(delta)
    delta[3] = np.nextafter(np.float32(2.0**64), np.float32(np.inf))
    with pytest.raises(NonFiniteError):
        client.send_delta(delta)
    before = device.everything()
    with pytest.raises(NonFiniteError):
        device.send_delta(delta)
    assert device.everything() == before
    delta[3] = 2.0**64
    assert device.send_delta(delta) == client.send_delta(delta).data


@pytest.mark.parametrize("method", [stc(p_up=0.1), fedavg(), signsgd()], ids=lambda m: m.name)
def test_an_upload_buffer_that_is_too_small_is_reported_and_nothing_changes(library, method):
    delta = np.linspace(-1, 1.1, 50, dtype=np.float32)
    needed = len(pair(library, method, 50)[0].send_delta(delta))
    device, _ = pair(library, method, 50, upload_room=needed - 1)
    before = device.everything()
    with pytest.raises(DeviceError) as raised:
        device.send_delta(delta)
    assert raised.value.code == CODES["NO_ROOM"]
    assert device.everything() == before
    pair(library, method, 50, upload_room=needed)[0].send_delta(delta)


def test_a_second_upload_in_a_round_is_refused(library):
    device, _ = pair(library, stc(p_up=0.1), 50)
    delta = np.linspace(-1, 1, 50, dtype=np.float32)
    device.send_delta(delta)
    before = device.everything()
    with pytest.raises(LocalProtocolError):
        device.send_delta(delta)
    assert device.everything() == before


def test_a_client_without_weights_cannot_send_and_asks_to_catch_up(library):
    method, layout = stc(p_up=0.1), Layout.flat(50)
    device = Device(library, 0, method, layout)
    server = Server(np.ones(50), method, layout)
    with pytest.raises(LocalProtocolError):
        device.send_delta(np.ones(50))
    with pytest.raises(MissedRounds):
        device.receive(server.finish_round().data)
    device.receive(server.catch_up(0, -1).data)
    assert device.round == 1
    assert device.weights.tobytes() == server.weights.tobytes()


def test_initial_weights_that_are_not_finite_are_refused(library):
    with pytest.raises(NonFiniteError):
        Device(library, 0, stc(), Layout.flat(3), np.float32([0, np.inf, 0]))


def test_zeros_of_signsgd_get_signs_at_random_that_differ_between_rounds(library):
    method, layout = signsgd(), Layout.flat(1000)
    device = Device(library, 3, method, layout, np.zeros(1000, np.float32))
    server = Server(np.zeros(1000), method, layout)
    ups = []
    for _ in range(2):
        update = Upload.open(device.send_delta(np.zeros(1000)), device.terms).update
        ups.append(update.positive)
        device.receive(server.finish_round().data)
    assert 400 < ups[0].sum() < 600
    assert 400 < (ups[0] != ups[1]).sum() < 600


@pytest.mark.parametrize("kept", ["STC", "DENSE", "SIGNSGD"])
def test_methods_can_be_left_out(tmp_path, kept):
    methods = {"STC": stc(p_up=0.1), "DENSE": fedavg(), "SIGNSGD": signsgd()}
    left_out = [name for name in methods if name != kept]
    library = load_library(tmp_path, *(f"-DFT_DEVICE_WITH_{name}=0" for name in left_out))
    delta = np.linspace(-1, 1.05, 50, dtype=np.float32)
    device, client = pair(library, methods[kept], 50)
    assert device.send_delta(delta) == client.send_delta(delta).data
    server = Server(np.zeros(50), methods[kept])
    server.receive(0, device.pending)
    assert device.receive(server.finish_round().data).counted
    assert device.weights.tobytes() == server.weights.tobytes()
    device, _ = pair(library, methods[kept], 50)
    device.receive(server.catch_up(0, 0).data)
    assert device.weights.tobytes() == server.weights.tobytes()
    for name in left_out:
        with pytest.raises(DeviceError) as raised:
            pair(library, methods[name], 50)
        assert raised.value.code == CODES["UNSUPPORTED"]


def test_every_code_has_a_description(library):
    texts = {library.ft_device_describe(code) for code in CODES.values()}
    assert len(texts) == len(CODES)
    assert library.ft_device_describe(1) == library.ft_device_describe(-15) == b"unknown code"
