"""Federations on a real broker, with crashes, restarts, duplicates and malformed messages."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from brokers import Processes
from upload_audit import (
    CLIENTS,
    FEDERATION,
    METHOD,
    START,
    TERMS,
    UploadAudit,
    new_client,
    new_server,
    trainer,
)

from fedtern import Client, DurableClient, DurableServer, RemoteProtocolError, Server, Store, fedavg
from fedtern.transports.mqtt import (
    Broker,
    Limits,
    MqttServer,
    RoundPolicy,
    Sample,
    Stats,
    join,
    serve,
)
from fedtern.transports.mqtt.byte_counter import count_bytes
from fedtern.transports.mqtt.messages import Announcement, read_upload, write_upload
from fedtern.transports.mqtt.topics import Topics

aiomqtt = pytest.importorskip("aiomqtt")

TOPICS = Topics(FEDERATION)
QUICK = {"grace": 0.3, "deadline": 30.0}


class Federation:
    """A server and clients as tasks of this process, with an audit of all uploads."""

    def __init__(self, port: int, policy: RoundPolicy, server=None, linger: float = 5.0) -> None:
        self.broker = Broker("127.0.0.1", port)
        self.policy = policy
        self.audit = UploadAudit()
        self.stats = Stats()
        self.server = server or new_server()
        self.linger = linger
        self.clients: dict[int, Client | DurableClient] = {}
        self.tasks: dict[int | str, asyncio.Task] = {}

    def serve(self) -> None:
        def on_round(mqtt_server: MqttServer) -> None:
            self.audit.record_broadcast(self.server.newest_broadcast(self.server.round - 1))

        self.tasks["server"] = asyncio.create_task(
            serve(
                self.server,
                self.broker,
                self.policy,
                stats=self.stats,
                on_round=on_round,
                linger=self.linger,
            )
        )

    def join(self, i: int, train=None, client=None) -> None:
        self.clients.setdefault(i, client or new_client(i))
        self.tasks[i] = asyncio.create_task(
            join(
                self.clients[i],
                train or trainer(i),
                self.broker,
                on_upload=lambda sent: self.audit.record_upload(i, sent.data),
            )
        )

    async def until(self, round: int) -> None:
        while self.server.round < round:
            failed = [t for t in self.tasks.values() if t.done() and t.exception()]
            assert not failed, failed
            await asyncio.sleep(0.01)

    async def leave(self, i: int) -> None:
        task = self.tasks.pop(i)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def end(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self.tasks.values()), 180)
        self.audit.check(self.server, list(self.clients.values()))


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario, 400))


def test_replicas_are_bit_equal_and_no_update_is_lost(mosquitto):
    async def scenario():
        federation = Federation(
            mosquitto.port, RoundPolicy(Sample(size=3), rounds=30, min_clients=CLIENTS, **QUICK)
        )
        federation.serve()
        for i in range(CLIENTS):
            federation.join(i, client=new_client(i, None if i == 0 else START))
        await federation.end()
        assert federation.stats.rounds == 30
        assert federation.stats.counted == 90
        assert sum(federation.stats.refused.values()) == 0

    run(scenario())


def test_a_client_that_was_offline_for_fifty_rounds_catches_up(mosquitto):
    async def scenario():
        federation = Federation(mosquitto.port, RoundPolicy(rounds=80, min_clients=2, **QUICK))
        gone = asyncio.Event()
        back = asyncio.Event()

        def train_and_wait(i):
            async def train(weights, round):
                if round == 5:
                    await gone.wait()
                if round == 60:  # so that the federation does not end too early
                    await back.wait()
                return trainer(i)(weights, round)

            return train

        async def train_after_return(weights, round):
            back.set()
            return trainer(1)(weights, round)

        federation.serve()
        for i in (0, 2):
            federation.join(i, train_and_wait(i))
        federation.join(1)
        await federation.until(5)
        await federation.leave(1)
        left = federation.clients[1].round
        gone.set()
        await federation.until(60)
        assert left <= 6
        federation.join(1, train_after_return)
        await federation.end()
        assert any(1 in b.counted for t, b in federation.audit.broadcasts.items() if t >= 60)

    run(scenario())


def test_a_client_that_restarts_during_the_last_round_learns_of_the_end(mosquitto):
    async def scenario():
        federation = Federation(mosquitto.port, RoundPolicy(rounds=10, **QUICK), linger=60.0)
        federation.serve()
        gone = asyncio.Event()

        async def train_and_wait(weights, round):
            if round == 5:
                await gone.wait()
            return trainer(0)(weights, round)

        federation.join(0, train_and_wait)
        federation.join(1)
        await federation.until(5)
        await federation.leave(1)
        gone.set()
        await federation.tasks.pop(0)
        await asyncio.sleep(0.5)
        federation.join(1)
        before = time.monotonic()
        await federation.end()
        assert time.monotonic() - before < 30  # far below linger: all clients have left

    run(scenario())


def test_a_model_is_downloaded_through_a_broker_with_a_small_packet_limit(tmp_path, mosquitto):
    mosquitto.stop()
    with mosquitto.path.open("a") as config:
        config.write("max_packet_size 2000\n")
    mosquitto.start()

    async def scenario():
        broker = Broker("127.0.0.1", mosquitto.port)
        server = new_server()
        new = new_client(0, None)
        old = new_client(1)
        limits = Limits(packet_bytes=2000)
        stats = Stats()
        await asyncio.gather(
            serve(
                server,
                broker,
                RoundPolicy(rounds=10, min_clients=2, **QUICK),
                limits=limits,
                stats=stats,
            ),
            join(new, trainer(0), broker),
            join(old, trainer(1), broker),
        )
        assert stats.connections == 1
        assert stats.catch_up_bytes > START.nbytes
        assert new.weights.tobytes() == old.weights.tobytes() == server.weights.tobytes()

    run(scenario())


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_federation_continues_after_restarts_of_the_broker(mosquitto, kill):
    async def scenario():
        federation = Federation(
            mosquitto.port, RoundPolicy(rounds=40, min_clients=4, grace=0.5, deadline=30.0)
        )
        federation.serve()
        back = {12: asyncio.Event(), 22: asyncio.Event()}

        def train_and_wait(i):
            async def train(weights, round):
                if round in back:  # so that the broker restarts during training
                    await back[round].wait()
                return trainer(i)(weights, round)

            return train

        for i in range(4):
            federation.join(i, train_and_wait(i))
        for at in (10, 20):
            await federation.until(at)
            await asyncio.to_thread(mosquitto.stop, kill)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(mosquitto.start)
            back[at + 2].set()
        await federation.end()
        assert federation.stats.connections == 3

    run(scenario())


def test_duplicate_uploads_count_once(mosquitto):
    """Every upload is delivered twice, which QoS 1 allows."""

    async def echo(port: int, ready: asyncio.Event):
        async with aiomqtt.Client("127.0.0.1", port) as client:
            await client.subscribe(TOPICS.of("up", "+"), qos=1)
            ready.set()
            seen = set()
            async for message in client.messages:
                if (key := (str(message.topic), message.payload)) not in seen:
                    seen.add(key)
                    await client.publish(str(message.topic), message.payload, qos=1)

    async def scenario():
        federation = Federation(mosquitto.port, RoundPolicy(rounds=30, min_clients=3, **QUICK))
        refused = federation.stats.refused
        ready = asyncio.Event()
        echoing = asyncio.create_task(echo(mosquitto.port, ready))
        await ready.wait()
        federation.serve()
        rounds = itertools.count(1)

        async def last(weights, round):
            """Keep the round open until both other uploads have come once more."""
            expected = 2 * next(rounds)
            while refused["duplicate"] < expected:
                await asyncio.sleep(0.01)
            return trainer(2)(weights, round)

        for i in range(2):
            federation.join(i)
        federation.join(2, last)
        await federation.end()
        echoing.cancel()
        assert refused["duplicate"] >= 60
        assert not refused["malformed"] + refused["incompatible"]
        assert federation.stats.counted == 90

    run(scenario())


def test_a_slow_client_does_not_delay_its_round_and_loses_no_update(mosquitto):
    async def scenario():
        federation = Federation(
            mosquitto.port, RoundPolicy(rounds=6, min_clients=3, grace=0.3, deadline=0.5)
        )
        federation.serve()
        for i in range(2):
            federation.join(i)

        async def too_late(weights, round):
            await federation.until(round + 1)
            return trainer(2)(weights, round)

        federation.join(2, too_late)
        await federation.end()
        assert federation.stats.refused["late"] >= 1
        assert federation.clients[2].residual.any()

    run(scenario())


def test_a_slow_client_skips_to_the_newest_round(mosquitto):
    async def scenario():
        federation = Federation(
            mosquitto.port, RoundPolicy(rounds=60, min_clients=2, grace=0.3, deadline=0.3)
        )
        federation.serve()
        behind = []

        async def steadily(weights, round):
            await asyncio.sleep(0.1)
            return weights

        async def slowly(weights, round):
            behind.append(federation.server.round - round)
            await asyncio.sleep(1.0)
            return weights

        for i in range(2):
            federation.join(i, steadily)
        federation.join(2, slowly)
        await asyncio.wait_for(asyncio.gather(*federation.tasks.values()), 120)
        assert len(behind) > 3
        assert max(behind) <= 2  # announcements on their way to the client

    run(scenario())


@pytest.mark.parametrize("blocking", [False, True], ids=["waits", "blocks"])
def test_a_callback_longer_than_the_deadline_does_not_make_uploads_late(mosquitto, blocking):
    async def scenario():
        broker = Broker("127.0.0.1", mosquitto.port)
        server = new_server()
        stats = Stats()

        async def on_round(mqtt_server):
            if server.round == 1:
                time.sleep(2.5) if blocking else await asyncio.sleep(2.5)

        policy = RoundPolicy(Sample(fraction=1.0), rounds=3, min_clients=5, grace=0.3, deadline=2.0)
        clients = (join(new_client(i), trainer(i), broker) for i in range(5))
        serving = serve(server, broker, policy, stats=stats, on_round=on_round)
        await asyncio.wait_for(asyncio.gather(serving, *clients), 60)
        assert stats.refused["late"] == 0
        assert stats.counted == 15

    run(scenario())


def test_malformed_messages_on_every_topic_change_nothing(mosquitto):
    async def publish_noise(port: int):
        rng = np.random.default_rng(0)
        async with aiomqtt.Client("127.0.0.1", port) as client:
            for turn in itertools.count():
                noise = rng.bytes(int(rng.integers(0, 60)))
                cut = b"\0\xfe\x12" + noise  # looks like a broadcast
                # Under real clients' numbers, stay within the rate limit of these clients.
                i = turn % 15 if turn % 15 < CLIENTS else 50 + turn % 15
                for kind, data in itertools.product(("up", "ask", "down"), (noise, cut)):
                    await client.publish(TOPICS.of(kind, i), data)
                await client.publish(TOPICS.of("alive", 77), noise)
                await client.publish(TOPICS.of("up", "nobody"), noise)
                await client.publish(TOPICS.round, noise, retain=True)
                await client.publish(TOPICS.round, cut)
                await asyncio.sleep(0.05)

    async def scenario():
        federation = Federation(
            mosquitto.port, RoundPolicy(Sample(size=3), rounds=40, grace=0.3, deadline=1.0)
        )
        publishing = asyncio.create_task(publish_noise(mosquitto.port))
        federation.serve()
        for i in range(3):
            federation.join(i)
        await federation.end()
        publishing.cancel()
        assert federation.stats.refused["malformed"] > 10

    run(scenario())


def test_connections_cannot_be_taken_over_with_a_guessed_identifier(mosquitto):
    """A broker closes a connection if another one with the same identifier comes."""

    async def intrude(port: int):
        for _ in range(3):
            for name in ("server", *range(3)):
                async with aiomqtt.Client(
                    "127.0.0.1", port, identifier=f"fedtern-{FEDERATION}-{name}"
                ):
                    await asyncio.sleep(0.02)

    async def scenario():
        async with count_bytes(mosquitto.port) as wire:
            federation = Federation(wire.port, RoundPolicy(rounds=20, min_clients=3, **QUICK))
            federation.serve()
            over = asyncio.Event()

            def train_and_wait(i):
                async def train(weights, round):
                    if round == 10:
                        await over.wait()
                    return trainer(i)(weights, round)

                return train

            for i in range(3):
                federation.join(i, train_and_wait(i))
            await federation.until(2)
            await intrude(mosquitto.port)
            over.set()
            await federation.end()
            assert wire.connections == 4

    run(scenario())


async def check_refused(port: int, other: Client, sentence: str) -> None:
    """Let an incompatible client join, and check that the others finish without it."""
    federation = Federation(port, RoundPolicy(rounds=20, min_clients=3, **QUICK))
    federation.serve()
    outsider = asyncio.create_task(join(other, trainer(4), federation.broker))
    for i in range(3):
        federation.join(i)
    with pytest.raises(RemoteProtocolError, match=sentence):
        await asyncio.wait_for(outsider, 60)
    await federation.end()


def test_a_client_with_another_method_is_refused_and_the_others_continue(mosquitto):
    other = Client(4, fedavg(5), weights=START, federation=FEDERATION)
    run(check_refused(mosquitto.port, other, "the peer's method is"))


def test_a_client_with_another_model_gets_an_error_that_names_both_models(mosquitto):
    other = Client(4, METHOD, weights=np.zeros(7850), federation=FEDERATION)
    theirs, ours = (terms.layout.digest.hex() for terms in (TERMS, other.terms))
    layouts = rf"the peer's layout is {theirs}, ours is {ours} \(1 tensors, 7850 parameters\)"
    run(check_refused(mosquitto.port, other, layouts))
    assert other.round == 0
    assert not other.weights.any()


def test_uploads_of_another_model_are_refused_and_do_not_affect_the_round(mosquitto):
    """From a client that publishes without reading announcements."""

    async def scenario():
        federation = Federation(mosquitto.port, RoundPolicy(rounds=10, min_clients=3, **QUICK))
        federation.serve()
        other = Client(4, METHOD, weights=np.zeros(7850), federation=FEDERATION)
        sent = asyncio.Event()

        async def train_and_wait(weights, round):
            await sent.wait()
            return trainer(0)(weights, round)

        federation.join(0, train_and_wait)
        for i in (1, 2):
            federation.join(i)
        data = write_upload(1, other.send(np.ones(7850)).data)
        async with aiomqtt.Client("127.0.0.1", mosquitto.port) as client:
            while not federation.stats.cohort:
                await asyncio.sleep(0.01)
            await client.publish(TOPICS.of("up", 4), data, qos=1)
            while not federation.stats.refused["incompatible"]:
                await asyncio.sleep(0.01)
        sent.set()
        await federation.end()
        assert federation.stats.refused["incompatible"] == 1
        assert federation.stats.counted == 30

    run(scenario())


def test_a_federation_can_reuse_the_name_of_an_earlier_one(mosquitto):
    async def scenario():
        broker = Broker("127.0.0.1", mosquitto.port)
        before = Server(START + 1, METHOD, federation=FEDERATION)
        client = Client(0, METHOD, weights=START + 1, federation=FEDERATION)
        policy = RoundPolicy(rounds=1, grace=0.1)
        await asyncio.gather(serve(before, broker, policy), join(client, trainer(0), broker))
        federation = Federation(mosquitto.port, RoundPolicy(rounds=5, min_clients=3, **QUICK))
        federation.serve()
        for i in range(3):
            await asyncio.sleep(0.5)  # with too few clients to select a cohort
            federation.join(i)
        await federation.end()

    run(scenario())


class Witness:
    """Records all messages on the broker."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.audit = UploadAudit()
        self.ready = asyncio.Event()

    async def listen(self) -> None:
        async with aiomqtt.Client("127.0.0.1", self.port) as client:
            await client.subscribe(f"fedtern/{FEDERATION}/#", qos=1)
            self.ready.set()
            async for message in client.messages:
                if str(message.topic) == TOPICS.round:
                    news = Announcement.read(message.payload).message
                    if news[1] & 15 == 2:  # a broadcast, not a cohort notice
                        self.audit.record_broadcast(news)
                elif (found := TOPICS.parse(str(message.topic))) and found[0] == "up":
                    self.audit.record_upload(found[1], read_upload(message.payload)[1])

    async def until(self, round: int) -> None:
        while len(self.audit.broadcasts) < round:
            await asyncio.sleep(0.02)

    async def upload(self, i: int, since: int) -> None:
        while not any(j == i and round >= since for j, round in self.audit.uploads):
            await asyncio.sleep(0.02)


