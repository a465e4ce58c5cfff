"""Secure aggregation over MQTT: no plain uploads, no lost updates, the model of the simulation."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedtern import Client, Environment, RemoteProtocolError, Server, stc
from fedtern.core.envelope import SECURE, SECURE_STEPS
from fedtern.core.layout import Layout
from fedtern.core.protocol import Broadcast, Upload
from fedtern.federation import RoundState
from fedtern.federation.secure_participant import read_head
from fedtern.privacy.secure import Context, secure_topk
from fedtern.privacy.secure.messages import PublicKeys, encode_keys
from fedtern.transports.mqtt import (
    AllClients,
    Broker,
    MqttClient,
    MqttServer,
    RoundPolicy,
    Sample,
    Scheduled,
    Stats,
    join,
    serve,
)
from fedtern.transports.mqtt.client import Delta
from fedtern.transports.mqtt.messages import Announcement, read_upload, write_upload
from fedtern.transports.mqtt.topics import Publish, Topics

FEDERATION = "secret"
TOPICS = Topics(FEDERATION)
SIZE = 60
LAYOUT = Layout.flat(SIZE)
METHOD = secure_topk(p_up=1 / 10, p_down=1 / 5)
START = np.zeros(SIZE, np.float32)
CLIENTS = 6


def new_server() -> Server:
    return Server(START, METHOD, federation=FEDERATION)


def new_client(i: int) -> Client:
    return Client(i, METHOD, LAYOUT, START, federation=FEDERATION)


def change_of(i: int, round: int) -> np.ndarray:
    """Return the change of the weights from a client's training."""
    rng = np.random.default_rng([i, round])
    return (0.01 * rng.standard_normal(SIZE)).astype(np.float32)


