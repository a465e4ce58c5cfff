"""Carried tensors in messages, external aggregation, and the initial model in fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest

from checks import METHODS
from fedtern import (
    Client,
    DecodeError,
    DurableServer,
    Layout,
    LocalProtocolError,
    NonFiniteError,
    RemoteProtocolError,
    Server,
    Store,
    fedavg,
    stc,
)
from fedtern.core.envelope import seal, unseal
from fedtern.core.layout import Carried
from fedtern.core.protocol import How
from fedtern.core.protocol.initial import encode_initial, round_initial

STATISTICS = (Carried("mean", (100,), "float32"), Carried("steps", (), "int64"))
LAYOUT = Layout(("w",), ((50, 40),), STATISTICS)
RNG = np.random.default_rng(0)
START = RNG.standard_normal(LAYOUT.size).astype(np.float32)
ZEROS = {"mean": np.zeros(100, np.float32), "steps": np.array(0)}
STC = stc(p_up=0.01, p_down=0.01)


def federation(method=STC, layout=LAYOUT, clients=2, **options):
    values = {tensor.name: ZEROS[tensor.name] for tensor in layout.carried}
    server = Server(START, method, layout, carried=values, **options)
    return server, [Client(i, method, layout, START, carried=values) for i in range(clients)]


def statistics(mean: float, steps: int):
    return {"mean": np.full(100, mean, np.float32), "steps": np.array(steps)}


def _body(data: bytes) -> bytes:
    """Return a message without its envelope."""
    return data[2:-4]


def test_floats_are_averaged_and_counters_take_the_maximum():
    server, clients = federation()
    for client, mean, steps in zip(clients, (0.25, 0.5), (3, 9), strict=True):
        sent = client.send(client.weights + 1, carried=statistics(mean, steps))
        server.receive(client.client_id, sent.data)
    server.finish_round()
    np.testing.assert_array_equal(server.carried["mean"], np.full(100, 0.375, np.float32))
    assert server.carried["steps"] == 9


def test_averages_of_weighted_methods_are_weighted():
    server, clients = federation(fedavg(local_steps=1, weighted=True))
    for client, mean, examples in zip(clients, (0.0, 1.0), (0.5, 1.5), strict=True):
        sent = client.send(client.weights + mean, carried=statistics(mean, 1))
        server.receive(client.client_id, sent.data, num_examples=examples)
    server.finish_round()
    np.testing.assert_allclose(server.carried["mean"], 0.75)
    np.testing.assert_allclose(server.weights, START + 0.75, rtol=1e-6)


def test_the_latest_upload_wins_by_the_rule_latest():
    layout = Layout(("w",), ((50, 40),), (Carried("mean", (100,), "float32", "latest"),))
    server, clients = federation(layout=layout)
    for client in reversed(clients):
        mean = {"mean": np.full(100, client.client_id + 1, np.float32)}
        server.receive(client.client_id, client.send(client.weights + 1, carried=mean).data)
    server.finish_round()
    assert server.carried["mean"][0] == 1  # of client 0, whose upload came last


def test_unchanged_tensors_take_one_byte():
    sizes = []
    for carried in (None, ZEROS, statistics(0.1, 0), statistics(0.5, 0)):
        client = federation()[1][0]
        sizes.append(len(client.send(client.weights + START, carried=carried).data))
    # 0.1 needs float32; float16 holds 0.5 exactly.
    assert sizes[0] == sizes[1] == sizes[2] - 400 == sizes[3] - 200


def test_layouts_without_carried_tensors_have_no_section():
    plain = Layout(LAYOUT.names, LAYOUT.shapes)
    without = Client(0, STC, plain, START).send(2 * START).data
    assert len(without) + 2 == len(federation()[1][0].send(2 * START).data)


def test_float16_statistics_halve_the_broadcast_and_replicas_agree():
    sizes = []
    for narrow in (False, True):
        server, clients = federation(carried_float16=narrow)
        data = clients[0].send(2 * START, carried=statistics(0.1, 1)).data
        server.receive(0, data)
        broadcast = server.finish_round()
        sizes.append(len(broadcast.data))
        for client in clients:
            client.receive(broadcast.data)
            assert client.carried["mean"].tobytes() == server.carried["mean"].tobytes()
    assert sizes[0] - sizes[1] == 200


def test_a_catch_up_has_only_the_newest_statistics():
    server, (active, absent) = federation()
    for t in range(10):
        sent = active.send(active.weights + START, carried=statistics(t / 7, t))
        server.receive(0, sent.data)
        active.receive(server.finish_round().data)
    catch_up = server.catch_up(1, 0)
    assert catch_up.how is How.SUM
    assert len(catch_up.data) < 2 * 408 + 10 * 60  # ten broadcasts hold 4,080 bytes of statistics
    absent.receive(catch_up.data)
    assert absent.carried["steps"] == 9
    assert absent.weights.tobytes() == server.weights.tobytes()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"missing \['mean', 'steps'\]"),
        ({**ZEROS, "more": np.zeros(1)}, r"unknown \['more'\]"),
        ({**ZEROS, "mean": np.zeros(99, np.float32)}, r"shape \(99,\).*expected \(100,\)"),
        ({**ZEROS, "mean": np.zeros(100)}, "dtype float64, expected .* float32"),
    ],
)
def test_values_that_do_not_fit_are_named(values, message):
    client = federation()[1][0]
    with pytest.raises(ValueError, match=message):
        client.send(START, carried=values)
    assert client.pending is None


def test_statistics_that_are_not_finite_are_refused_on_both_sides():
    server, clients = federation()
    bad = {**ZEROS, "mean": np.full(100, np.nan, np.float32)}
    with pytest.raises(NonFiniteError, match="nan in carried tensor 'mean'"):
        clients[0].send(START, carried=bad)
    data = clients[0].send(START, carried=statistics(0.1, 0)).data
    body = _body(data).replace(np.float32(0.1).tobytes(), np.float32(np.inf).tobytes())
    kind, _ = unseal(data)
    with pytest.raises(RemoteProtocolError, match="inf in carried tensor 'mean' is not finite"):
        server.receive(0, seal(kind, body))


def test_a_delta_from_elsewhere_replaces_the_aggregation():
    server, clients = federation()
    for client in clients:
        server.receive(client.client_id, client.send(2 * START).data)
    assert [upload.client_id for upload in server.uploads()] == [0, 1]
    delta = np.zeros(LAYOUT.size, np.float32)
    delta[7] = 3
    broadcast = server.finish_round(delta=delta, carried=statistics(0.5, 4), counted=[1])
    assert server.weights[7] - START[7] + server.residual[7] == pytest.approx(3)
    assert broadcast.counted == {1}
    received = [client.receive(broadcast.data).counted for client in clients]
    assert received == [False, True]
    assert clients[0].carried["steps"] == 4


def test_only_accepted_uploads_can_be_counted():
    server, _ = federation()
    with pytest.raises(LocalProtocolError, match=r"clients \[3\] have no upload in round 0"):
        server.finish_round(counted=[3])


def test_a_delta_that_cannot_be_sent_leaves_the_round_open():
    server, clients = federation()
    server.receive(0, clients[0].send(2 * START).data)
    for delta in (np.full(LAYOUT.size, np.nan), np.zeros(3)):
        with pytest.raises(ValueError, match=r"nan|delta must be a flat vector of 2000"):
            server.finish_round(delta=delta)
    assert server.round == 0
    assert server.uploaded == {0}


def test_a_store_recovers_deltas_from_elsewhere_weights_and_statistics(tmp_path):
    rng = np.random.default_rng(1)

    def durable(store):
        return DurableServer(federation(initial="float16")[0], store)

    with Store(tmp_path / "server") as store:
        server = durable(store)
        for t in range(4):
            client = Client(0, STC, LAYOUT, START, carried=ZEROS, initial="float16")
            client.receive(server.catch_up(0, 0).data)
            new = client.weights + rng.standard_normal(LAYOUT.size)
            data = client.send(new, carried=statistics(t / 3, t)).data
            server.receive(0, data, num_examples=0.5)
            delta = rng.standard_normal(LAYOUT.size) if t % 2 else None
            server.finish_round(delta=delta)
        server.receive(0, _next_upload(server), num_examples=2.25)
        expected = server.server.snapshot()
    with Store(tmp_path / "server") as store:
        recovered = durable(store)
        assert recovered.server.snapshot().digest == expected.digest
        assert recovered.uploads()[0].num_examples == 2.25


def _next_upload(server) -> bytes:
    client = Client(0, STC, LAYOUT)
    client.receive(server.catch_up(0, -1).data)
    return client.send(client.weights + START).data


@pytest.mark.parametrize(("precision", "bytes_per_value"), [("float16", 2), ("int8", 1.1)])
def test_a_rounded_initial_model_shortens_the_first_download(precision, bytes_per_value):
    server, _ = federation(initial=precision)
    newcomer = Client(5, STC, LAYOUT)
    first = server.catch_up(5, -1)
    assert first.how is How.START
    assert len(first.data) < bytes_per_value * LAYOUT.size + LAYOUT.carried_nbytes + 40
    newcomer.receive(first.data)
    np.testing.assert_allclose(newcomer.weights, START, atol=0.03)
    active = Client(0, STC, LAYOUT, START, carried=ZEROS, initial=precision)
    assert active.stamp == newcomer.stamp == server.stamp
    for t in range(5):
        server.receive(0, active.send(active.weights + START, carried=statistics(0, t)).data)
        active.receive(server.finish_round().data)
    late = Client(6, STC, LAYOUT)
    second = server.catch_up(6, -1)
    assert second.how is How.START
    assert late.receive(second.data).round == 5
    assert late.weights.tobytes() == active.weights.tobytes() == server.weights.tobytes()
    assert late.carried["steps"] == 4
    server.receive(6, late.send(late.weights + START).data)


def test_dense_methods_send_the_whole_model_to_late_clients():
    server, _ = federation(METHODS["fedavg"], initial="int8")
    client = Client(0, METHODS["fedavg"], LAYOUT)
    client.receive(server.catch_up(0, -1).data)
    server.receive(0, client.send(2 * START).data)
    server.finish_round()
    assert server.catch_up(1, -1).how is How.MODEL


def test_rounding_keeps_zeros_and_the_largest_value_of_each_row():
    layout = Layout(("w", "zeros", "scalar"), ((3, 4), (5,), ()))
    weights = np.concatenate([RNG.standard_normal(12), np.zeros(5), [2.5]]).astype(np.float32)
    rounded = round_initial(weights, layout, "int8")
    assert not rounded[12:17].any()
    assert rounded[17] == pytest.approx(2.5)
    np.testing.assert_allclose(
        np.abs(rounded[:12]).reshape(3, 4).max(1),
        np.abs(weights[:12]).reshape(3, 4).max(1),
        rtol=1e-6,
    )
    assert round_initial(rounded, layout, "int8").tobytes() == rounded.tobytes()


def test_initial_weights_beyond_float16_are_refused_by_name():
    with pytest.raises(NonFiniteError, match="tensor 'w' is too large for float16"):
        Server(np.full(2000, 1e6), STC, LAYOUT, carried=ZEROS, initial="float16")
    with pytest.raises(ValueError, match='initial must be "exact", "float16" or "int8"'):
        encode_initial(START, LAYOUT, "int4")


def test_a_start_message_with_a_missing_sum_is_refused():
    server, clients = federation(initial="int8")
    active = Client(0, STC, LAYOUT, START, carried=ZEROS, initial="int8")
    data = server.catch_up(5, -1).data
    server.receive(0, active.send(active.weights + 1).data)
    server.finish_round()
    later = server.catch_up(5, -1).data
    kind, _ = unseal(data)
    cut = seal(kind, _body(later[: len(data)]))
    with pytest.raises(DecodeError, match="cannot lead to round 1"):
        Client(5, STC, LAYOUT).receive(cut)
    assert clients[1].round == 0


def test_from_arrays_exchanges_a_state_dict_of_any_dtype():
    model = {
        "w": RNG.standard_normal((20, 5)),
        "half": RNG.standard_normal(30).astype(np.float16),
        "bn.running_var": np.ones(4, np.float32),
        "steps": np.array(0),
    }
    server = Server.from_arrays(model, stc(p_up=0.1, p_down=0.1))
    clients = [Client.from_arrays(i, model, stc(p_up=0.1, p_down=0.1)) for i in range(2)]
    for client in clients:
        trained = {name: array + 1 for name, array in client.arrays.items()}
        trained = {n: a.astype(model[n].dtype) for n, a in trained.items()}
        server.receive(client.client_id, client.send_arrays(trained).data)
    data = server.finish_round().data
    for client in clients:
        client.receive(data)
        for name, array in client.arrays.items():
            assert array.dtype == model[name].dtype
            np.testing.assert_array_equal(array, server.arrays[name])
    assert server.arrays["steps"] == 1
    with pytest.raises(ValueError, match="'half' has shape"):
        clients[0].send_arrays({**clients[0].arrays, "half": np.zeros(3, np.float16)})
    with pytest.raises(LocalProtocolError, match="make it with from_arrays"):
        _ = Server(START, STC).arrays


def test_local_tensors_stay_on_their_client_and_survive_a_restart():
    model = {"w": START, "bn.running_mean": np.zeros(3, np.float32)}
    client = Client.from_arrays(0, model, STC, carry="local")
    trained = {"w": START + 1, "bn.running_mean": np.ones(3, np.float32)}
    client.send_arrays(trained)
    again = Client.from_arrays(0, model, STC, carry="local", is_initial=False)
    again.restore(client.snapshot())
    assert again.arrays["bn.running_mean"].tolist() == [1, 1, 1]
