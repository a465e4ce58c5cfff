"""Decoders raise only decode errors, and allocate no more memory than the layout requires."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import numpy as np
import pytest

from checks import CODECS, sample_update
from core.fuzz.decoders import fuzz, mutate
from fedtern import Client, DecodeError, Layout, Server, stc
from fedtern.core.layout import Vector
from fedtern.core.protocol.catchup import CatchUpBuilder


def test_decoders_raise_only_decode_errors(capsys):
    fuzz(600, seed=1, report=print)


@pytest.mark.slow
def test_decoders_raise_only_decode_errors_for_many_messages(capsys):
    fuzz(16_000, seed=2, report=print)


@pytest.mark.parametrize("name", CODECS)
def test_decoders_allocate_in_proportion_to_message_and_layout(name):
    layout = Layout.flat(40_000)
    rng = np.random.default_rng(5)
    seeds = [CODECS[name].encode(sample_update(name, layout, rng), layout) for _ in range(4)]
    CODECS[name].decode(seeds[0], layout)  # compile the kernels
    for _ in range(150):
        data = mutate(seeds[int(rng.integers(4))], seeds, rng)
        tracemalloc.start()
        with suppress(DecodeError):
            CODECS[name].decode(data, layout)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 40 * len(data) + 40 * layout.size + 50_000


def test_a_replay_is_decoded_one_broadcast_at_a_time():
    """Short broadcasts can decode to much memory, if all are decoded at once."""
    method = stc(p_up=0.3, p_down=0.3)
    layout = Layout.flat(20_000)
    server = Server(np.zeros(20_000), method, layout)
    sender = Client(0, method, layout, np.zeros(20_000))
    away = Client(1, method, layout, np.zeros(20_000))
    broadcasts = []
    for _ in range(12):
        server.receive(0, sender.send(sender.weights + random_delta(20_000, server.round)).data)
        broadcasts.append(server.finish_round())
        sender.receive(broadcasts[-1].data)
    builder = CatchUpBuilder(0, server.round, False, server.terms)
    replay = builder.replay([b.data for b in broadcasts], broadcasts[0].header.stamp)
    away.receive(broadcasts[0].data)  # compile the kernels
    tracemalloc.start()
    assert away.receive(replay).is_new
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert away.weights.tobytes() == server.weights.tobytes()
    assert peak < 3 * len(replay) + 60 * layout.size


def random_delta(size: int, seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)