class Network:
    """A server and its clients, with messages that can be lost, repeated and reordered.

    It checks all uploads: none may be plain. At the end, ``check`` finds each update once: in the
    sum of a round or in the residual of its client.
    """

    def __init__(self, policy: RoundPolicy, seed: int = 0, size: int = CLIENTS) -> None:
        self.size = size
        self.random = random.Random(seed)
        self.now = 0.0
        self.mqtt_server = MqttServer(new_server(), policy)
        self.up: list[Publish] = []
        self.down: list[list[Publish]] = [[] for _ in range(self.size)]
        self.retained: Publish | None = None
        self.broadcasts: dict[int, Broadcast] = {}
        self.deltas: dict[tuple[int, int], np.ndarray] = {}  # that became uploads
        self.updates: dict[tuple[int, int], np.ndarray] = {}
        self.clients = [new_client(i) for i in range(self.size)]
        self.mqtt_clients = [self.new_mqtt_client(i) for i in range(self.size)]
        self.publish(self.mqtt_server.connected(0.0))
        for i in range(self.size):
            self.connect(i)

    def new_mqtt_client(self, i: int) -> MqttClient:
        def uploaded(sent) -> None:
            assert (i, sent.round) not in self.updates  # never a second upload
            self.updates[i, sent.round] = sent.update.to_dense().astype(np.float64)
            self.deltas[i, sent.round] = change_of(i, sent.round).astype(np.float64)

        return MqttClient(self.clients[i], on_upload=uploaded)

    def connect(self, i: int) -> None:
        self.down[i] = [] if self.retained is None else [self.retained]
        self.send(self.mqtt_clients[i].connected(self.now))

    def restart(self, i: int) -> None:
        """Restart a client: it has its weights, its residual and its pending upload."""
        self.mqtt_clients[i] = self.new_mqtt_client(i)
        self.connect(i)

    def send(self, messages: list[Publish]) -> None:
        for message in messages:
            kind, client = TOPICS.parse(message.topic)
            if kind == "up":
                _, data = read_upload(message.payload)
                assert data[1] & 15 == SECURE  # no plain upload leaves a client
                assert data != self.clients[client].pending
            self.up.append(message)

    def publish(self, messages: list[Publish]) -> None:
        for message in messages:
            if message.topic == TOPICS.round:
                self.retained = message
                if (news := Announcement.read(message.payload).message)[1] & 15 == 2:
                    broadcast = Broadcast.open(news, self.mqtt_server.server.terms)
                    self.broadcasts[broadcast.round] = broadcast
            for i in range(self.size):
                if message.topic in (TOPICS.round, *(TOPICS.of(k, i) for k in ("down", "secure"))):
                    self.down[i].append(message)

    def deliver_up(self, keep: bool = False, position: int = 0) -> None:
        message = self.up[position] if keep else self.up.pop(position)
        kind, client = TOPICS.parse(message.topic)
        self.publish(self.mqtt_server.receive(kind, client, message.payload, self.now))

    def deliver_down(self, i: int) -> None:
        message = self.down[i].pop(0)
        self.send(self.mqtt_clients[i].receive(message.topic, message.payload, self.now))

    def train(self, i: int) -> None:
        mqtt_client = self.mqtt_clients[i]
        if mqtt_client.should_train:
            weights = mqtt_client.client.weights + change_of(i, mqtt_client.client.round)
            self.send(mqtt_client.trained(weights))

    def step(self, faults: float) -> None:
        self.now += 0.1 * self.random.random()
        dice = self.random.random()
        if dice < 0.002 * faults:
            self.publish(self.mqtt_server.connected(self.now))
            for i in range(self.size):
                self.send([self.mqtt_clients[i].presence(b"\1")])
        elif dice < 0.006 * faults:
            self.restart(self.random.randrange(self.size))
        if self.up:
            position = (
                0 if self.random.random() > 0.3 * faults else self.random.randrange(len(self.up))
            )
            if self.random.random() < 0.01 * faults:
                self.up.pop(position)
            else:
                self.deliver_up(self.random.random() < 0.1 * faults, position)
        self.publish(self.mqtt_server.tick(self.now))
        i = self.random.randrange(self.size)
        if self.down[i]:
            if self.random.random() < 0.01 * faults:
                self.down[i].pop(0)
            else:
                self.deliver_down(i)
        self.send(self.mqtt_clients[i].tick(self.now))
        self.train(i)

    def run(self, steps: int, faults: float = 0.0) -> None:
        for _ in range(steps):
            self.step(faults)

    def settle(self) -> None:
        """Bring all clients to the server's round."""
        server = self.mqtt_server.server
        for client in self.clients:
            client.receive(server.catch_up(client.client_id, client.round).data)

    def check(self) -> None:
        server = self.mqtt_server.server
        total = np.zeros(SIZE)
        for broadcast in self.broadcasts.values():
            for i in broadcast.counted:
                total += self.updates[i, broadcast.round] / len(broadcast.counted)
        np.testing.assert_allclose(server.weights + server.residual, total, atol=1e-4)
        for client in self.clients:
            assert client.weights.tobytes() == server.weights.tobytes()
            i = client.client_id
            sent = [
                update
                for (j, round), update in self.updates.items()
                if j == i and round in self.broadcasts and i in self.broadcasts[round].counted
            ]
            held = client.residual.astype(np.float64) + sum(sent, np.zeros(SIZE))
            if client.pending is not None:  # to the open round
                held += client.pending_update().to_dense()
            learned = sum((d for (j, _), d in self.deltas.items() if j == i), np.zeros(SIZE))
            np.testing.assert_allclose(held, learned, atol=1e-4)


POLICY = RoundPolicy(Sample(size=4), deadline=30.0, quorum=3, grace=1.0)


def test_rounds_count_the_masked_updates_of_their_cohorts():
    network = Network(POLICY)
    network.run(3000)
    assert network.mqtt_server.server.round > 30
    assert network.mqtt_server.stats.abandoned == 0
    assert all(len(b.counted) == 4 for r, b in network.broadcasts.items() if r)
    network.settle()
    network.check()


@pytest.mark.parametrize("seed", range(8))
def test_on_a_faulty_network_rounds_continue_and_no_update_is_lost(seed):
    cohorts = Sample(size=4) if seed % 2 else AllClients()
    policy = RoundPolicy(cohorts, deadline=10.0, quorum=3, grace=1.0)
    network = Network(policy, seed)
    network.run(4000, faults=1.0)
    stats = network.mqtt_server.stats
    counted = [b for b in network.broadcasts.values() if b.counted]
    assert len(counted) > 10
    assert stats.abandoned > 0
    network.run(3000)
    assert len([b for b in network.broadcasts.values() if b.counted]) > len(counted) + 10
    network.settle()
    network.check()


def run_until(network: Network, state: str, limit: int = 5000) -> None:
    for _ in range(limit):
        secure = network.mqtt_server.secure
        if secure.state is not None and secure.state.name == state:
            return
        network.step(0.0)
    raise AssertionError(f"the round never reached {state}")


