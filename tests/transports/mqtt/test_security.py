"""What the example configuration lets in, and what it does not."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import ssl
import subprocess
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from brokers import MOSQUITTO, Mosquitto, running
from upload_audit import FEDERATION, UploadAudit, new_client, new_server, trainer

from fedtern import Store
from fedtern.transports.mqtt import Broker, RoundPolicy, Sample, Stats, join, serve
from fedtern.transports.mqtt.broker import BrokerError
from fedtern.transports.mqtt.messages import write_upload
from fedtern.transports.mqtt.topics import Topics

aiomqtt = pytest.importorskip("aiomqtt")

EXAMPLES = Path(__file__).parents[3] / "examples" / "mqtt"
TOPICS = Topics(FEDERATION)
NAMES = ("server", "0", "1", "2")


@pytest.fixture(autouse=True)
def _collected():
    """The library leaves the socket of a handshake that failed to the garbage collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def certify(directory: Path, name: str, common: str, extension: str = "") -> None:
    """A key and a certificate, as docs/how-to/mqtt.md makes them."""
    new = ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-subj", f"/CN={common}"]
    if name == "ca":
        openssl(directory, "req", "-x509", *new, "-days", "30", "-out", "ca.crt")
        return
    openssl(directory, "req", *new, "-out", f"{name}.csr")
    (directory / "extension").write_text(extension)
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extension"]
    files = ["-in", f"{name}.csr", "-out", f"{name}.crt"]
    openssl(directory, "x509", "-req", "-days", "30", *files, *signed)


