"""A federation with durable state, whose process is killed at random times."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedtern import (
    Client,
    DuplicateUpload,
    DurableClient,
    DurableServer,
    Layout,
    Method,
    Server,
    Store,
    stc,
)
from fedtern.core.layout import Carried

CARRIED = (Carried("mean", (20,), "float32"), Carried("mask", (3,), "bool", "latest"))
LAYOUT = Layout(("a", "b"), ((30, 40), (40,)))
CARRIED_LAYOUT = Layout(LAYOUT.names, LAYOUT.shapes, CARRIED)
METHOD = stc(p_up=0.02, p_down=0.02)
STEPS = stc(p_up=0.02, p_down=0.02, codec="adaptive", magnitudes="powers")
START = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
CLIENTS = 4
ROUNDS = 60
KILLS = 60


def train(client) -> np.ndarray:
    """Return new weights that depend only on client, round and weights."""
    rng = np.random.default_rng([client.client.client_id, client.round])
    goal = rng.standard_normal(LAYOUT.size).astype(np.float32)
    return client.weights + np.float32(0.1) * (goal - client.weights)


def federate(path: Path, method: Method = METHOD) -> str:
    """Continue the federation to its end and return a digest of all final states."""
    server = DurableServer(Server(START, method, LAYOUT), Store(path / "server", log_bytes=2000))
    clients = [
        DurableClient(Client(i, method, LAYOUT, START), Store(path / f"client{i}"))
        for i in range(CLIENTS)
    ]
    while server.round < ROUNDS:
        for i in np.random.default_rng(server.round).choice(CLIENTS, 2, replace=False).tolist():
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            data = clients[i].pending or clients[i].send(train(clients[i])).data
            with suppress(DuplicateUpload):  # the upload arrived before the kill
                server.receive(i, data)
        server.finish_round()
    digest = hashlib.sha256(server.server.snapshot().to_bytes())
    for i, client in enumerate(clients):
        client.receive(server.catch_up(i, client.round).data)
        assert client.weights.tobytes() == server.weights.tobytes()
        digest.update(client.client.snapshot().to_bytes())
    for durable in (server, *clients):
        durable.store.close()
    return digest.hexdigest()


def federate_in_steps(path: Path) -> str:
    """Like ``federate``, with broadcasts whose sums are exact."""
    return federate(path, STEPS)


def statistics(i: int, round: int) -> dict[str, np.ndarray]:
    """Return carried tensors that depend only on client and round."""
    rng = np.random.default_rng([i, round])
    return {"mean": rng.standard_normal(20).astype(np.float32), "mask": rng.random(3) < 0.5}


def federate_externally(path: Path) -> str:
    """Like ``federate``, with carried tensors, and aggregated outside of the server.

    The median of the uploads and one more delta depend on numbers that are not in the store. A
    recovery can only repeat them from the log.
    """
    layout = CARRIED_LAYOUT
    first = statistics(9, 0)

    def new_client(i: int) -> Client:
        return Client(i, METHOD, layout, START, carried=first, initial="int8")

    server = DurableServer(
        Server(START, METHOD, layout, carried=first, initial="int8"),
        Store(path / "server", log_bytes=20_000),
    )
    clients = [DurableClient(new_client(i), Store(path / f"client{i}")) for i in range(CLIENTS)]
    while server.round < ROUNDS // 2:
        rng = np.random.default_rng([7, server.round])
        for i in sorted(rng.choice(CLIENTS, 3, replace=False).tolist()):
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            values = statistics(i, server.round)
            data = clients[i].pending or clients[i].send(train(clients[i]), carried=values).data
            with suppress(DuplicateUpload):
                server.receive(i, data, num_examples=i + 0.5)
        uploads = server.uploads()
        counted = [upload.client_id for upload in uploads][: 2 + server.round % 2]
        if server.round % 3 == 0:
            server.finish_round(counted=counted)
            continue
        median = np.median([upload.update.to_dense() for upload in uploads], axis=0)
        delta = median + rng.standard_normal(layout.size) / 100
        carried = statistics(8, server.round) if server.round % 3 == 1 else None
        server.finish_round([0, 1, 2, 3], delta=delta, carried=carried, counted=counted)
    digest = hashlib.sha256(server.server.snapshot().to_bytes())
    for i, client in enumerate(clients):
        client.receive(server.catch_up(i, client.round).data)
        assert client.weights.tobytes() == server.weights.tobytes()
        assert client.carried["mean"].tobytes() == server.carried["mean"].tobytes()
        digest.update(client.client.snapshot().to_bytes())
    for durable in (server, *clients):
        durable.store.close()
    return digest.hexdigest()


def run_in_child(path: Path, kill_after: float | None, federate: Callable[[Path], str]) -> bool:
    """Run the federation in a child process and return whether it was killed.

    Args:
        path: the directory of the federation.
        federate: continues the federation to its end.
        kill_after: seconds until the process is killed; None to let it finish.

    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            (path / "digest").write_text(federate(path))
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, "the federation failed after a recovery"
    return killed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize(
    "federate",
    [
        federate,
        pytest.param(federate_in_steps, marks=pytest.mark.slow),
        pytest.param(federate_externally, marks=pytest.mark.slow),
    ],
)
def test_a_federation_that_is_killed_repeatedly_ends_in_the_same_state(tmp_path, federate):
    reference = tmp_path / "reference"
    reference.mkdir()
    start = time.perf_counter()
    expected = federate(reference)
    duration = time.perf_counter() - start
    rng = np.random.default_rng(1)
    kills = 0
    runs = 0
    while kills < KILLS:
        path = tmp_path / f"run{runs}"
        path.mkdir()
        for _ in range(12):
            if not run_in_child(path, float(rng.uniform(0, duration / 2)), federate):
                break
            kills += 1
        else:
            run_in_child(path, None, federate)
        assert (path / "digest").read_text() == expected
        shutil.rmtree(path)
        runs += 1
    print(f"\n{kills} kills in {runs} runs; each ended in {expected[:16]}…")
