"""A SuperLink and SuperNodes as they are deployed: processes, sockets, certificates, kills."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: pip install 'fedtern[flower]'")

from certificates import Certificates, node_key
from direct import DirectoryClientState, FederationSpec
from processes import Processes

from fedtern import DurableServer, Server, Store
from fedtern.report import load_run, write_report

pytestmark = pytest.mark.slow
APP = Path(__file__).parent / "bowl"
ROUNDS, NODES = 6, 3


def charter_of(home: DirectoryClientState) -> tuple[FederationSpec, int]:
    noted = json.loads(home.note("membership") or "")
    return FederationSpec.from_json(noted["charter"]), noted["client"]


def node_weights(state: Path) -> tuple[int, np.ndarray]:
    (path,) = state.glob("federation-*")
    home = DirectoryClientState(path)
    charter, number = charter_of(home)
    with home.alone(), home.client(lambda: charter.new_client(number)) as client:
        return client.round, np.array(client.weights)


def server_weights(store: Path, state: Path) -> tuple[int, np.ndarray]:
    (path,) = state.glob("federation-*")
    charter, _ = charter_of(DirectoryClientState(path))
    with Store(store) as opened:
        empty = np.zeros(charter.layout.size)
        made = Server(empty, charter.method, charter.layout, federation=charter.federation)
        server = DurableServer(made, opened)
        assert server.recovered
        return server.round, np.array(server.weights)


def metrics_of(log: str, name: str) -> list[int]:
    return [int(n) for n in re.findall(rf"Aggregated MetricRecord:.*'{name}': (\d+)", log)]


def test_a_federation_survives_the_death_of_a_node_and_of_the_superlink(tmp_path):
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
        # With its apps, as a service manager does: one that was sending would try again for ever.
        here.kill("superlink")
        assert metrics_of(here.said("run"), "uploads-counted")[1] == NODES - 1
        assert "going on without node" in here.said("run")

        here.superlink()
        again = here.run(APP, "again", store=str(store), rounds=ROUNDS, nodes=NODES)
        here.wait("the end", lambda: again.poll() is not None, 300)
        log = here.said("again")
        assert "federation goes on after round 3" in log
        assert "Final results" in log
        traffic = here.wire_bytes()["network-traffic"]

    assert metrics_of(log, "whole-models-sent")[-1] == NODES  # each of them once
    reached, weights = server_weights(store, tmp_path / "state-0")
    assert reached == ROUNDS
    assert np.abs(weights).max() > 0
    for number in range(NODES):
        at, held = node_weights(tmp_path / f"state-{number}")
        assert at == ROUNDS
        assert np.array_equal(held, weights)

    run = load_run(store)
    assert [e["round"] for e in run.evaluations] == list(range(1, ROUNDS + 1))
    assert run.last["wire_up_bytes"] > traffic["inbound-bytes"] > run.last["up_bytes"] > 0
    assert run.last["wire_down_bytes"] > traffic["outbound-bytes"] > 0
    page = write_report([store], tmp_path / "report.html").read_text()
    assert "<caption>On the wire" in page


def test_only_nodes_with_a_registered_key_and_the_right_authority_get_in(tmp_path):
    certificates = Certificates.make(tmp_path / "certificates")
    other = Certificates.make(tmp_path / "other")
    keys = [node_key(tmp_path / f"key-{number}") for number in range(3)]
    with Processes(tmp_path, certificates) as here:
        here.superlink()
        for key in keys[:2]:
            here.flwr("supernode", "register", f"{key}.pub", "here")
        here.supernode(0, 2, keys[0])
        here.supernode(1, 2, keys[1], root=str(other.authority))  # does not trust the SuperLink
        here.supernode(2, 2, keys[2])  # the SuperLink does not know it
        run = here.run(APP, "run", rounds=2, nodes=1)
        here.wait("the end", lambda: run.poll() is not None, 300)
        said = here.said("run")
        turned_away = [here.running[f"supernode-{n}"].poll() for n in (1, 2)]
        untrusting, unknown = here.said("supernode-1"), here.said("supernode-2")
        nodes = json.loads(here.flwr("supernode", "list", "here", "--format", "json"))

    assert metrics_of(said, "uploads-counted") == [1, 1]
    online = [n for n in nodes["nodes"] if n["status"] == "online"]
    assert len(online) == 1
    assert not (tmp_path / "state-1").exists()
    assert not (tmp_path / "state-2").exists()
    assert "CERTIFICATE_VERIFY_FAILED" in untrusting
    assert "Failed to activate SuperNode" in unknown
    assert None not in turned_away
    assert 0 not in turned_away