@pytest.fixture(scope="module")
def papers(tmp_path_factory) -> Path:
    """Everything the example configuration names."""
    if MOSQUITTO is None or shutil.which("openssl") is None:
        pytest.skip("NO MQTT BROKER (or no openssl): install mosquitto, or this shows nothing")
    directory = tmp_path_factory.mktemp("papers")
    certify(directory, "ca", "fedtern test")
    certify(directory, "broker", "broker", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in NAMES:
        certify(directory, name, name)
    passwords = directory / "passwords"
    passwords.touch()
    tool = shutil.which("mosquitto_passwd") or "mosquitto_passwd"
    for name in NAMES:
        subprocess.run([tool, "-b", passwords, name, f"secret-{name}"], check=True)
    shutil.copy(EXAMPLES / "acl", directory / "acl")
    return directory


def example(papers: Path, tmp_path: Path) -> str:
    """The example's own text; only where things are differs."""
    text = (EXAMPLES / "mosquitto.conf").read_text()
    text = text.replace("/etc/mosquitto/fedtern", str(papers)).replace("8883", "@PORT@ 127.0.0.1")
    text = text.replace("/var/lib/mosquitto/", f"{tmp_path}/")
    return text + ("user root\n" if os.getuid() == 0 else "")


@pytest.fixture
def with_passwords(papers, tmp_path):
    with running(Mosquitto(tmp_path, example(papers, tmp_path))) as broker:
        yield broker


@pytest.fixture
def with_certificates(papers, tmp_path):
    text = example(papers, tmp_path)
    text = text.replace("#require_", "require_").replace("#use_", "use_")
    text = "\n".join(x for x in text.splitlines() if not x.startswith("password_file"))
    with running(Mosquitto(tmp_path, text + "\n")) as broker:
        yield broker


async def federate(place, intrude) -> Stats:
    """Ten rounds of three clients, all of whom wait in the first for who tries something."""
    audit, stats, server, over = UploadAudit(), Stats(), new_server(), asyncio.Event()
    clients = [new_client(i) for i in range(3)]

    def on_round(mqtt_server):
        audit.record_broadcast(server.newest_broadcast(server.round - 1))

    def patiently(i: int):
        async def train(weights, round):
            await over.wait()
            return trainer(i)(weights, round)

        return train

    async def try_it() -> None:
        try:
            while stats.cohort < 3:
                await asyncio.sleep(0.01)
            await intrude()
            assert (server.round, stats.present) == (0, 3)
        finally:
            over.set()

    policy = RoundPolicy(Sample(size=3), min_clients=3, rounds=10, grace=0.3, deadline=60)
    serving = serve(server, place("server"), policy, stats=stats, on_round=on_round, linger=5.0)
    tasks = [serving, try_it()]
    for i, client in enumerate(clients):
        keep = lambda sent, i=i: audit.record_upload(i, sent.data)  # noqa: E731
        tasks.append(join(client, patiently(i), place(str(i)), on_upload=keep))
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    audit.check(server, clients)
    return stats


async def publish_as(broker: Broker, *messages: tuple[str, bytes]) -> None:
    """Publish, and hear nothing of it, nor anything else that is not for us."""
    async with aiomqtt.Client(
        broker.host,
        broker.port,
        username=broker.username,
        password=broker.password,
        tls_context=broker.tls_context(),
        protocol=aiomqtt.ProtocolVersion.V5,
    ) as client:
        for topic, payload in messages:
            await client.publish(topic, payload, qos=1, retain=True)
        await client.subscribe(f"fedtern/{FEDERATION}/#")
        allowed = {TOPICS.round, TOPICS.about, TOPICS.of("down", broker.username or "")}
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                async for message in client.messages:
                    assert str(message.topic) in allowed
                    assert (str(message.topic), message.payload) not in messages


def forged() -> bytes:
    """An upload to the first round that nothing but the topic's name tells from client 1's own."""
    client = new_client(1)
    return write_upload(1, client.send(trainer(1)(client.weights.copy(), 0)).data)


FORGERIES = [
    (TOPICS.of("up", 1), forged()),
    (TOPICS.of("alive", 1), b""),
    (TOPICS.of("ask", 0), b"\0"),
    (TOPICS.of("down", 0), b"\0\1\0noise"),
    (TOPICS.round, b"noise"),
    (TOPICS.about, b"noise"),
]


def unharmed(stats: Stats, log: str) -> None:
    assert stats.refused == dict.fromkeys(stats.refused, 0)
    assert stats.catch_ups == 0
    assert stats.counted == 30
    assert "ignored" not in log


def by_password(papers: Path, port: int):
    def place(name: str) -> Broker:
        own = {"username": name, "password": f"secret-{name}"}
        return Broker("127.0.0.1", port, tls=True, ca=papers / "ca.crt", **own)

    return place


def test_passwords_let_the_right_ones_in_and_keep_them_to_their_own_topics(
    papers, with_passwords, caplog
):
    place = by_password(papers, with_passwords.port)

    async def intrude() -> None:
        with pytest.raises(BrokerError, match="refused the connection"):
            await join(new_client(1), trainer(1), replace(place("1"), password="guessed"))
        with pytest.raises(BrokerError, match="refused the connection"):
            await join(new_client(1), trainer(1), replace(place("1"), username=None, password=None))
        with pytest.raises(BrokerError, match=r"Publishing to .* denied"):
            await join(new_client(1), trainer(1), place("2"))
        await publish_as(place("2"), *FORGERIES)

    unharmed(asyncio.run(federate(place, intrude)), caplog.text)


@pytest.mark.parametrize("message", FORGERIES, ids=lambda message: message[0].split("/")[2])
def test_without_the_access_list_each_forgery_would_be_noticed(papers, tmp_path, caplog, message):
    """Or the test above would show nothing."""
    lax = tmp_path / "lax"
    lax.write_text((papers / "acl").read_text() + "pattern write #\n")
    text = example(papers, tmp_path).replace(f"{papers}/acl", str(lax))
    with running(Mosquitto(tmp_path, text)) as broker:
        place = by_password(papers, broker.port)

        async def intrude() -> None:
            await publish_as(place("2"), message)

        with pytest.raises(AssertionError):
            unharmed(asyncio.run(federate(place, intrude)), caplog.text)


def test_certificates_say_who_somebody_is(papers, with_certificates, caplog):
    def place(name: str) -> Broker:
        return Broker(
            "127.0.0.1",
            with_certificates.port,
            tls=True,
            ca=papers / "ca.crt",
            certificate=papers / f"{name}.crt",
            key=papers / f"{name}.key",
        )

    async def intrude() -> None:
        without = replace(place("1"), certificate=None, key=None)
        with pytest.raises((aiomqtt.MqttError, ssl.SSLError, OSError)):
            await publish_as(without, (TOPICS.of("up", 1), forged()))
        # That the name is given does not help: the certificate says who it is.
        await publish_as(replace(place("2"), username="1"), *FORGERIES)

    unharmed(asyncio.run(federate(place, intrude)), caplog.text)


def test_a_broker_that_cannot_prove_who_it_is_gets_nothing(papers, with_passwords):
    place = Broker("127.0.0.1", with_passwords.port, username="1", password="secret-1", tls=True)
    with pytest.raises(BrokerError, match="is not trusted"):
        asyncio.run(asyncio.wait_for(join(new_client(1), trainer(1), place), 10))


def test_certificates_that_cannot_be_read_are_named():
    place = Broker("127.0.0.1", 1, tls=True, ca=Path("nowhere.crt"))
    with pytest.raises(BrokerError, match=r"nowhere\.crt"):
        asyncio.run(asyncio.wait_for(join(new_client(1), trainer(1), place), 10))


@pytest.mark.parametrize("url", ["http://host", "mqtt://", "mqtt://host/topic"])
def test_what_is_no_broker_is_refused(url):
    with pytest.raises(ValueError, match="a broker URL has the form"):
        Broker.parse(url)


@pytest.mark.skipif(os.name == "nt", reason="directories have no such modes there")
def test_what_a_store_holds_is_its_owners_only(tmp_path):
    with Store(tmp_path / "some" / "where") as store:
        assert store.path.stat().st_mode & 0o777 == 0o700


def test_each_client_on_a_machine_has_a_directory_of_its_own():
    unit = (EXAMPLES / "fedtern-join.service").read_text()
    (own,) = re.findall(r"^StateDirectory=(.*)$", unit, re.MULTILINE)
    assert own.endswith("%i")
    assert set(re.findall(r"/var/lib/([^/\s]*)", unit)) == {own}
