"""Bytes that Flower itself has counted between the nodes of a run and the SuperLink."""

from __future__ import annotations

from logging import DEBUG
from typing import Any, NamedTuple

from flwr.common import log
from flwr.serverapp import Grid


class WireBytes(NamedTuple):
    """Bytes of all nodes since a run started, including Flower's own messages."""

    up: int
    down: int


def is_simulated(grid: Grid) -> bool:
    """Return whether the nodes of a grid are simulated, so that there is no network."""
    from flwr.superlink.grid import InMemoryGrid

    return isinstance(grid, InMemoryGrid)


def count_wire(grid: Grid) -> WireBytes | None:
    """Ask the SuperLink for the bytes of this run.

    Apps have no API for this. The function sends the request of ``flwr list`` to the address from
    which the app gets its messages. The SuperLink answers it unless accounts have to log in.

    Returns:
        The bytes; None in a simulation, or if the SuperLink does not answer.

    """
    # Flower has no public name for the address and the certificate of a grid.
    address = getattr(grid, "_addr", None)
    if is_simulated(grid) or not isinstance(address, str):
        return None
    try:
        return _list_run(grid, address)
    except Exception as error:  # of any kind: a round must not fail because of a statistic
        log(DEBUG, "fedtern: the SuperLink did not return its byte counters: %s", error)
        return None


def _list_run(grid: Any, address: str) -> WireBytes:
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
        run_id = grid.run.run_id
        run = client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id]
    finally:
        client.close()
    return WireBytes(up=run.bytes_recv, down=run.bytes_sent)
