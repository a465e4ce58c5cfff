"""Damaged and hostile messages: errors of two kinds only, and no change of state."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
from secure_rounds import PHASES, Round, make_context

from fedtern import DecodeError, RemoteProtocolError
from fedtern.core.inspection import inspect

sys.path.insert(0, str(Path(__file__).parents[2] / "core" / "fuzz"))

from decoders import mutate, reseal

MESSAGES = 150


def damaged(seeds: list[bytes], seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(MESSAGES):
        data = mutate(seeds[int(rng.integers(len(seeds)))], seeds, rng)
        found.append(reseal(data) if rng.random() < 0.9 and len(data) > 4 else data)
    return found


@pytest.mark.parametrize("phase", range(4))
def test_a_server_refuses_damaged_messages_and_does_not_change(phase):
    done = Round(4, make_context("leader"))
    done.run()
    round = Round(4, make_context("leader"))
    round.run(PHASES[:phase])
    seeds = [data for sent in done.sent.values() for data in sent.values()]
    before = copy.deepcopy(vars(round.server))
    accepted = 0
    for data in damaged(seeds, phase):
        try:
            round.server.receive(11, data)
        except (DecodeError, RemoteProtocolError):
            after = vars(round.server)
            assert after["awaited"] == before["awaited"]
            assert after["state"] == before["state"]
            assert (after["_sum"] == before["_sum"]).all()
            assert set(after["_advertised"]) == set(before["_advertised"])
            assert after["_sealed"] == before["_sealed"]
            assert after["_revealed"] == before["_revealed"]
        else:  # a well-formed message with other contents
            accepted += 1
            vars(round.server).update(copy.deepcopy(before))
    assert accepted < MESSAGES


@pytest.mark.parametrize("phase", range(1, 4))
def test_a_client_refuses_damaged_messages_and_does_not_change(phase):
    round = Round(4, make_context("leader"))
    round.run(PHASES[:phase])
    client = round.clients[11]
    state = client.state
    done = Round(4, make_context("leader"))
    done.run()
    seeds = [data for sent in done.received.values() for data in sent.values()]
    before = dict(vars(client))
    refused = 0
    for data in damaged(seeds, phase):
        try:
            client.receive(data)
        except (DecodeError, RemoteProtocolError):
            refused += 1
            assert client.state is state
            assert all(vars(client)[name] is before[name] for name in before)
        else:
            vars(client).update(before)
    assert refused > MESSAGES / 2


def test_inspect_reads_every_message_and_refuses_damaged_ones():
    round = Round(4)
    round.run()
    seeds = [data for sent in round.sent.values() for data in sent.values()]
    assert {inspect(data).facts["step"] for data in seeds} == {
        "keys",
        "shares",
        "masked upload",
        "revealed shares",
    }
    for data in seeds:
        assert sum(size for _, size in inspect(data).parts) == len(data)
    for data in damaged(seeds, 9):
        try:
            inspect(data)
        except DecodeError:
            continue
