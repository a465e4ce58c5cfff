"""Real processes, really killed, at random points of a federation that keeps its state on disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import time
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
    Server,
    Store,
    stc,
)

LAYOUT = Layout(("a", "b"), ((30, 40), (40,)))
METHOD = stc(p_up=0.02, p_down=0.02)
START = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
CLIENTS, ROUNDS, KILLS = 4, 60, 60


def train(client) -> np.ndarray:
    """Deterministic in the client, the round and the weights: a restart learns the same."""
    rng = np.random.default_rng([client.client.client_id, client.round])
    goal = rng.standard_normal(LAYOUT.size).astype(np.float32)
    return client.weights + np.float32(0.1) * (goal - client.weights)


def federate(path: Path) -> str:
    """Run to the end from wherever the stores are; what everybody then knows, as a digest."""
    server = DurableServer(Server(START, METHOD, LAYOUT), Store(path / "server", log_bytes=2000))
    clients = [
        DurableClient(Client(i, METHOD, LAYOUT, START), Store(path / f"client{i}"))
        for i in range(CLIENTS)
    ]
    while server.round < ROUNDS:
        for i in np.random.default_rng(server.round).choice(CLIENTS, 2, replace=False).tolist():
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            data = clients[i].pending or clients[i].send(train(clients[i])).data
            with suppress(DuplicateUpload):  # it had arrived before the kill
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


def in_child(path: Path, life: float | None) -> bool:
    """Run in a process of its own; True if it was killed after ``life`` seconds."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            (path / "digest").write_text(federate(path))
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(code)
    if life is not None:
        time.sleep(life)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, "the federation failed after a recovery"
    return killed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_run_that_is_killed_again_and_again_ends_in_the_same_bytes(tmp_path):
    reference = tmp_path / "reference"
    reference.mkdir()
    begin = time.perf_counter()
    expected = federate(reference)
    whole = time.perf_counter() - begin
    rng = np.random.default_rng(1)
    kills = episodes = 0
    while kills < KILLS:
        path = tmp_path / f"run{episodes}"
        path.mkdir()
        for _ in range(12):
            if not in_child(path, life=float(rng.uniform(0, whole / 2))):
                break
            kills += 1
        else:
            in_child(path, life=None)
        assert (path / "digest").read_text() == expected
        shutil.rmtree(path)
        episodes += 1
    print(f"\n{kills} kills in {episodes} runs; each ended in {expected[:16]}…")
