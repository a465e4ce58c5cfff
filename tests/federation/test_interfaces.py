"""Plain and durable servers and clients satisfy the interfaces that transports use."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from fedtern import Client, DurableClient, DurableServer, Server, Store, stc
from fedtern.federation.interfaces import ClientLike, ServerLike


def members(interface: type) -> set[str]:
    return {name for name in vars(interface) if not name.startswith("_")}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def new_server() -> Server:
    return Server(np.zeros(10), stc(), federation="wards")


def new_client() -> Client:
    return Client(3, stc(), weights=np.zeros(10), federation="wards")


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_a_server_has_every_member_of_server_like(durable, store):
    server = DurableServer(new_server(), store) if durable else new_server()
    assert members(ServerLike) - set(dir(server)) == set()
    assert server.federation == "wards"
    assert server.terms.layout.size == 10


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_a_client_has_every_member_of_client_like(durable, store):
    client = DurableClient(new_client(), store) if durable else new_client()
    assert members(ClientLike) - set(dir(client)) == set()
    assert client.federation == "wards"
    assert client.terms.layout.size == 10


@pytest.mark.parametrize(
    ("interface", "implementations"),
    [(ServerLike, (Server, DurableServer)), (ClientLike, (Client, DurableClient))],
    ids=["server", "client"],
)
def test_methods_have_the_parameters_of_the_interface(interface, implementations):
    for name, method in vars(interface).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        expected = list(inspect.signature(method).parameters)
        for implementation in implementations:
            found = list(inspect.signature(getattr(implementation, name)).parameters)
            assert found == expected, f"{implementation.__name__}.{name}"
