"""A deployment of SuperLink and SuperNodes: processes, sockets, certificates and kills."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: install the extra flower")

from certificates import Certificates, node_key
from direct import DirectoryClientState, read_client, read_spec
from processes import Processes

from fedtern import DurableServer, Server, Store
from fedtern.report import load_run, write_report

pytestmark = pytest.mark.slow
APP = Path(__file__).parent / "bowl"
ROUNDS = 6
NODES = 3


def client_state(node_directory: Path) -> DirectoryClientState:
    (path,) = node_directory.glob("federation-*")
    return DirectoryClientState(path)


def read_server(store: Path, node_directory: Path) -> tuple[int, np.ndarray]:
    """Return round and weights of the server in a store; a node's state has the spec."""
    spec = read_spec(client_state(node_directory))
    with Store(store) as opened:
        empty = np.zeros(spec.layout.size)
        made = Server(empty, spec.method, spec.layout, federation=spec.federation)
        server = DurableServer(made, opened)
        assert server.recovered
        return server.round, np.array(server.weights)


def metrics_of(log: str, name: str) -> list[int]:
    return [int(n) for n in re.findall(rf"Aggregated MetricRecord:.*'{name}': (\d+)", log)]


def test_federation_continues_after_kills_of_a_node_and_the_superlink(tmp_path):
    store = tmp_path / "federation"
    with Processes(tmp_path) as here:
        here.superlink()
        for number in range(NODES):
            here.supernode(number, NODES)
        here.run(APP, "run", store=str(store), rounds=ROUNDS, nodes=NODES)
        here.wait("round 2", lambda: "[ROUND 2/6]" in here.said("run"), 240)
        here.kill("supernode-1")
        here.supernode(1, NODES)
        here.wait("round 4", lambda: "[ROUND 4/6]" in here.said("run"), 240)
        # With its apps, as a service manager does: an app that was sending would retry forever.
        here.kill("superlink")
        assert metrics_of(here.said("run"), "uploads-counted")[1] == NODES - 1
        assert "continuing without node" in here.said("run")

        here.superlink()
        again = here.run(APP, "again", store=str(store), rounds=ROUNDS, nodes=NODES)
        here.wait("the end", lambda: again.poll() is not None, 300)
        log = here.said("again")
        assert "federation continues after round 3" in log
        assert "Final results" in log
        traffic = here.wire_bytes()["network-traffic"]

    assert metrics_of(log, "whole-models-sent")[-1] == NODES
    reached, weights = read_server(store, tmp_path / "state-0")
    assert reached == ROUNDS
    assert np.abs(weights).max() > 0
    for number in range(NODES):
        round, node_weights = read_client(client_state(tmp_path / f"state-{number}"))
        assert round == ROUNDS
        assert np.array_equal(node_weights, weights)

    run = load_run(store)
    assert [e["round"] for e in run.evaluations] == list(range(1, ROUNDS + 1))
    assert run.last["wire_up_bytes"] > traffic["inbound-bytes"] > run.last["up_bytes"] > 0
    assert run.last["wire_down_bytes"] > traffic["outbound-bytes"] > 0
    page = write_report([store], tmp_path / "report.html").read_text()
    assert "<caption>On the wire" in page


def test_only_nodes_with_a_registered_key_and_the_right_authority_connect(tmp_path):
    certificates = Certificates.make(tmp_path / "certificates")
    other = Certificates.make(tmp_path / "other")
    keys = [node_key(tmp_path / f"key-{number}") for number in range(3)]
    with Processes(tmp_path, certificates) as here:
        here.superlink()
        for key in keys[:2]:
            here.flwr("supernode", "register", f"{key}.pub", "here")
        here.supernode(0, 2, keys[0])
        here.supernode(1, 2, keys[1], root=str(other.authority))  # does not trust the SuperLink
        here.supernode(2, 2, keys[2])  # has no registered key
        run = here.run(APP, "run", rounds=2, nodes=1)
        here.wait("the end", lambda: run.poll() is not None, 300)
        log = here.said("run")
        exit_codes = [here.running[f"supernode-{n}"].poll() for n in (1, 2)]
        untrusting = here.said("supernode-1")
        unknown = here.said("supernode-2")
        nodes = json.loads(here.flwr("supernode", "list", "here", "--format", "json"))

    assert metrics_of(log, "uploads-counted") == [1, 1]
    online = [n for n in nodes["nodes"] if n["status"] == "online"]
    assert len(online) == 1
    assert not (tmp_path / "state-1").exists()
    assert not (tmp_path / "state-2").exists()
    assert "CERTIFICATE_VERIFY_FAILED" in untrusting
    assert "Failed to activate SuperNode" in unknown
    assert None not in exit_codes
    assert 0 not in exit_codes