@pytest.mark.parametrize("state", ["ADVERTISING", "SHARING", "COLLECTING", "UNMASKING"])
def test_a_client_that_disappears_in_a_phase_does_not_stop_the_federation(state):
    network = Network(RoundPolicy(AllClients(), deadline=30.0, quorum=3, grace=1.0))
    run_until(network, state)
    gone = min(network.mqtt_server.rounds.cohort)
    network.up = [m for m in network.up if TOPICS.parse(m.topic)[1] != gone]
    network.mqtt_clients[gone].receive = lambda *_: []
    network.mqtt_clients[gone].trained = lambda *_: []
    before = network.mqtt_server.server.round
    network.run(2000)
    assert network.mqtt_server.server.round > before + 2
    first = network.broadcasts[before]
    assert len(first.counted) >= CLIENTS - 1  # the round itself has a sum


def test_a_server_that_restarts_abandons_its_round_and_goes_on():
    network = Network(POLICY)
    network.run(500)
    run_until(network, "COLLECTING")
    server = network.mqtt_server.server
    quantum = network.mqtt_server.secure.quantum
    round = server.round
    network.mqtt_server = MqttServer(server, POLICY, quantum=quantum)
    network.now += 1
    network.publish(network.mqtt_server.connected(network.now))
    for i in range(CLIENTS):
        network.connect(i)
    network.run(2000)
    assert network.broadcasts[round].counted == frozenset()
    assert server.round > round + 3
    assert network.mqtt_server.stats.counted > 0
    network.settle()
    network.check()


def restart_server(network: Network) -> None:
    """Restart the server in the open round: it knows the retained presence of its clients."""
    network.mqtt_server = MqttServer(network.mqtt_server.server, network.mqtt_server.rounds.policy)
    network.now += 1
    network.publish(network.mqtt_server.connected(network.now))
    network.up = [mqtt_client.presence(b"\1") for mqtt_client in network.mqtt_clients]


@pytest.mark.parametrize("cohorts", [Sample(size=3), AllClients()])
@pytest.mark.parametrize("state", ["ADVERTISING", "SHARING", "COLLECTING", "UNMASKING"])
def test_a_restarted_server_blames_no_client_and_starts_the_next_round(cohorts, state):
    network = Network(RoundPolicy(cohorts, deadline=30.0, quorum=3, grace=1.0), size=3)
    network.run(300)
    run_until(network, state)
    round = network.mqtt_server.server.round
    restart_server(network)
    end = network.now + 15
    while network.mqtt_server.server.round < round + 2:
        network.step(0.0)
        assert network.now < end
    assert network.broadcasts[round].counted == frozenset()
    assert network.broadcasts[round + 1].counted == {0, 1, 2}
    network.settle()
    network.check()


def test_a_restarted_server_waits_for_its_clients_before_it_selects_a_cohort():
    network = Network(RoundPolicy(AllClients(), deadline=30.0, quorum=3, grace=1.0))
    network.run(300)
    run_until(network, "COLLECTING")
    round = network.mqtt_server.server.round
    restart_server(network)
    while network.mqtt_server.server.round < round + 2:
        network.step(0.0)
    assert network.broadcasts[round + 1].counted == set(range(CLIENTS))


def test_a_reconnected_server_blames_no_client_for_an_abandoned_round():
    network = Network(RoundPolicy(Sample(size=3), deadline=30.0, quorum=3, grace=1.0), size=3)
    network.run(200)
    run_until(network, "ADVERTISING")
    server = network.mqtt_server
    network.up = [network.mqtt_clients[0].goodbye()]
    network.down[0].clear()
    while server.rounds.state is not RoundState.OVERDUE:
        network.step(0.0)
    round = server.server.round
    network.publish(server.connected(network.now))
    network.up = [mqtt_client.presence(b"\1") for mqtt_client in network.mqtt_clients]
    end = network.now + 15
    while server.server.round == round:
        network.step(0.0)
        assert network.now < end


def test_repeated_messages_of_a_phase_are_limited_in_rate():
    network = Network(POLICY)
    run_until(network, "ADVERTISING")
    server = network.mqtt_server
    while not network.up or TOPICS.parse(network.up[0].topic)[0] != "up":
        network.step(0.0)
    _, client = TOPICS.parse(network.up[0].topic)
    for _ in range(60):
        server.receive("up", client, network.up[0].payload, network.now)
    assert server.stats.refused["duplicate"] >= 10
    assert server.stats.refused["rate"] >= 30
    network.run(1000)
    assert server.server.round > 3


