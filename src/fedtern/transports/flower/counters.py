"""What Flower itself has counted: the bytes that a run's nodes and the SuperLink exchanged."""

from __future__ import annotations

from logging import DEBUG
from typing import Any, NamedTuple

from flwr.common import log
from flwr.serverapp import Grid


class WireBytes(NamedTuple):
    """Bytes of all nodes together, Flower's own messages included, since a run began."""

    up: int
    down: int


def simulated(grid: Grid) -> bool:
    """Whether the nodes of a grid are those of a simulation, between which there is no wire."""
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


def count_wire(grid: Grid) -> WireBytes | None:
    """What the SuperLink says of this run; None in a simulation, or where it will not say.

    An app has no right of its own to ask: this is what ``flwr list`` does, at the address that
    the app has its messages from, and it is answered where accounts need not log in.
    """
    address = getattr(grid, "_addr", None)
    if simulated(grid) or not isinstance(address, str):
        return None
    try:
        return _ask(grid, address)
    except Exception as error:  # whatever Flower raises, a round must not end for a statistic
        log(DEBUG, "fedtern: the SuperLink does not tell what it has counted: %s", error)
        return None


def _ask(grid: Any, address: str) -> WireBytes:
    from flwr.proto.control_pb2 import ListRunsRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    client = ControlHttpClient.from_server_address(
        server_address=address,
        insecure=grid._insecure,
        root_certificates=grid._cert,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        run = grid.run.run_id
        found = client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run]
    finally:
        client.close()
    return WireBytes(up=found.bytes_recv, down=found.bytes_sent)
