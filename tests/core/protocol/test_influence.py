"""One upload moves the model by no more than a stated bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from checks import METHODS, pair, play_round
from fedtern import (
    Carried,
    Client,
    DurableServer,
    Layout,
    NormCap,
    RemoteProtocolError,
    Server,
    Store,
    UploadDenied,
    fedavg,
    sgd,
    signsgd,
    stc,
)
from fedtern.core.methods import METHODS as BY_NAME
from fedtern.core.methods import CoordinateMedian
from fedtern.core.protocol import Upload
from fedtern.core.protocol.influence import typical_value
from fedtern.core.updates import Dense, Signs, Ternary, norm

SIZE = 100


class Regression:
    """Clients of a linear model: each has its own examples of the same weights."""

    def __init__(self, clients: int = 10, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.truth = self.rng.standard_normal(SIZE).astype(np.float32)
        self.clients = clients

    def delta(self, weights):
        x = self.rng.standard_normal((20, SIZE)).astype(np.float32)
        return 0.1 * x.T @ (x @ (self.truth - weights)) / 20

    def error(self, weights) -> float:
        return float(np.linalg.norm(weights - self.truth) / np.linalg.norm(self.truth))

    def train(self, method, attack=None, rounds=60, examples=1, **options):
        """Return the error and the clients that were capped; client 0 attacks."""
        server = Server(np.zeros(SIZE), method, **options)
        clients = [Client(i, method, weights=np.zeros(SIZE)) for i in range(self.clients)]
        capped: set[int] = set()
        for _ in range(rounds):
            for i, client in enumerate(clients):
                sent = client.send_delta(self.delta(client.weights))
                data = sent.data
                if attack is not None and i == 0:
                    payload = method.up.codec.encode(attack(sent.update), server.terms.layout)
                    data = Upload.seal(client.stamp, server.round, payload, server.terms)
                server.receive(i, data, examples if i == 0 else 1)
            broadcast = server.finish_round()
            capped |= broadcast.capped.keys()
            for client in clients:
                client.receive(broadcast.data)
            if self.error(server.weights) > 100:
                break
        return self.error(server.weights), capped


def flipped(times: float):
    def attack(update):
        if isinstance(update, Ternary):
            return replace(update, signs=~update.signs, mus=np.float32(times) * update.mus)
        return Dense(np.float32(-times) * update.values)

    return attack


def one_coordinate(update):
    return Ternary(SIZE, np.array([5]), np.array([True]), np.float32([1000 * norm(update)]))


METHOD = stc(p_up=0.1, p_down=0.1)


@pytest.mark.parametrize(
    ("method", "attack", "examples"),
    [
        (METHOD, flipped(10), 1),
        (METHOD, flipped(1000), 1),
        (METHOD, one_coordinate, 1),
        (stc(p_up=0.1, p_down=0.1, weighted=True), flipped(1), 2**53 - 1),
        (sgd(), flipped(1000), 1),
        (fedavg(1, weighted=True), flipped(1), 2**53 - 1),
    ],
    ids=["flip x10", "flip x1000", "one coordinate", "weight", "dense", "dense weight"],
)
def test_one_of_ten_clients_ruins_the_model_without_a_cap_but_not_with_it(method, attack, examples):
    clean, capped = Regression().train(method)
    assert not capped, "honest uploads are not capped"
    attacked, _ = Regression().train(method, attack, examples=examples, cap=None)
    bounded, capped = Regression().train(method, attack, examples=examples)
    assert capped == {0}
    assert clean < 0.5
    assert attacked > 0.95, "the attack works"
    assert bounded < clean + 0.2


@pytest.mark.parametrize("method", [signsgd(0.01), BY_NAME["strom"](tau=0.02)])
def test_methods_with_one_magnitude_are_bounded_without_a_cap(method):
    """A louder update is refused, so the worst is an opposite update of the same length."""

    def opposite(update):
        if isinstance(update, Ternary):
            return replace(update, signs=~update.signs)
        return Signs.pack(~update.positive, update.step)

    clean, _ = Regression().train(method)
    attacked, capped = Regression().train(method, opposite)
    assert not capped
    assert attacked < clean + 0.2


@pytest.mark.parametrize("name", METHODS)
def test_a_cap_that_is_not_reached_does_not_change_a_byte(name):
    with_cap, clients = pair(METHODS[name], clients=6)
    without, others = pair(METHODS[name], clients=6)
    without.cap = None
    with_cap.cap = NormCap(100)
    for t in range(4):
        broadcast = play_round(with_cap, clients, list(range(6)), seed=t)
        assert broadcast.capped == {}
        assert broadcast.data == play_round(without, others, list(range(6)), seed=t).data


def upload(server: Server, delta, client: int = 0, **options) -> Client:
    sender = Client(client, server.terms.method, server.terms.layout)
    sender.receive(server.catch_up(client, -1).data)
    server.receive(client, sender.send_delta(delta, **options).data)
    return sender


def test_a_round_of_one_upload_is_bounded_by_earlier_rounds():
    server = Server(np.zeros(4), sgd(), cap=NormCap(2))
    for _ in range(3):
        upload(server, [1, 0, 0, 0])
        assert server.finish_round().capped == {}
    upload(server, [0, 2.0**63, 0, 0])
    assert server.typical_norm == 1
    broadcast = server.finish_round()
    assert broadcast.capped == {0: pytest.approx(2 / 2.0**63)}
    assert server.weights.tolist() == [3, 2, 0, 0]


def test_the_first_two_uploads_are_not_bounded():
    assert typical_value([5.0]) == typical_value([5.0], [1.0]) == 0
    assert typical_value([5.0], [1.0, 1.0]) == 1


def test_a_lasting_growth_is_followed_after_a_few_rounds():
    server = Server(np.zeros(4), sgd())
    for t in range(16):
        upload(server, [1 if t < 8 else 100, 0, 0, 0])
        capped = server.finish_round().capped
    assert capped == {}


def test_uploads_without_a_change_do_not_lower_the_cap():
    server = Server(np.zeros(4), sgd())
    for i in range(9):
        upload(server, [i % 3 == 0, 0, 0, 0], client=i)
    assert server.finish_round().capped == {}


def test_the_sum_of_large_updates_is_bounded_by_the_factor():
    server = Server(np.zeros(2), sgd(), cap=NormCap(3))
    for i in range(9):
        upload(server, [1, 0], client=i)
    upload(server, [0, -(2.0**64)], client=9)
    broadcast = server.finish_round()
    assert broadcast.capped == {9: pytest.approx(3 / 2.0**64)}
    assert server.weights == pytest.approx([0.9, -0.3])


@pytest.mark.parametrize("rule", ["average", "latest"])
def test_changes_of_carried_tensors_are_capped(rule):
    layout = Layout(("w",), ((2,),), carried=(Carried("mean", (2,), "float32", rule),))
    before = {"mean": np.float32([1, 1])}
    server = Server(np.zeros(2), sgd(), layout, carried=before, cap=NormCap(2))
    for i in range(9):
        upload(server, [1, 0], client=i, carried={"mean": np.float32([1, 2])})
    upload(server, [1, 0], client=9, carried={"mean": np.float32([1e19, 1])})
    assert server.finish_round().capped.keys() == {9}
    expected = [1.2, 1.9] if rule == "average" else [3, 1]
    assert server.carried["mean"] == pytest.approx(expected)


def test_the_norms_of_earlier_uploads_survive_a_snapshot():
    server = Server(np.zeros(4), sgd())
    for _ in range(4):
        upload(server, [1, 0, 0, 0])
        server.finish_round()
    restored = Server(np.zeros(4), sgd())
    restored.restore(server.snapshot())
    for side in (server, restored):
        upload(side, [0, 1000, 0, 0])
    broadcast = server.finish_round()
    assert broadcast.capped
    assert restored.finish_round().data == broadcast.data


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("cap", [NormCap(), NormCap(50), None], ids=["same", "other", "none"])
def test_capped_rounds_are_replayed_exactly_even_with_another_cap(tmp_path, cap, snapshot):
    method = stc(p_up=0.5, p_down=0.25)
    with Store(tmp_path) as store:
        server = DurableServer(Server(np.zeros(8), method), store)
        for t in range(6):
            upload(server, np.roll([1, 1, 1, 1, 0, 0, 0, 0], t) * (1e6 if t == 4 else 1))
            broadcast = server.finish_round()
            assert bool(broadcast.capped) == (t == 4)
            if snapshot and t == 3:
                store.checkpoint(server.server.snapshot())
        expected = server.server.snapshot()
    with Store(tmp_path) as store:
        again = DurableServer(Server(np.zeros(8), method, cap=cap), store)
        restored = again.server.snapshot()
        assert np.array_equal(again.weights, server.weights)
        assert np.array_equal(again.residual, server.residual)
        if cap is not None:
            assert restored.to_bytes() == expected.to_bytes()


def test_another_aggregation_of_the_server_survives_a_restart(tmp_path):
    with Store(tmp_path) as store:
        server = DurableServer(Server(np.zeros(4), sgd(), aggregate=CoordinateMedian()), store)
        for i, value in enumerate([1, 2, 30]):
            upload(server, [value, 0, 0, 0], client=i)
        server.finish_round()
    assert server.weights[0] == 2
    with Store(tmp_path) as store:
        again = DurableServer(Server(np.zeros(4), sgd()), store)
        assert np.array_equal(again.weights, server.weights)
        assert np.array_equal(again.residual, server.residual)


def test_on_upload_sees_norms_and_bans_a_client(tmp_path):
    seen = []

    def on_upload(accepted):
        seen.append((accepted.client_id, accepted.norm))
        if accepted.norm > 10:
            raise UploadDenied("banned")

    with Store(tmp_path) as store:
        server = DurableServer(Server(np.zeros(4), sgd(), on_upload=on_upload), store)
        upload(server, [3, 4, 0, 0])
        with pytest.raises(UploadDenied, match="client 1: banned") as denied:
            upload(server, [30, 40, 0, 0], client=1)
        assert isinstance(denied.value, RemoteProtocolError)
        assert server.uploaded == {0}
    assert seen == [(0, 5), (1, 50)]

    def deny(accepted):
        raise UploadDenied("banned since")

    with Store(tmp_path) as store:  # what was accepted before stays accepted
        again = DurableServer(Server(np.zeros(4), sgd(), on_upload=deny), store)
        assert again.uploaded == {0}


@pytest.mark.parametrize("factor", [0.9, np.inf, np.nan])
def test_factors_below_one_are_refused(factor):
    with pytest.raises(ValueError, match="factor must be at least 1"):
        NormCap(factor)
