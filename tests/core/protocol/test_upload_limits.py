"""Uploads that the method cannot make are refused, before they cost time."""

from __future__ import annotations

import time

import numpy as np
import pytest

from checks import LAYOUT, METHODS, pair, trained
from fedtern import Carried, Client, DecodeError, LateUpload, RemoteProtocolError, Server, stc
from fedtern.core.codecs import ProjectedCodec
from fedtern.core.layout import Layout
from fedtern.core.methods import METHODS as BY_NAME
from fedtern.core.methods import Method
from fedtern.core.protocol import Terms, Upload
from fedtern.core.updates import (
    Levels,
    LowRank,
    Masked,
    Projected,
    Signs,
    Sketched,
    Sparse,
    Ternary,
    Update,
)
from fedtern.core.updates.factors import count_right_values, count_values, matrix_shapes


def sealed(server: Server, update: Update, round: int | None = None) -> bytes:
    terms = server.terms
    payload = terms.method.up.codec.encode(update, terms.layout)
    return Upload.seal(server.stamp, server.round if round is None else round, payload, terms)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["normal", "spike", "last", "tiny", "zeros", "equal"])
def test_every_upload_of_a_client_is_within_the_limits_of_its_method(name, kind):
    layout = Layout(("w", "b", "v"), ((40, 30), (30,), (30, 10)))
    method = METHODS[name]
    rng = np.random.default_rng(1)
    deltas = {
        "normal": rng.standard_normal(layout.size),
        "spike": np.where(np.arange(layout.size) == 7, 1e6, 1e-6),
        "last": np.where(np.arange(layout.size) >= layout.size - 60, 1.0, 0.0),
        "tiny": rng.standard_normal(layout.size) * 1e-30,
        "zeros": np.zeros(layout.size),
        "equal": np.full(layout.size, -0.25),
    }
    server = Server(np.zeros(layout.size), method, layout)
    client = Client(0, method, layout, np.zeros(layout.size))
    for _ in range(3):
        data = client.send_delta(deltas[kind]).data
        assert len(data) <= server.terms.max_upload_bytes
        server.receive(0, data)
        client.receive(server.finish_round().data)


