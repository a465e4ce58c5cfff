"""Carried tensors and arrays of any dtype with hostile values, restarts and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from checks import METHODS
from fedtern import (
    Client,
    DurableServer,
    Layout,
    LocalProtocolError,
    NonFiniteError,
    RemoteProtocolError,
    Server,
    Snapshot,
    Store,
    fedavg,
    signsgd,
    stc,
)
from fedtern.core.dtypes import to_float32
from fedtern.core.envelope import UPLOAD, seal
from fedtern.core.layout import Carried
from fedtern.core.methods import Mean
from fedtern.core.protocol import How
from fedtern.core.protocol.records import discard_record, upload_record

START = np.random.default_rng(0).standard_normal(40).astype(np.float32)
STC = stc(p_up=0.1, p_down=0.1)


def layout_of(*carried: Carried) -> Layout:
    return Layout(("w",), ((5, 8),), carried)


class Federation:
    """A server and clients with one carried tensor ``c``."""

    def __init__(
        self, dtype="float32", rule="average", method=STC, first=None, clients=3, **options
    ):
        first = np.zeros(4, Carried("c", (4,), dtype).storage) if first is None else first
        self.layout = layout_of(Carried("c", first.shape, dtype, rule))
        self.values = {"c": first}
        self.method = method
        self.options = options
        self.server = self.new_server()
        self.clients = [
            Client(i, method, self.layout, START, carried=self.values) for i in range(clients)
        ]

    def new_server(self) -> Server:
        return Server(START, self.method, self.layout, carried=self.values, **self.options)

    def upload(self, i: int, value, examples: float = 1) -> None:
        full = np.full(self.values["c"].shape, value, self.values["c"].dtype)
        sent = self.clients[i].send_delta(np.ones(40), carried={"c": full})
        self.server.receive(i, sent.data, examples)

    def finish(self, **options) -> bytes:
        data = self.server.finish_round(**options).data
        for client in self.clients:
            client.receive(data)
            assert client.carried["c"].tobytes() == self.server.carried["c"].tobytes()
        return data


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_largest_values_give_a_finite_mean_that_can_be_sent(dtype):
    largest = {"float16": 65504, "bfloat16": 0x5F80}.get(dtype, 2.0**64)  # 0x5F80 is 2**64
    federation = Federation(dtype, method=fedavg(local_steps=1, weighted=True), clients=7)
    for i in range(7):
        federation.upload(i, largest, examples=0.1 + i)
    federation.finish()
    mean = federation.server.carried["c"]
    assert mean.tobytes() == np.full(4, largest, mean.dtype).tobytes()


@pytest.mark.parametrize(("dtype", "value"), [("float32", 2.0**65), ("float64", 1e300)])
def test_values_beyond_2_to_the_64_are_refused_on_both_sides(dtype, value):
    federation = Federation(dtype)
    with pytest.raises(NonFiniteError, match=r"carried tensor 'c'.*beyond 2\*\*64.*carry=.local"):
        federation.upload(0, value)
    assert federation.clients[0].pending is None
    sent = federation.clients[0].send_delta(np.ones(40), carried={"c": np.full(4, 0.1, dtype)}).data
    body = sent[2:-4].replace(np.array(0.1, dtype).tobytes(), np.array(value, dtype).tobytes())
    with pytest.raises(RemoteProtocolError, match=r"client 0: .*'c' is not finite or is beyond"):
        federation.server.receive(0, seal(UPLOAD, body))
    assert not federation.server.uploaded
    with pytest.raises(NonFiniteError, match="carried tensor 'c'"):
        federation.server.finish_round(carried={"c": np.full(4, value, dtype)})
    assert federation.server.round == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_of_equal_values_is_that_value(dtype):
    federation = Federation(dtype, method=fedavg(local_steps=1, weighted=True))
    for i in range(3):
        federation.upload(i, 0.1, examples=[1, 5, 1.3][i])
    federation.finish()
    assert federation.server.carried["c"].tobytes() == np.full(4, 0.1, dtype).tobytes()
    # Nothing has changed since, so nothing is sent.
    for i in range(3):
        federation.upload(i, 0.1)
    federation.server.finish_round()
    newest = federation.server.newest_broadcast(1)
    without = Federation(dtype, first=np.full(4, 0.1, dtype), method=federation.method)
    for i in range(3):
        without.upload(i, 0.1)
    assert len(newest) == len(without.finish())


def test_signs_have_one_vote_each_in_carried_tensors_too():
    federation = Federation(method=signsgd(delta=0.01))
    for i, value in enumerate((0.0, 3.0, 6.0)):
        federation.upload(i, value, examples=10.0**i)
    federation.finish()
    assert federation.server.carried["c"].tolist() == [3.0] * 4
    assert federation.clients[0].weights.tobytes() == federation.server.weights.tobytes()


@pytest.mark.parametrize("way", ["snapshot", "bytes", "log"])
def test_the_latest_upload_is_known_after_a_restart(way):
    federation = Federation(rule="latest")
    for i in (2, 0, 1):
        federation.upload(i, i + 1)
    accepted = {u.client_id: u for u in federation.server.uploads()}
    records = [upload_record(accepted[i]) for i in (2, 0, 1)]
    # Client 2 uploads again, after its first upload was discarded.
    federation.server.discard(2)
    federation.server.receive(2, accepted[2].data)
    records += [discard_record(2), records[0]]
    restarted = federation.new_server()
    if way == "log":
        for record in records:
            restarted.replay(record)
    else:
        state = federation.server.snapshot()
        restarted.restore(Snapshot.from_bytes(state.to_bytes()) if way == "bytes" else state)
    assert restarted.finish_round().data == federation.server.finish_round().data
    assert restarted.carried["c"].tolist() == [3.0] * 4


@pytest.mark.parametrize(("rule", "expected"), [("average", 1.5), ("latest", 2.0)])
def test_only_counted_uploads_affect_carried_tensors(rule, expected):
    federation = Federation(rule=rule)
    for i in (0, 1, 2):
        federation.upload(i, i + 1)
    federation.finish(counted=[np.int64(0), 1])
    assert federation.server.carried["c"].tolist() == [expected] * 4


def test_clients_left_out_of_a_round_learn_it_even_when_the_round_is_no_longer_cached():
    federation = Federation(cache_bytes=0)
    absent = federation.clients.pop()
    for round_counted in ([0, 2], [0, 1]):
        sent = absent.send_delta(np.ones(40)) if absent.pending is None else None
        if sent is not None:
            federation.server.receive(2, sent.data)
        for i in (0, 1):
            federation.upload(i, 1.0)
        federation.finish(counted=round_counted)
        received = absent.receive(federation.server.catch_up(2, absent.round).data)
        assert received.how is How.MODEL
        assert received.counted is (2 in round_counted)
    assert absent.residual.max() > 0.9  # the second upload came back


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint64", "bool"])
def test_tensors_of_any_shape_are_carried(shape, dtype):
    storage = Carried("c", shape, dtype).storage
    federation = Federation(dtype, first=np.zeros(shape, storage))
    federation.upload(0, 1)
    federation.upload(1, 1)
    federation.finish()
    newcomer = Client(9, STC, federation.layout)
    newcomer.receive(federation.server.catch_up(9, -1).data)
    found = newcomer.carried["c"]
    assert (found.shape, found.dtype) == (shape, storage)
    assert found.tobytes() == np.ones(shape, storage).tobytes()


def test_strided_and_big_endian_values_are_carried():
    federation = Federation("float64", first=np.zeros((3, 2)))
    values = np.arange(6, dtype=">f8").reshape(2, 3).T
    sent = federation.clients[0].send_delta(np.ones(40), carried={"c": values})
    federation.server.receive(0, sent.data)
    federation.finish()
    np.testing.assert_array_equal(federation.server.carried["c"], values)


def test_a_client_does_not_keep_references_to_values():
    federation = Federation()
    values = {"c": np.ones(4, np.float32)}
    federation.server.finish_round(carried=values)
    values["c"][:] = 7
    federation.values["c"][:] = 7
    assert federation.server.carried["c"].tolist() == [1] * 4
    assert federation.clients[0].carried["c"].tolist() == [0] * 4


def test_float16_broadcasts_saturate_and_leave_unchanged_tensors_alone():
    federation = Federation(first=np.float32([0.1, 0.2, 0.3, 0.4]), carried_float16=True)
    federation.clients[0].send_delta(np.ones(40))
    federation.server.receive(0, federation.clients[0].pending)
    federation.finish()
    assert federation.server.carried["c"].tolist() == np.float32([0.1, 0.2, 0.3, 0.4]).tolist()
    federation.upload(1, -1e6)
    federation.finish()
    assert federation.server.carried["c"].tolist() == [-65504] * 4


@pytest.mark.parametrize("precision", ["exact", "float16", "int8"])
@pytest.mark.parametrize("name", ["stc", "signsgd", "fedavg"])
def test_a_restored_server_sends_the_same_messages(name, precision):
    federation = Federation(method=METHODS[name], clients=0, initial=precision)
    server = federation.server
    for t in range(4):
        client = Client(t, METHODS[name], federation.layout)
        client.receive(server.catch_up(t, -1).data)
        values = {"c": np.full(4, t / 3, np.float32)}
        server.receive(t, client.send(client.weights + START, carried=values).data, t + 0.5)
        if t < 3:
            delta = START[::-1] if t == 1 else None
            server.finish_round(delta=delta, counted=[] if t == 2 else None)
    restored = Server(START, METHODS[name], federation.layout, carried=federation.values)
    restored.restore(Snapshot.from_bytes(server.snapshot().to_bytes()))
    for since in (-1, 0, 1, 2, 3):
        assert restored.catch_up(5, since) == server.catch_up(5, since)
    assert restored.finish_round().data == server.finish_round().data
    assert restored.snapshot().to_bytes() == server.snapshot().to_bytes()
    assert restored.catch_up(5, -1) == server.catch_up(5, -1)


def test_the_encoded_initial_model_is_dropped_when_it_cannot_be_used():
    federation = Federation(initial="int8", cache_bytes=0, clients=0)
    server = federation.server
    assert server.catch_up(0, -1).how is How.START
    assert "initial" in server.snapshot().arrays
    server.finish_round(delta=START)
    assert server.catch_up(0, -1).how is How.MODEL
    assert "initial" not in server.snapshot().arrays


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("bad", [np.nan, -np.inf, 2.0**101])
def test_a_delta_that_cannot_be_sent_changes_nothing(name, bad):
    federation = Federation(method=METHODS[name])
    federation.server.finish_round(delta=START)
    before = federation.server.snapshot().to_bytes()
    delta = START.astype(np.float64)
    delta[7] = bad
    with pytest.raises(NonFiniteError, match=r"w\[0, 7\]"):
        federation.server.finish_round(delta=delta)
    assert federation.server.snapshot().to_bytes() == before
    federation.server.finish_round(delta=START)


HALF = {"w": np.full(30, 60000, np.float16), "bn.running_mean": np.zeros(2, np.float32)}


def test_a_server_whose_weights_overflow_names_the_tensor_and_loses_nothing():
    server = Server.from_arrays(HALF, METHODS["sgd"])
    client = Client.from_arrays(0, HALF, METHODS["sgd"])
    for _ in range(2):
        server.receive(0, client.send_delta(np.full(30, 4000)).data)
        data = server.finish_round().data
        client.receive(data)
    for party in (server, client):
        with pytest.raises(NonFiniteError, match=r"'w' is too large for float16.*saturate"):
            _ = party.arrays
        assert party.weights.tolist() == [68000] * 30
    # The federation can go on, and the model can be had, after a restart with another option.
    again = Server.from_arrays(HALF, METHODS["sgd"], overflow="saturate")
    again.restore(server.snapshot())
    assert again.arrays["w"].tolist() == [65504] * 30
    trainer = Client.from_arrays(0, HALF, METHODS["sgd"], overflow="saturate")
    trainer.restore(client.snapshot())
    arrays = trainer.arrays
    arrays["w"] -= np.float16(4096)
    again.receive(0, trainer.send_arrays(arrays).data)
    again.finish_round()
    assert again.weights.tolist() == [68000 - 4096] * 30


@pytest.mark.parametrize(
    "change",
    [
        {"w": np.full(30, np.inf, np.float16)},
        {"w": np.full(30, np.nan, np.float16)},
        {"bn.running_mean": np.full(2, np.nan, np.float32)},
        {"w": np.zeros(30, np.float32)},
    ],
)
def test_arrays_that_cannot_be_sent_leave_the_client_unchanged(change):
    model = {**HALF, "local": np.array([3])}
    client = Client.from_arrays(0, model, STC, carry="average")
    client.send_arrays({**model, "w": model["w"] - 32})
    server = Server.from_arrays(model, STC)
    client.receive(server.finish_round().data)
    before = client.snapshot().to_bytes()
    with pytest.raises((NonFiniteError, ValueError), match=r"w|running_mean"):
        client.send_arrays({**client.arrays, "local": np.array([9]), **change})
    assert client.snapshot().to_bytes() == before
    client.send_arrays(client.arrays)


def test_a_second_upload_is_refused_before_anything_changes():
    client = Client.from_arrays(0, {**HALF, "n": np.array([3])}, STC, carry="local")
    client.send_arrays(client.arrays)
    before = client.snapshot().to_bytes()
    with pytest.raises(LocalProtocolError, match="already made its upload"):
        client.send_arrays({**client.arrays, "n": np.array([4])})
    assert client.snapshot().to_bytes() == before


def test_a_flat_snapshot_restores_a_client_with_local_arrays():
    client = Client.from_arrays(0, {**HALF, "n": np.array([3])}, STC, carry="local")
    flat = Client(0, STC, client.terms.layout, client.weights)
    client.restore(flat.snapshot())
    assert client.arrays["n"].tolist() == [3]


@pytest.mark.parametrize("make", [Server, lambda w, m, **o: Client(0, m, weights=w, **o)])
def test_weights_are_copied_unless_the_caller_gives_them_away(make):
    for copy, given in ((True, START.copy()), (False, START.copy()), (False, START.tolist())):
        party = make(given, STC, copy=copy)
        is_shared = (
            np.shares_memory(party.weights, given) if isinstance(given, np.ndarray) else False
        )
        assert is_shared == (not copy and isinstance(given, np.ndarray))
    frozen = START.copy()
    frozen.flags.writeable = False
    assert not np.shares_memory(make(frozen, STC, copy=False).weights, frozen)


def test_arrays_given_to_from_arrays_are_never_changed():
    model = {"w": START.copy(), "steps": np.array(1)}
    server = Server.from_arrays(model, METHODS["sgd"])
    client = Client.from_arrays(0, model, METHODS["sgd"])
    server.receive(0, client.send_arrays({"w": START + 1, "steps": np.array(2)}).data)
    client.receive(server.finish_round().data)
    assert model["w"].tobytes() == START.tobytes()
    assert model["steps"] == 1


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("name", ["stc", "signsgd", "fedavg"])
@pytest.mark.parametrize("kind", ["ml_dtypes", "bits"])
def test_bfloat16_replicas_stay_exact_and_weights_are_handed_back_in_bfloat16(name, kind):
    rng = np.random.default_rng(3)
    bits = bfloat16_bits(rng.standard_normal((6, 10)))
    options = {"bfloat16": "w"}
    if kind == "ml_dtypes":
        bits = bits.view(pytest.importorskip("ml_dtypes").bfloat16)
        options = {}
    model = {"w": bits, "steps": np.array(0)}
    method = METHODS[name]
    server = Server.from_arrays(model, method, **options)
    clients = [Client.from_arrays(i, model, method, **options) for i in range(4)]
    moved = False
    for t in range(40):
        for i in rng.choice(3, 2, replace=False).tolist():
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            arrays = clients[i].arrays
            assert arrays["w"].dtype == bits.dtype
            new = to_float32(arrays["w"], "bfloat16") + rng.standard_normal((6, 10)) / 10
            arrays["w"] = bfloat16_bits(new).view(bits.dtype)
            arrays["steps"] += 1
            server.receive(i, clients[i].send_arrays(arrays).data)
        server.finish_round()
        moved |= server.arrays["w"].tobytes() != bits.tobytes()
        for client in clients[:3] if t < 39 else clients:  # the last one was away all the time
            client.receive(server.catch_up(client.client_id, client.round).data)
            assert client.weights.tobytes() == server.weights.tobytes()
            assert client.arrays["w"].tobytes() == server.arrays["w"].tobytes()
    assert moved
    assert server.arrays["w"].dtype == bits.dtype
    assert server.arrays["w"].shape == (6, 10)
    assert server.arrays["steps"] == 40


@pytest.mark.parametrize("rule", ["average", "latest"])
def test_another_aggregation_combines_weights_and_carried_tensors(rule):
    federation = Federation(method=fedavg(1, weighted=False), rule=rule)
    for client, examples in ((2, 3), (1, 1)):
        federation.clients[client].receive(federation.server.catch_up(client, 0).data)
        sent = federation.clients[client].send_delta(
            np.full(40, client), carried={"c": np.full(4, client, np.float32)}
        )
        federation.server.receive(client, sent.data, examples)
    federation.server.finish_round(aggregate=Mean(weighted=True))
    assert federation.server.weights == pytest.approx(START + 1.75, abs=1e-6)
    assert federation.server.carried["c"] == pytest.approx(1.75 if rule == "average" else 1)


def test_another_aggregation_survives_a_restart(tmp_path):
    method = stc(p_up=0.1, p_down=0.1, weighted=False)
    federation = Federation(method=method, rule="latest")
    with Store(tmp_path) as store:
        server = DurableServer(federation.server, store)
        for i, examples in ((2, 5), (0, 1)):
            delta = np.roll(START, i)
            carried = {"c": np.full(4, i, np.float32)}
            sent = federation.clients[i].send_delta(delta, carried=carried)
            server.receive(i, sent.data, examples)
        server.finish_round(aggregate=Mean(weighted=True), counted=iter([0, 2]))
    with Store(tmp_path) as store:
        reopened = DurableServer(federation.new_server(), store)
        assert reopened.recovered
        assert np.array_equal(reopened.residual, server.residual)
        assert np.array_equal(reopened.weights, server.weights)
        assert reopened.carried["c"].tolist() == server.carried["c"].tolist() == [0] * 4
    assert np.count_nonzero(server.residual)