class Participants(Processes):
    """Servers and clients as processes."""

    def __init__(self, port: int, directory: Path) -> None:
        super().__init__()
        self.port = port
        self.directory = directory

    def start(self, name: str, *arguments: object) -> None:
        role = "serve" if name == "server" else "join"
        here = Path(__file__).parent
        command = [here / "participant.py", role, self.port, self.directory / name, *arguments]
        self.running[name] = subprocess.Popen([sys.executable, *map(str, command)])

    async def wait(self) -> None:
        for process in self.running.values():
            assert await asyncio.to_thread(process.wait, 180) == 0


def audit(witness: Witness, directory: Path, clients, **others) -> None:
    with Store(directory / "server") as store:
        server = DurableServer(new_server(), store)
        found = []
        for i in clients:
            with Store(directory / f"client-{i}") as own:
                found.append(DurableClient(new_client(i), own))
        witness.audit.check(server, found, **others)


@pytest.mark.slow
def test_a_killed_server_continues_from_its_store(mosquitto, tmp_path):
    async def scenario():
        witness = Witness(mosquitto.port)
        listening = asyncio.create_task(witness.listen())
        await witness.ready.wait()
        with Participants(mosquitto.port, tmp_path) as processes:
            processes.start("server", 60)
            for i in range(4):
                processes.start(f"client-{i}", i)
            for at in (15, 30, 45):
                await witness.until(at)
                processes.kill("server")
                processes.start("server", 60)
            await processes.wait()
        await witness.until(60)
        listening.cancel()
        audit(witness, tmp_path, range(4))

    run(scenario())


@pytest.mark.slow
def test_a_killed_client_does_not_block_its_round_and_continues_from_its_store(mosquitto, tmp_path):
    async def scenario():
        witness = Witness(mosquitto.port)
        listening = asyncio.create_task(witness.listen())
        await witness.ready.wait()
        with Participants(mosquitto.port, tmp_path) as processes:
            processes.start("server", 250)
            for i in range(4):
                processes.start(f"client-{i}", i, 0.05)  # training takes most of the time
            for _ in range(2):
                await witness.until(len(witness.audit.broadcasts) + 8)
                processes.kill("client-2")
                processes.kill("client-3")
                killed = len(witness.audit.broadcasts)
                await witness.until(killed + 4)  # the others continue
                (tmp_path / "slow").touch()
                processes.start("client-2", 2, 0.05)
                processes.start("client-3", 3, 0.05)
                await witness.upload(2, killed + 4)
                await witness.upload(3, killed + 4)
                (tmp_path / "slow").unlink()
            await processes.wait()
        await witness.until(250)
        listening.cancel()
        audit(witness, tmp_path, range(4), killed=frozenset({2, 3}))

    run(scenario())