@pytest.mark.parametrize("count", [1, 2, 19, 100, 383, 1000])
@pytest.mark.parametrize("codec", ["golomb", "adaptive"])
def test_no_positions_are_longer_than_the_longest_upload(count, codec):
    """Also for fewer non-zeros than the method allows, and at the worst positions."""
    size = 1000
    method = stc(p_up=count / size, codec=codec)
    terms = Terms(Layout.flat(size), method)
    rng = np.random.default_rng(count)
    for fewer in {count, max(count - 1, 1), max(count * 3 // 4, 1), max(count // 2, 1)}:
        for indices in (
            np.arange(size - fewer, size),
            np.arange(fewer),
            np.append(np.arange(fewer - 1), size - 1),
            np.sort(rng.choice(size, fewer, replace=False)),
        ):
            update = Ternary(size, indices, np.ones(fewer, bool), np.float32([1]))
            payload = method.up.codec.encode(update, terms.layout)
            data = Upload.seal(bytes(3), 0, payload, terms)
            assert len(data) <= terms.max_upload_bytes
            assert Upload.open(data, terms).update.indices.size == fewer


def test_an_upload_that_names_every_weight_is_refused_by_its_size():
    size = 10_000
    server = Server(np.zeros(size), stc(p_up=1 / 400))
    update = Ternary(size, np.arange(size), np.ones(size, bool), np.float32([2.0**64]))
    with pytest.raises(RemoteProtocolError, match=r"upload has \d+ bytes, .* at most \d+"):
        server.receive(0, sealed(server, update))
    assert server.uploaded == frozenset()


def lowrank(rank: int, kind: type) -> Update:
    shapes = matrix_shapes(LAYOUT)
    ranks = (rank, -1, rank)
    count = count_values if kind is LowRank else count_right_values
    size = sum(count(shape, r) for shape, r in zip(shapes, ranks, strict=True))
    values = np.zeros(size, np.float32)
    return (
        LowRank(shapes, ranks, values) if kind is LowRank else Projected(shapes, ranks, 1, values)
    )


def whole_levels(steps: int, ends: np.ndarray) -> Levels:
    return Levels(43, np.ones(43, np.int32), np.ones(ends.size, np.float32), ends, steps)


LIES: list[tuple[str, Method, Update, str]] = [
    (
        "one non-zero too many",
        stc(p_up=0.1),
        Ternary(43, np.arange(5), np.ones(5, bool), np.float32([1])),
        "the update has 5 non-zeros, the method sends at most 4",
    ),
    (
        "too many in one tensor",
        stc(p_up=0.1, scope="tensor"),
        Ternary(43, np.arange(3), np.ones(3, bool), np.float32([1, 0, 0]), LAYOUT.ends),
        "tensor 0 has 3 non-zeros, the method sends at most 2",
    ),
    (
        "top-k",
        METHODS["topk"],
        Sparse(43, np.arange(5), np.ones(5, np.float32)),
        "the update has 5 non-zeros, the method sends at most 4",
    ),
    (
        "momentum correction",
        BY_NAME["dgc"](p=0.05, scope="model"),
        Sparse(43, np.arange(11), np.ones(11, np.float32)),
        "the update has 11 non-zeros, the method sends at most 10",
    ),
    (
        "another threshold",
        BY_NAME["strom"](tau=0.5),
        Ternary(43, np.arange(2), np.ones(2, bool), np.float32([0.75])),
        "the update has magnitude 0.75, the method sends 0.5 only",
    ),
    (
        "louder signs",
        METHODS["signsgd"],
        Signs.pack(np.ones(43, bool), 2.0),
        "the update has magnitude 2.0, the method sends 1.0 only",
    ),
    (
        "more levels",
        BY_NAME["qsgd"](levels=4, bucket=16),
        whole_levels(5, np.array([16, 32, 43])),
        "the update has 5 levels, the method sends 4",
    ),
    (
        "other buckets",
        BY_NAME["qsgd"](levels=4, bucket=16),
        whole_levels(4, np.array([22, 43])),
        "the update has 2 segments, the method sends 3 of 16 values",
    ),
    (
        "a finer grid",
        BY_NAME["grid"](step_up=1.0),
        whole_levels(7, LAYOUT.ends),
        "the update has 7 levels, the method sends at most 5",
    ),
    (
        "a wider mask",
        METHODS["structured"],
        Masked(43, 1, np.zeros(9, np.float32)),
        "the update has 9 values of 32 bits, the method sends 10 of 32",
    ),
    (
        "more bits",
        BY_NAME["sketched"](p=0.5, bits=3),
        Sketched(43, 1, 21, 2, np.zeros(32, np.int32), np.zeros(1, np.float32), np.float32([1])),
        "the update has 21 values of 2 bits, the method sends 21 of 3",
    ),
    (
        "a lower rank",
        BY_NAME["powersgd"](rank=1),
        lowrank(0, LowRank),
        "tensor 0 is sent with rank 0, the method sends it with rank 1",
    ),
    (
        "another rank",
        BY_NAME["structured"](rank=1),
        lowrank(0, Projected),
        "tensor 0 is sent with rank 0, the method sends it with rank 1",
    ),
]


@pytest.mark.parametrize(
    ("method", "update", "message"), [x[1:] for x in LIES], ids=[x[0] for x in LIES]
)
def test_updates_that_the_method_does_not_make_are_refused(method, update, message):
    server = Server(np.zeros(43), method, LAYOUT)
    with pytest.raises(RemoteProtocolError, match=f"client 3: {message}") as refused:
        server.receive(3, sealed(server, update))
    assert isinstance(refused.value.__cause__, DecodeError)
    assert server.uploaded == frozenset()


def test_a_high_rank_is_refused_before_it_costs_time():
    layout = Layout(("w",), ((1000, 1000),))
    method = BY_NAME["structured"](rank=2)
    server = Server(np.zeros(layout.size), method, layout)
    update = Projected(((1000, 1000),), (400,), 1, np.ones(400_000, np.float32))
    payload = ProjectedCodec().encode(update, layout)
    data = Upload.seal(server.stamp, 0, payload, server.terms)
    began = time.process_time()
    with pytest.raises(RemoteProtocolError, match="at most"):
        server.receive(0, data)
    assert time.process_time() - began < 0.1  # to compute the product takes seconds


@pytest.mark.parametrize("name", ["stc", "sgd", "powersgd"])
def test_round_history_and_cohort_are_checked_before_the_update_is_decoded(name):
    server, clients = pair(METHODS[name])
    data = clients[0].send(trained(clients[0], 0)).data
    server.finish_round(next_cohort=[1])
    header, _ = Upload.open_header(data, server.terms)
    garbage = b"\xff\xff"  # no codec writes this
    late = Upload.seal(header.stamp, 0, garbage, server.terms)
    with pytest.raises(LateUpload):
        server.receive(0, late)
    other = Upload.seal(b"abc", 1, garbage, server.terms)
    with pytest.raises(RemoteProtocolError, match="history"):
        server.receive(1, other)
    uninvited = Upload.seal(server.stamp, 1, garbage, server.terms)
    with pytest.raises(RemoteProtocolError, match="not in the cohort"):
        server.receive(0, uninvited)
    with pytest.raises(RemoteProtocolError, match=r"expected codec|has 173 bytes, got 2"):
        server.receive(1, uninvited)


def test_carried_tensors_are_part_of_the_longest_upload():
    plain = Terms(Layout.flat(100), stc(p_up=0.1))
    layout = Layout(("w",), ((100,),), carried=(Carried("mean", (50,), "float32"),))
    with_carried = Terms(layout, stc(p_up=0.1))
    assert with_carried.max_upload_bytes == plain.max_upload_bytes + 1 + 200