@pytest.mark.parametrize("key", ["mask", "channel"])
def test_one_client_with_an_invalid_public_key_does_not_make_the_others_leave(key):
    network = Network(RoundPolicy(AllClients(), deadline=30.0, quorum=3, grace=1.0))
    run_until(network, "ADVERTISING")
    client = network.clients[5]
    context = Context(client.terms, client.stamp, client.round)
    keys = PublicKeys(**{"mask": b"\5" * 32, "channel": b"\6" * 32, key: bytes(32)})
    forged = write_upload(1, encode_keys(context, keys, b"\7" * 16, None))
    network.publish(network.mqtt_server.receive("up", 5, forged, network.now))
    assert network.mqtt_server.stats.refused["incompatible"] == 1
    network.mqtt_clients[5].trained = lambda _: []
    round = network.mqtt_server.server.round
    while network.mqtt_server.server.round == round:
        network.step(0.0)
    assert network.broadcasts[round].counted == {0, 1, 2, 3, 4}


def test_training_results_of_a_wrong_shape_are_refused():
    network = Network(POLICY)
    run_until(network, "ADVERTISING")
    while not (ready := [m for m in network.mqtt_clients if m.should_train]):
        for i in range(CLIENTS):
            if network.down[i]:
                network.deliver_down(i)
    for result in (np.float32(1), Delta(np.zeros((SIZE, 1)))):
        with pytest.raises(ValueError, match="must be a flat vector of 60 values"):
            ready[0].trained(result)


def test_the_server_names_the_clients_that_have_not_answered():
    network = Network(POLICY)
    run_until(network, "SHARING")
    assert network.mqtt_server.awaited == sorted(network.mqtt_server.rounds.cohort)
    while len(network.mqtt_server.awaited) == 4:
        network.step(0.0)
    assert len(network.mqtt_server.awaited) == 3


def test_a_restarted_client_that_has_uploaded_takes_no_part_in_its_round_again():
    network = Network(POLICY)
    run_until(network, "UNMASKING")
    i = min(network.mqtt_server.secure.uploaded or network.mqtt_server.rounds.cohort)
    round = network.clients[i].round
    assert network.clients[i].pending is not None
    network.restart(i)
    while network.clients[i].round == round:
        network.step(0.0)
        assert not network.mqtt_clients[i].should_train or network.clients[i].round > round
    assert i in network.broadcasts[round].counted  # the others' shares were enough


def test_the_server_refuses_plain_uploads():
    network = Network(POLICY)
    run_until(network, "ADVERTISING")
    plain = Client(1, stc(), LAYOUT, START, federation=FEDERATION).send(START + 1).data
    before = network.mqtt_server.stats.refused["incompatible"]
    for data in (plain, b"\xfe\x11junk"):
        network.mqtt_server.receive("up", 1, write_upload(1, data), network.now)
    refused = network.mqtt_server.stats.refused
    assert refused["incompatible"] + refused["malformed"] + refused["not in cohort"] >= before + 2
    assert network.mqtt_server.server.uploaded == frozenset()
    with pytest.raises(RemoteProtocolError, match="takes only masked ones"):
        network.mqtt_server.rounds.server.receive(1, plain)


def test_a_client_publishes_nothing_if_a_server_repeats_an_announcement():
    network = Network(POLICY)
    run_until(network, "UNMASKING")
    i = next(c.client_id for c in network.clients if c.pending is not None)
    assert network.mqtt_clients[i].receive(TOPICS.round, network.retained.payload, 9.0) == []


@pytest.mark.parametrize("step", range(len(SECURE_STEPS)))
def test_a_forged_message_gets_no_answer_and_loses_no_update(step):
    network = Network(POLICY)
    run_until(network, "SHARING")
    i = min(network.mqtt_server.rounds.cohort)
    context = network.mqtt_clients[i].client
    forged = Context(context.terms, context.stamp, context.round).seal(step, b"\1" * 9)
    before = network.clients[i].residual.copy()
    assert network.mqtt_clients[i].receive(TOPICS.of("secure", i), forged, network.now) == []
    assert (network.clients[i].residual == before).all()
    network.run(1000)
    assert network.mqtt_server.stats.counted > 0
    network.settle()
    network.check()


def test_small_quorums_are_refused():
    with pytest.raises(ValueError, match="needs a quorum of at least 3, got 2"):
        MqttServer(new_server(), RoundPolicy(quorum=2))
    assert MqttServer(new_server()).rounds.policy.quorum == 3


def test_policies_without_a_deadline_are_refused():
    with pytest.raises(ValueError, match="needs a deadline"):
        MqttServer(new_server(), RoundPolicy(quorum=3, deadline=None))


