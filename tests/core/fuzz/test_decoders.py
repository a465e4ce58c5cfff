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


def test_decoders_raise_decode_errors_only(capsys):
    fuzz(600, seed=1, report=print)


@pytest.mark.slow
def test_decoders_raise_decode_errors_only_at_length(capsys):
    fuzz(16_000, seed=2, report=print)


@pytest.mark.parametrize("name", CODECS)
def test_decoders_allocate_by_the_message_and_the_layout(name):
    layout, rng = Layout.flat(40_000), np.random.default_rng(5)
    seeds = [CODECS[name].encode(sample_update(name, layout, rng), layout) for _ in range(4)]
    CODECS[name].decode(seeds[0], layout)  # compiles what has to be compiled
    for _ in range(150):
        data = mutate(seeds[int(rng.integers(4))], seeds, rng)
        tracemalloc.start()
        with suppress(DecodeError):
            CODECS[name].decode(data, layout)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 40 * len(data) + 40 * layout.size + 50_000


def test_a_replay_is_read_one_broadcast_at_a_time():
    """Many short messages that decode to much: never all of it at once."""
    method, layout = stc(p_up=0.3, p_down=0.3), Layout.flat(20_000)
    server = Server(np.zeros(20_000), method, layout)
    sender, away = (Client(i, method, layout, np.zeros(20_000)) for i in (0, 1))
    broadcasts = []
    for _ in range(12):
        server.receive(0, sender.send(sender.weights + rng_vector(20_000, server.round)).data)
        broadcasts.append(server.finish_round())
        sender.receive(broadcasts[-1].data)
    way = CatchUpBuilder(0, server.round, False, server.terms)
    replay = way.replay([b.data for b in broadcasts], broadcasts[0].head.stamp)
    away.receive(broadcasts[0].data)  # compiles what has to be compiled
    tracemalloc.start()
    assert away.receive(replay).is_new
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert away.weights.tobytes() == server.weights.tobytes()
    assert peak < 3 * len(replay) + 60 * layout.size


def rng_vector(size: int, seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)
