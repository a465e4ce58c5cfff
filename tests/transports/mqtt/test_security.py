"""The example configuration of the broker: authentication, TLS and the ACL."""

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
ATTACKER = "3"  # a valid account of its own: each account has one connection
NAMES = ("server", "0", "1", "2", ATTACKER)


@pytest.fixture(autouse=True)
def _collected():
    """Collect the sockets of failed handshakes, which the library does not close."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def certify(directory: Path, name: str, common: str, extension: str = "") -> None:
    """Create a key and a certificate as in docs/how-to/mqtt.md."""
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
def credentials(tmp_path_factory) -> Path:
    """Return a directory with all files that the example configuration names."""
    if MOSQUITTO is None or shutil.which("openssl") is None:
        pytest.skip("NO MQTT BROKER (or no openssl): install mosquitto, or this shows nothing")
    directory = tmp_path_factory.mktemp("credentials")
    certify(directory, "ca", "fedtern test")
    certify(directory, "broker", "broker", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in NAMES:
        certify(directory, name, name)
    passwords = directory / "passwords"
    passwords.touch()
    tool = shutil.which("mosquitto_passwd") or "mosquitto_passwd"
    for name in NAMES:
        subprocess.run([tool, "-b", passwords, name, f"secret-{name}"], check=True)
    acl = (EXAMPLES / "acl").read_text()
    (directory / "acl").write_text(acl.replace("fedtern/wards/", f"fedtern/{FEDERATION}/"))
    return directory


def example(credentials: Path, tmp_path: Path) -> str:
    """Return the example configuration with other paths and another port."""
    text = (EXAMPLES / "mosquitto.conf").read_text()
    text = text.replace("/etc/mosquitto/fedtern", str(credentials)).replace(
        "8883", "@PORT@ 127.0.0.1"
    )
    text = text.replace("/var/lib/mosquitto/", f"{tmp_path}/")
    return text + ("user root\n" if os.getuid() == 0 else "")


@pytest.fixture
def with_passwords(credentials, tmp_path):
    with running(Mosquitto(tmp_path, example(credentials, tmp_path))) as broker:
        yield broker


@pytest.fixture
def with_certificates(credentials, tmp_path):
    text = example(credentials, tmp_path)
    text = text.replace("#require_", "require_").replace("#use_", "use_")
    text = "\n".join(x for x in text.splitlines() if not x.startswith("password_file"))
    with running(Mosquitto(tmp_path, text + "\n")) as broker:
        yield broker


async def federate(broker_of, attack) -> Stats:
    """Run ten rounds with three clients, and the attack during the first one."""
    audit = UploadAudit()
    stats = Stats()
    server = new_server()
    over = asyncio.Event()
    clients = [new_client(i) for i in range(3)]

    def on_round(mqtt_server):
        audit.record_broadcast(server.newest_broadcast(server.round - 1))

    def train_after_attack(i: int):
        async def train(weights, round):
            await over.wait()
            return trainer(i)(weights, round)

        return train

    async def run_attack() -> None:
        try:
            while stats.cohort < 3:
                await asyncio.sleep(0.01)
            await attack()
            assert (server.round, stats.present) == (0, 3)
        finally:
            over.set()

    policy = RoundPolicy(Sample(size=3), min_clients=3, rounds=10, grace=0.3, deadline=60)
    serving = serve(server, broker_of("server"), policy, stats=stats, on_round=on_round, linger=5.0)
    tasks = [serving, run_attack()]
    for i, client in enumerate(clients):
        record = lambda sent, i=i: audit.record_upload(i, sent.data)  # noqa: E731
        tasks.append(join(client, train_after_attack(i), broker_of(str(i)), on_upload=record))
    await asyncio.wait_for(asyncio.gather(*tasks), 120)
    audit.check(server, clients)
    return stats


async def publish_as(broker: Broker, *messages: tuple[str, bytes]) -> None:
    """Publish messages, and check that only the topics of this user can be read."""
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


def forged_upload() -> bytes:
    """Return an upload that only the topic distinguishes from one of client 1."""
    client = new_client(1)
    return write_upload(1, client.send(trainer(1)(client.weights.copy(), 0)).data)


FORGED_MESSAGES = [
    (TOPICS.of("up", 1), forged_upload()),
    (TOPICS.of("alive", 1), b""),
    (TOPICS.of("ask", 0), b"\0"),
    (TOPICS.of("down", 0), b"\0\1\0noise"),
    (TOPICS.round, b"noise"),
    (TOPICS.about, b"noise"),
]


def check_no_effect(stats: Stats, log: str) -> None:
    assert stats.refused == dict.fromkeys(stats.refused, 0)
    assert stats.catch_ups == 0
    assert stats.counted == 30
    assert "ignored" not in log


def by_password(credentials: Path, port: int):
    def broker_of(name: str) -> Broker:
        own = {"username": name, "password": f"secret-{name}"}
        return Broker("127.0.0.1", port, tls=True, ca=credentials / "ca.crt", **own)

    return broker_of


def test_with_passwords_clients_can_use_only_their_own_topics(credentials, with_passwords, caplog):
    broker_of = by_password(credentials, with_passwords.port)

    async def attack() -> None:
        with pytest.raises(BrokerError, match="refused the connection"):
            await join(new_client(1), trainer(1), replace(broker_of("1"), password="guessed"))
        with pytest.raises(BrokerError, match="refused the connection"):
            await join(
                new_client(1), trainer(1), replace(broker_of("1"), username=None, password=None)
            )
        with pytest.raises(BrokerError, match=r"Publishing to .* denied"):
            await join(new_client(1), trainer(1), broker_of(ATTACKER))
        await publish_as(broker_of(ATTACKER), *FORGED_MESSAGES)

    check_no_effect(asyncio.run(federate(broker_of, attack)), caplog.text)


@pytest.mark.parametrize("message", FORGED_MESSAGES, ids=lambda message: message[0].split("/")[2])
def test_without_the_acl_each_forged_message_has_an_effect(credentials, tmp_path, caplog, message):
    """Otherwise the tests of the ACL could not fail."""
    permissive = tmp_path / "permissive"
    permissive.write_text((credentials / "acl").read_text() + "pattern write #\n")
    text = example(credentials, tmp_path).replace(f"{credentials}/acl", str(permissive))
    with running(Mosquitto(tmp_path, text)) as broker:
        broker_of = by_password(credentials, broker.port)

        async def attack() -> None:
            await publish_as(broker_of(ATTACKER), message)

        with pytest.raises(AssertionError):
            check_no_effect(asyncio.run(federate(broker_of, attack)), caplog.text)


def test_with_certificates_the_common_name_decides_and_not_the_user_name(
    credentials, with_certificates, caplog
):
    def broker_of(name: str) -> Broker:
        return Broker(
            "127.0.0.1",
            with_certificates.port,
            tls=True,
            ca=credentials / "ca.crt",
            certificate=credentials / f"{name}.crt",
            key=credentials / f"{name}.key",
        )

    async def attack() -> None:
        without = replace(broker_of("1"), certificate=None, key=None)
        with pytest.raises((aiomqtt.MqttError, ssl.SSLError, OSError)):
            await publish_as(without, (TOPICS.of("up", 1), forged_upload()))
        # The broker takes the user from the certificate, not from the user name.
        await publish_as(replace(broker_of(ATTACKER), username="1"), *FORGED_MESSAGES)

    check_no_effect(asyncio.run(federate(broker_of, attack)), caplog.text)


def test_a_broker_with_an_untrusted_certificate_is_refused(credentials, with_passwords):
    place = Broker("127.0.0.1", with_passwords.port, username="1", password="secret-1", tls=True)
    with pytest.raises(BrokerError, match="is not trusted"):
        asyncio.run(asyncio.wait_for(join(new_client(1), trainer(1), place), 10))


def test_an_unreadable_certificate_file_is_named_in_the_error():
    place = Broker("127.0.0.1", 1, tls=True, ca=Path("nowhere.crt"))
    with pytest.raises(BrokerError, match=r"nowhere\.crt"):
        asyncio.run(asyncio.wait_for(join(new_client(1), trainer(1), place), 10))


@pytest.mark.parametrize("url", ["http://host", "mqtt://", "mqtt://host/topic"])
def test_a_url_that_is_not_a_brokers_is_refused(url):
    with pytest.raises(ValueError, match="a broker URL has the form"):
        Broker.parse(url)


@pytest.mark.skipif(os.name == "nt", reason="directories have no such modes there")
def test_a_store_is_readable_only_by_its_owner(tmp_path):
    with Store(tmp_path / "some" / "where") as store:
        assert store.path.stat().st_mode & 0o777 == 0o700


def test_the_systemd_unit_gives_each_client_its_own_directory():
    unit = (EXAMPLES / "fedtern-join.service").read_text()
    (own,) = re.findall(r"^StateDirectory=(.*)$", unit, re.MULTILINE)
    assert own.endswith("%i")
    assert set(re.findall(r"/var/lib/([^/\s]*)", unit)) == {own}