def test_models_with_carried_tensors_are_refused():
    arrays = {"w": np.zeros(9, np.float32), "bn.running_mean": np.zeros(3, np.float32)}
    server = Server.from_arrays(arrays, METHOD, federation=FEDERATION)
    with pytest.raises(ValueError, match='use carry="local"'):
        MqttServer(server)


def test_a_phase_without_answers_ends_at_its_share_of_the_deadline():
    network = Network(RoundPolicy(Sample(size=4), deadline=8.0, quorum=3, grace=1.0))
    run_until(network, "ADVERTISING")
    server = network.mqtt_server
    started = server.rounds.selected_at
    assert server.next_tick == pytest.approx(started + 4.0)
    network.up.clear()
    network.publish(server.tick(started + 4.0))  # nobody sent keys: the round is abandoned
    assert server.stats.abandoned == 1
    assert server.rounds.state is RoundState.OVERDUE


def test_the_head_of_a_message_has_its_round():
    network = Network(POLICY)
    run_until(network, "ADVERTISING")
    secure = network.mqtt_server.secure
    (client, message), *_ = secure.all_unanswered().items()
    head = read_head(message, secure.terms)
    assert (head.round, head.is_invitation) == (network.mqtt_server.server.round, True)
    assert client in network.mqtt_server.rounds.cohort


async def run_over_mqtt(experiment, port, path):
    from fedtern.training.tasks import get_task
    from fedtern.transports.mqtt.experiment_client import ExperimentClient
    from fedtern.transports.mqtt.experiment_server import ExperimentServer

    broker = Broker("127.0.0.1", port)
    dataset = get_task(experiment.task).load()
    clients = experiment.environment.clients
    host = ExperimentServer(experiment, dataset, FEDERATION, path / "run")
    cohorts = Scheduled(experiment.environment, experiment.seed)
    policy = RoundPolicy(cohorts, deadline=60.0, quorum=3, rounds=host.rounds, grace=0.1)
    tasks = [serve(host.server, broker, policy, stats=host.stats, on_round=host.round_finished)]
    ones = [ExperimentClient(experiment, dataset, i, FEDERATION) for i in range(clients)]
    tasks += [join(one.client, one.train, broker, on_upload=one.uploaded) for one in ones]
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    host.close()
    return host, ones


@pytest.mark.parametrize("positions", ["leader", "random"])
def test_a_federation_over_mqtt_has_the_model_of_the_simulation(mosquitto, tmp_path, positions):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from fedtern import simulate
    from fedtern.runs import Experiment

    settings = {"iterations": 12, "evaluate_every": 6, "seed": 2}
    method = f"secure_topk:p_up=1/20,p_down=1/20,positions={positions}"
    environment = Environment(clients=6, participation=2 / 3)
    experiment = Experiment.of("logistic-digits", method, environment, **settings)
    host, ones = asyncio.run(run_over_mqtt(experiment, mosquitto.port, tmp_path))
    simulation = simulate("logistic-digits", method=method, environment=environment, **settings)
    last = simulation.run()
    weights = [tensor.numpy().ravel() for tensor in simulation.weights.values()]
    assert host.server.weights.tobytes() == b"".join(w.tobytes() for w in weights)
    assert host.stats.abandoned == 0
    assert host.run.final_evaluation().accuracy == last.accuracy
    assert host.run.final_evaluation().down_bytes_mean > last.down_bytes_mean / 2
    for one in ones:
        assert one.client.weights.tobytes() == host.server.weights.tobytes()
        if one.client.pending is not None:
            Upload.open(one.client.pending, host.terms)  # stays on the client


def test_a_client_with_a_slow_link_gets_the_invitation_to_its_first_round(mosquitto, monkeypatch):
    from fedtern.transports.mqtt.connection import Connection

    subscribe = Connection.subscribe

    async def subscribe_slowly(self, topic: str, qos: int) -> None:
        await asyncio.sleep(0.1)
        await subscribe(self, topic, qos)

    monkeypatch.setattr(Connection, "subscribe", subscribe_slowly)

    async def scenario() -> Stats:
        stats = Stats()
        policy = RoundPolicy(AllClients(), deadline=6.0, quorum=3, rounds=2, grace=0.1)
        broker = Broker("127.0.0.1", mosquitto.port)
        tasks = [asyncio.create_task(serve(new_server(), broker, policy, stats=stats))]
        await asyncio.sleep(0.3)  # the server waits for its clients
        for i in range(3):
            train = partial(lambda i, weights, round: weights + change_of(i, round), i)
            tasks.append(asyncio.create_task(join(new_client(i), train, broker)))
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        return stats

    assert asyncio.run(scenario()).abandoned == 0
