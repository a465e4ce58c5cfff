"""Write messages and their decoded contents. Existing entries are never changed.

``v1.json`` has the messages of the first methods:

- ``arrays``: ``hex`` decodes to ``shape`` and ``values``, or to zeros except for ``nonzeros``.
- ``payloads``: updates of the layout; ``adds`` is the result of adding the update to zeros (up to
  the sign of a zero).
- ``federations``: from ``start`` on, the uploads of each round, its broadcast and the weights after
  it; ``away[i]`` takes client 300 from round i - 1 to the end, ``replay`` from round 0.
- ``refused``: arrays and payloads that break a rule.
- ``calls``: cohort notices of the first federation; ``cohort`` is null if all clients may upload to
  ``round``.
- ``refused_calls``: cohort notices of the first federation, at round 0, that break a rule.
- ``carried``: a layout with carried tensors, as name, shape, dtype and rule, and federations of it.
  ``values`` has the carried tensors after each round; bfloat16 values are the bits as integers.
- ``refused_carried``: broadcasts and catch-ups of the first of these federations, for a client at
  round 0 or without weights, that break a rule.
- ``initial``: federations whose initial model is rounded; ``joins[i]`` takes a client without
  weights to round i.
- ``refused_initial``: catch-ups of the first of these federations that break a rule.
- ``initial_replays``: for each of these federations, catch-ups to the rounds 1, 2, … that have all
  broadcasts instead of their sum; ``refused_initial_replays``: such catch-ups that break a rule.

``v1-steps.json`` has adaptive positions and steps:

- ``layouts``: the layouts of the payloads, by name.
- ``position_payloads``: codecs 18, 19 and 20; the update changes ``positions`` by ``changes``.
  ``is_written`` is false if a codec would write the same update in another way.
- ``refused_payloads``: such payloads that break a rule.
- ``exact_federations``: like ``federations``, with the ``parameters`` of ``stc`` and the
  layout "small". ``sums[i]`` has the sum of the updates since round i. ``model`` takes a client
  without weights to the last round, ``middle`` to an earlier one; ``initial`` starts from a
  rounded model.
- ``refused_models``: catch-ups of the first of these federations that break a rule, for a client
  without weights; ``refused_sums``: likewise for a client at round 0.

``v2-catch-ups.json`` has catch-ups of version 2, for ``client``. Each takes a client from round
``since`` of a federation to the end, where it has ``weights``. ``refused_addressed`` has catch-ups
that this client of the first of these federations must refuse at round ``since``.

``v1-updates.json`` has rotated updates, palettes and cosines, and server optimisers:

- ``update_layouts``: the layouts of the payloads, by name.
- ``update_payloads``: codecs 32, 33, 18 around 33, and 34; ``adds`` is the result of adding the
  update to zeros (up to the sign of a zero).
- ``refused_updates``: such payloads of the layout "small" that break a rule.
- ``update_federations``: like ``federations``, of the layout "small".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from checks import CODECS, METHODS, sample_update, trained
from fedtern import Client, Layout, Method, Server, compress, decompress, stc
from fedtern.core.carried import Values
from fedtern.core.codecs import CODECS as BY_ID
from fedtern.core.codecs import (
    AdaptiveCodec,
    BinaryCodec,
    SparseCodec,
    StepsCodec,
    TernaryCodec,
    UpdateSequenceCodec,
)
from fedtern.core.codecs.adaptive import encode_entries
from fedtern.core.codecs.golomb import encode_positions
from fedtern.core.compressors import SparseTernary, TopK
from fedtern.core.envelope import (
    ADDRESSED_CATCH_UP,
    ARRAY,
    BROADCAST,
    CATCH_UP,
    COHORT_NOTICE,
    UPLOAD,
    seal,
)
from fedtern.core.kernels import adaptive as reference
from fedtern.core.layout import Carried
from fedtern.core.protocol import Broadcast, CatchUp, CohortNotice, How
from fedtern.core.protocol.catchup import Addressee, CatchUpBuilder, encode_sum
from fedtern.core.protocol.initial import encode_initial
from fedtern.core.protocol.terms import Terms, initial_stamp
from fedtern.core.updates import Sparse, Steps, Ternary
from fedtern.core.updates.sums import merge_updates
from fedtern.core.wire import varint

HERE = Path(__file__).parent
LAYOUT = Layout(("conv.weight", "conv.bias", "fc.weight"), ((5, 3, 3), (5,), (10, 6)))
CARRIED = (
    Carried("bn.mean", (5,), "float32"),
    Carried("bn.var", (2, 3), "float64"),
    Carried("scale", (4,), "bfloat16"),
    Carried("half", (3,), "float16"),
    Carried("steps", (), "int64"),
    Carried("mask", (3,), "bool", "latest"),
    Carried("none", (0,), "int8"),
)
CARRIED_LAYOUT = Layout(LAYOUT.names, LAYOUT.shapes, CARRIED)
# Client ids that take more than one byte.
AWAY = 300
FAR = 2**40


def floats(values: np.ndarray) -> list[float]:
    """Return float32 values as decimal numbers that are read back to the same bits."""
    return [float(v) for v in values.reshape(-1)]


def arrays() -> list[dict[str, object]]:
    rng = np.random.default_rng(1)
    cases = [(np.array([0, 3, -1, 0.5, -5, 0]), 1 / 3), (np.zeros((2, 2)), 0.5)]
    cases += [(rng.standard_normal((20, 30)), p) for p in (0.01, 0.2, 1.0)]
    cases += [(rng.standard_normal(()), 1.0), (np.zeros((3, 0)), 1.0)]
    cases += [(rng.standard_normal((1000, 300)), p) for p in (1e-3, 1e-4, 1e-5)]
    out: list[dict[str, object]] = []
    for x, p in cases:
        data = compress(x, p)
        values = floats(decompress(data))
        case: dict[str, object] = {"hex": data.hex(), "shape": list(x.shape)}
        if x.size > 1000:
            case["nonzeros"] = [[i, v] for i, v in enumerate(values) if v]
        else:
            case["values"] = values
        out.append(case)
    return out


def payloads() -> list[dict[str, object]]:
    rng = np.random.default_rng(2)
    found = [
        (name, codec, sample_update(name, LAYOUT, rng))
        for name, codec in CODECS.items()
        for _ in range(3)
    ]
    x = rng.standard_normal(LAYOUT.size).astype(np.float32)
    for compressor in (SparseTernary(0.05), SparseTernary(0.03, "tensor"), TopK(0.05)):
        # Five updates of the same positions, so that the keys are nested.
        updates = [compressor.compress(x * scale, LAYOUT, rng) for scale in (1, 2, 4, 8, 16)]
        sequence = merge_updates(updates)
        data = UpdateSequenceCodec().encode(sequence, LAYOUT)
        assert data[1] & 4
        found.append(("series-nested", UpdateSequenceCodec(), sequence))
    return [
        {"name": name, "hex": codec.encode(update, LAYOUT).hex(), "adds": floats(update.to_dense())}
        for name, codec, update in found
    ]


def federation(name: str, method: Method) -> dict[str, object]:
    start = np.random.default_rng(7).standard_normal(LAYOUT.size).astype(np.float32)
    server = Server(start, method, LAYOUT, federation="golden")
    clients = {i: Client(i, method, LAYOUT, start, federation="golden") for i in (0, 1, AWAY, FAR)}
    rounds = []
    broadcasts = []
    for t, cohort in enumerate([[0, 1, AWAY], [0, FAR], [], [1, FAR], [0, 1]]):
        uploads = []
        for i in cohort:
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            data = clients[i].send(trained(clients[i], t)).data
            server.receive(i, data, num_examples=t + 1)
            uploads.append([i, t + 1, data.hex()])
        broadcasts.append(server.finish_round(next_cohort=[1, FAR] if t == 2 else None).data)
        weights = floats(server.weights)
        rounds.append({"uploads": uploads, "broadcast": broadcasts[-1].hex(), "weights": weights})
    builder = CatchUpBuilder(0, server.round, False, server.terms)
    away = [server.catch_up(AWAY, since).data.hex() for since in range(-1, server.round + 1)]
    return {
        "method": name,
        "federation": "golden",
        "terms": server.terms.digest.hex(),
        "start": floats(start),
        "rounds": rounds,
        "away": away,
        "replay": builder.replay(broadcasts, initial_stamp("golden", start)).hex(),
    }


def refused() -> list[dict[str, str]]:
    array = compress(np.array([0, 3, -1, 0.5, -5, 0]), 1 / 3)
    ternary = array[4:-4]

    def changed(at: int, to: int) -> bytes:
        return ternary[:at] + bytes([to]) + ternary[at + 1 :]

    def rewrapped(payload: bytes) -> bytes:
        return seal(ARRAY, array[2:4] + payload)

    broken = {
        "wrong checksum": array[:-1] + b"\0",
        "another version": array[:1] + b"\x24" + array[2:],
        "not a message": b"\0" + array[1:],
        "ends early": rewrapped(ternary[:-1]),
        "bytes left over": rewrapped(ternary + b"\0"),
        "more positions than parameters": rewrapped(changed(1, 7)),
        "a number not in its shortest form": rewrapped(ternary[:1] + b"\x82\0" + ternary[2:]),
        "mu is zero": rewrapped(ternary[:2] + bytes(4) + ternary[6:]),
        "mu is negative": rewrapped(changed(5, 0xC0)),
        "mu is infinite": rewrapped(ternary[:2] + bytes.fromhex("0000807f") + ternary[6:]),
        "mu is above 2^100": rewrapped(ternary[:2] + bytes.fromhex("01008071") + ternary[6:]),
        "padding of the signs": rewrapped(changed(6, 0x05)),
        "padding of the low bits": rewrapped(changed(7, 0x05)),
        "padding of the quotients": rewrapped(changed(8, 0x0A)),
        "a position past the end": rewrapped(changed(8, 0x0E)),
        "an unknown codec": rewrapped(changed(0, 200)),
        "too many axes": seal(ARRAY, b"\x21" + b"\1" * 33 + ternary),
    }
    return [{"reason": reason, "hex": data.hex()} for reason, data in broken.items()]


def cohort_notices(federation: dict[str, Any]) -> list[dict[str, object]]:
    terms = Terms(LAYOUT, METHODS[federation["method"]])
    stamps = [initial_stamp(federation["federation"], np.float32(federation["start"]))]
    stamps += [bytes.fromhex(round_["broadcast"])[-4:-1] for round_ in federation["rounds"]]
    found: list[tuple[int, list[int] | None]] = [(0, None), (0, []), (0, [0, 1, AWAY])]
    found += [(2, [FAR]), (len(stamps) - 1, None), (len(stamps) - 1, list(range(20)))]
    return [
        {
            "round": round,
            "cohort": cohort,
            "hex": CohortNotice.seal(
                stamps[round], round, None if cohort is None else frozenset(cohort), terms
            ).hex(),
        }
        for round, cohort in found
    ]


def refused_notices(federation: dict[str, Any]) -> list[dict[str, str]]:
    terms = Terms(LAYOUT, METHODS[federation["method"]])
    header = terms.header(
        initial_stamp(federation["federation"], np.float32(federation["start"])), 0
    )
    notice = seal(COHORT_NOTICE, header + b"\1\2\0\1")
    broken = {
        "wrong checksum": notice[:-1] + bytes([notice[-1] ^ 1]),
        "another kind": seal(UPLOAD, header + b"\1\2\0\1"),
        "another layout": seal(COHORT_NOTICE, bytes(3) + header[3:] + b"\0"),
        "another method": seal(COHORT_NOTICE, header[:3] + bytes(3) + header[6:] + b"\0"),
        "another history": seal(COHORT_NOTICE, header[:6] + bytes(3) + header[9:] + b"\0"),
        "neither 0 nor 1": seal(COHORT_NOTICE, header + b"\2"),
        "nobody is named": seal(COHORT_NOTICE, header + b"\1"),
        "more ids than bytes": seal(COHORT_NOTICE, header + b"\1\3\0\1"),
        "a number not in its shortest form": seal(COHORT_NOTICE, header + b"\1\1\x80\0"),
        "bytes left over": seal(COHORT_NOTICE, header + b"\0\0"),
    }
    return [{"reason": reason, "hex": data.hex()} for reason, data in broken.items()]


def carried_values(t: int, i: int) -> dict[str, np.ndarray]:
    """Return what client i has after training in round t; in round 3 little has changed."""
    rng = np.random.default_rng([t, i % 1000])
    var = rng.integers(0, 64, (2, 3)) / 8 if t < 2 else rng.standard_normal((2, 3)) ** 2
    return {
        "bn.mean": rng.standard_normal(5).astype(np.float32),
        "bn.var": var,  # float16 holds the first ones
        "scale": rng.integers(0x3F00, 0x4080, 4).astype(np.uint16),
        "half": rng.standard_normal(3).astype(np.float16),
        "steps": np.array(t * 10**15 + i % 7),
        "mask": rng.random(3) < 0.5,
        "none": np.zeros(0, np.int8),
    }


def listed(values: Values) -> dict[str, list[float]]:
    """Return carried values as numbers; every one is exact in binary64."""
    return {name: array.reshape(-1).tolist() for name, array in values.items()}


def carried_federation(name: str, method: Method) -> dict[str, object]:
    layout = CARRIED_LAYOUT
    start = np.random.default_rng(8).standard_normal(layout.size).astype(np.float32)
    first = carried_values(0, 5)
    server = Server(start, method, layout, carried=first, federation="carried")
    clients = {
        i: Client(i, method, layout, start, carried=first, federation="carried")
        for i in (0, 1, AWAY, FAR)
    }
    rounds = []
    broadcasts = []
    for t, cohort in enumerate([[0, 1, AWAY], [FAR, 0], [], [1, FAR], [0, 1]]):
        uploads = []
        for i in cohort:
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            values = clients[i].carried
            changed = carried_values(t, i)
            values |= {"steps": changed["steps"]} if t == 3 else changed
            data = clients[i].send(trained(clients[i], t), carried=values).data
            server.receive(i, data, num_examples=t + 1)
            uploads.append([i, t + 1, data.hex()])
        broadcasts.append(server.finish_round().data)
        rounds.append(
            {
                "uploads": uploads,
                "broadcast": broadcasts[-1].hex(),
                "weights": floats(server.weights),
                "values": listed(server.carried),
            }
        )
    builder = CatchUpBuilder(0, server.round, False, server.terms)
    stamp = initial_stamp("carried", start, first)
    return {
        "method": name,
        "federation": "carried",
        "terms": server.terms.digest.hex(),
        "start": floats(start),
        "values": listed(first),
        "rounds": rounds,
        "away": [server.catch_up(AWAY, since).data.hex() for since in range(-1, server.round + 1)],
        "replay": builder.replay(broadcasts, stamp).hex(),
    }


def carried() -> dict[str, object]:
    return {
        "layout": {
            "names": LAYOUT.names,
            "shapes": LAYOUT.shapes,
            "carried": [[c.name, c.shape, c.dtype, c.rule] for c in CARRIED],
            "digest": CARRIED_LAYOUT.digest.hex(),
        },
        "federations": [
            carried_federation(name, METHODS[name]) for name in ("stc", "signsgd", "sgd")
        ],
    }


def refused_carried(federation: dict[str, Any]) -> list[dict[str, str]]:
    terms = Terms(CARRIED_LAYOUT, METHODS[federation["method"]])
    start = np.float32(federation["start"])
    stamp = initial_stamp("carried", start, carried_values(0, 5))
    header = terms.header(stamp, 0)
    # Each tensor's encoding and values, raw except for the second.
    values = carried_values(1, 0)
    parts = [
        b"\1" + values["bn.mean"].astype("<f4").tobytes(),
        b"\2" + values["bn.var"].astype("<f2").tobytes(),
        b"\1" + values["scale"].astype("<u2").tobytes(),
        b"\1" + values["half"].astype("<f2").tobytes(),
        b"\1" + values["steps"].astype("<i8").tobytes(),
        b"\1" + values["mask"].tobytes(),
        b"\1",
    ]

    def broadcast(*changes: tuple[int, bytes]) -> bytes:
        section = list(parts)
        for at, part in changes:
            section[at] = part
        return seal(BROADCAST, header + b"\0\0" + b"".join(section) + b"\0")

    def model(section: bytes) -> bytes:
        return seal(CATCH_UP, header + b"\x0a" + section + b"\1" + start.astype("<f4").tobytes())

    huge = np.array([2.0**64 * (1 + 2.0**-20), 0, 0, 0, 0])
    broken = {
        "an unknown encoding": broadcast((0, b"\3" + parts[0][1:])),
        "float16 for an integer": broadcast((4, b"\2\0\0")),
        "float16 for a bfloat16": broadcast((2, b"\2" + parts[2][1:])),
        "float16 for a float16": broadcast((3, b"\2" + parts[3][1:])),
        "a float32 that is NaN": broadcast((0, b"\1" + np.full(5, np.nan, "<f4").tobytes())),
        "a float32 above 2^64": broadcast((0, b"\1" + huge.astype("<f4").tobytes())),
        "a float64 above 2^64": broadcast((1, b"\1" + np.full(6, huge[0], "<f8").tobytes())),
        "a float16 that is infinite": broadcast((1, b"\2" + np.full(6, np.inf, "<f2").tobytes())),
        "a bfloat16 that is infinite": broadcast((2, b"\1" + np.full(4, 0x7F80, "<u2").tobytes())),
        "a boolean of 2": broadcast((5, b"\1\0\2\0")),
        "the section ends early": seal(BROADCAST, header + b"\0\0" + b"".join(parts[:-1])),
        "a model with an unchanged tensor": model(b"".join(parts[:-1]) + b"\0"),
    }
    return [{"reason": reason, "hex": data.hex()} for reason, data in broken.items()]


def initial_federation(name: str, method: Method, precision: Any) -> dict[str, object]:
    given = np.random.default_rng(9).standard_normal(LAYOUT.size).astype(np.float32)
    server = Server(given, method, LAYOUT, initial=precision, federation="initial")
    start = floats(server.weights)
    client = Client(AWAY, method, LAYOUT, given, initial=precision, federation="initial")
    joins = [server.catch_up(1, -1)]
    rounds = []
    for t in range(4):
        if t != 2:
            server.receive(AWAY, client.send(trained(client, t)).data)
        data = server.finish_round().data
        client.receive(data)
        rounds.append({"broadcast": data.hex(), "weights": floats(server.weights)})
        joins.append(server.catch_up(1, -1))
    assert joins[0].how is How.START
    return {
        "method": name,
        "precision": precision,
        "federation": "initial",
        "terms": server.terms.digest.hex(),
        "given": floats(given),
        "start": start,
        "rounds": rounds,
        "joins": [join.data.hex() for join in joins],
    }


def initial() -> list[dict[str, object]]:
    return [
        initial_federation(name, METHODS[name], precision)
        for name in ("stc", "signsgd", "sgd")
        for precision in ("float16", "int8")
    ]


def refused_initial(federation: dict[str, Any]) -> list[dict[str, str]]:
    terms = Terms(LAYOUT, METHODS[federation["method"]])
    size = LAYOUT.size
    rows = 5 + 1 + 10

    def join(encoded: bytes, round: int = 0, lag: int = 1, counted: int = 0) -> bytes:
        return seal(
            CATCH_UP, terms.header(b"abc", round) + bytes([8 * lag + 4 * counted + 3]) + encoded
        )

    half = b"\1" + bytes(2 * size)
    scales = np.ones(rows, "<f4").tobytes()
    nothing = b"\6\1\1\0" + bytes(4)  # a sum of one update without entries
    broken = {
        "an unknown encoding": join(b"\3" + half[1:]),
        "no encoding": join(b""),
        "a float16 that is infinite": join(b"\1" + b"\0\x7c" + half[3:]),
        "a float16 that is NaN": join(b"\1" + b"\1\xfc" + half[3:]),
        "a value is missing": join(half[:-2]),
        "a negative scale": join(b"\2\0\0\x80\xbf" + scales[4:] + bytes(size)),
        "a scale above 2^93": join(b"\2\1\0\0\x6e" + scales[4:] + bytes(size)),
        "a scale that is NaN": join(b"\2\0\0\xc0\x7f" + scales[4:] + bytes(size)),
        "a level of -128": join(b"\2" + scales + b"\x80" + bytes(size - 1)),
        "a scale is missing": join(b"\2" + scales[4:] + bytes(size)),
        "a sum at round 0": join(half + nothing),
        "no sum after round 0": join(half, round=1, lag=2),
        "a start from round 0": join(half + nothing, round=1, lag=1),
        "a start from round 1": join(half + nothing, round=1, lag=0),
        "a counted upload": join(half, counted=1),
    }
    return [{"reason": reason, "hex": data.hex()} for reason, data in broken.items()]


def initial_replays(cases: list[dict[str, Any]]) -> list[list[str]]:
    return [_replays_of(case) for case in cases]


def _replays_of(case: dict[str, Any]) -> list[str]:
    terms = Terms(LAYOUT, METHODS[case["method"]])
    encoded = encode_initial(np.float32(case["given"]), LAYOUT, case["precision"])
    assert encoded is not None  # the precision is not exact
    broadcasts = [bytes.fromhex(recorded["broadcast"]) for recorded in case["rounds"]]
    return [
        CatchUpBuilder(-1, round, False, terms)
        .start_with_replay(
            encoded,
            broadcasts[:round],
            Broadcast.open(broadcasts[round - 1], terms).next_stamp,
            {},
        )
        .hex()
        for round in range(1, len(broadcasts) + 1)
    ]


def refused_initial_replays(case: dict[str, Any]) -> list[dict[str, str]]:
    terms = Terms(LAYOUT, METHODS[case["method"]])
    encoded = encode_initial(np.float32(case["given"]), LAYOUT, case["precision"])
    assert encoded is not None  # the precision is not exact
    first, second = (bytes.fromhex(case["rounds"][i]["broadcast"]) for i in (0, 1))
    stamp = Broadcast.open(second, terms).next_stamp
    builder = CatchUpBuilder(-1, 2, False, terms)
    broken = {
        "a round is missing": builder.start_with_replay(encoded, [first], stamp, {}),
        "a round is there twice": builder.start_with_replay(encoded, [first, first], stamp, {}),
        "rounds in another order": builder.start_with_replay(encoded, [second, first], stamp, {}),
        "a round too many": builder.start_with_replay(encoded, [first, second, second], stamp, {}),
        "broadcasts of another history": builder.start_with_replay(
            encoded, [first, second], bytes(3), {}
        ),
    }
    return [{"reason": reason, "hex": data.hex()} for reason, data in broken.items()]


STEPS_LAYOUTS = {
    "mixed": Layout(
        ("conv", "bias", "empty", "fc", "column", "scalar", "row"),
        ((8, 4, 3, 3), (8,), (0, 5), (20, 50), (30, 1), (), (1, 40)),
    ),
    "square": Layout(("w",), ((40, 300),)),
    "wide": Layout(("v", "w", "b"), ((3000,), (2, 70_000), (5,))),
    "narrow": Layout(("w",), ((4, 3),)),
    "vector": Layout(("v",), ((5,),)),
    "small": LAYOUT,
}


def clustered(count: int, layout: Layout, rng: np.random.Generator) -> np.ndarray:
    """Return positions of which some rows and columns of each tensor have many."""
    weights = [
        np.outer(rng.pareto(1, rows) + 0.01, rng.pareto(0.5, size // rows) + 0.01).ravel()
        if rows and size
        else np.zeros(size)
        for rows, size in zip(layout.rows, np.diff(layout.ends, prepend=0), strict=True)
    ]
    chances = np.concatenate([w / max(w.sum(), 1e-9) * w.size for w in weights])
    found = rng.choice(layout.size, count, replace=False, p=chances / chances.sum())
    return np.sort(found).astype(np.int64)


def make_steps(
    indices: np.ndarray,
    magnitudes: np.ndarray,
    layout: Layout,
    rng: np.random.Generator,
    scope: Any,
) -> Steps:
    ends = layout.segments(scope)
    in_use = np.diff(np.searchsorted(indices, ends), prepend=0) > 0
    exponents = np.where(in_use, rng.integers(-24, 23, ends.size), 0)
    steps = (magnitudes * rng.choice([-1, 1], indices.size)).astype(np.int32)
    return Steps(layout.size, indices, steps, exponents, None if scope == "model" else ends)


def steps_payload(steps: Steps, layout: Layout, scope: Any, is_adaptive: bool) -> bytes:
    """Encode steps with a given coding, even if the other one is shorter."""
    data = StepsCodec(scope, adaptive=False).encode(steps, layout)
    if not is_adaptive:
        return data
    magnitudes = np.abs(steps.steps)
    count = steps.indices.size
    width = (steps.largest - 1).bit_length()
    plain = (count * width + 7) // 8 + len(encode_positions(steps.indices, layout.size))
    stream = encode_entries(steps.indices, magnitudes, steps.largest, layout, 10**6)
    assert stream is not None
    return data[: len(data) - plain - 1] + b"\1" + stream


def position_payloads() -> list[dict[str, object]]:
    rng = np.random.default_rng(18)
    out: list[dict[str, object]] = []

    def add(
        name: str, data: bytes, indices: np.ndarray, changes: np.ndarray, written: bytes
    ) -> None:
        out.append(
            {
                "name": f"{name}-{layout_name}-{indices.size}",
                "layout": layout_name,
                "hex": data.hex(),
                "positions": indices.tolist(),
                "changes": [float(change) for change in changes],
                "is_written": data == written,
            }
        )

    for layout_name, counts in {
        "mixed": (0, 1, 30, 400),
        "square": (1, 60, 1500),
        "wide": (1, 40, 600),
        "narrow": (0, 7, 12),
        "vector": (2, 5),
    }.items():
        layout = STEPS_LAYOUTS[layout_name]
        for count in counts:
            indices = clustered(count, layout, rng)
            signs = rng.random(count) < 0.5
            for scope in ("model", "tensor"):
                ends = layout.segments(scope)
                in_use = np.diff(np.searchsorted(indices, ends), prepend=0) > 0
                mus = np.where(in_use, rng.random(ends.size) + 0.5, 0).astype(np.float32)
                of_tensor = None if scope == "model" else ends
                ternary = Ternary(layout.size, indices, signs, mus, of_tensor)
                positive = Ternary(layout.size, indices, np.ones(count, bool), mus, of_tensor)
                sparse = Sparse(layout.size, indices, rng.standard_normal(count).astype(np.float32))
                plain: Any
                for plain, update in (
                    (SparseCodec(), sparse),
                    (TernaryCodec(scope), ternary),
                    (BinaryCodec(scope), positive),
                ):
                    if count > 500 and not (scope == "model" and plain.id == 3):
                        continue  # their positions are the same
                    if scope == "tensor" and plain.id == 2:
                        continue
                    head, _ = plain.encode_head(update, layout)
                    stream = encode_entries(indices, np.empty(0, np.int32), 1, layout, 10**6)
                    assert stream is not None
                    data = b"\x12" + head + stream
                    if 8 * (len(data) - 2 - len(varint(count))) < count:
                        continue  # the rule on k forbids it
                    written = AdaptiveCodec(plain).encode(update, layout)
                    add(f"adaptive-{plain.id}", data, indices, update.values, written)
                for scale in (1, 3, 40, 2**31 - 1):
                    if (scale > 1 and not count) or (scale != 40 and count > 500):
                        continue
                    magnitudes = np.minimum(rng.geometric(1 / scale, count), scale)
                    magnitudes[: scale > 1] = scale
                    steps = make_steps(indices, magnitudes, layout, rng, scope)
                    written = StepsCodec(scope).encode(steps, layout)
                    for is_adaptive in (True,) if count > 500 else (False, True):
                        data = steps_payload(steps, layout, scope, is_adaptive)
                        name = f"steps-{scope}-{scale}-{'adaptive' if is_adaptive else 'golomb'}"
                        add(name, data, indices, steps.exact_values, written)
    return out


def refused_payloads() -> list[dict[str, object]]:
    def sized(stream: bytes) -> bytes:
        return varint(len(stream)) + stream

    def ternary(count: int, stream: bytes, codec: int = 3) -> bytes:
        signs = bytes((count + 7) // 8)
        return bytes([18, codec, count]) + np.ones(1, "<f4").tobytes() + signs + stream

    def steps(
        count: int = 2,
        largest: bytes = b"\1",
        exponents: bytes = b"\x80",
        coding: int = 1,
        stream: bytes = b"\0",
        signs: bytes | None = None,
    ) -> bytes:
        signs = bytes((count + 7) // 8) if signs is None else signs
        return b"\x13" + bytes([count]) + largest + exponents + signs + bytes([coding]) + stream

    def stream_of(code: Callable[[Any, Any], None]) -> bytes:
        """Return the stream of some decisions."""
        coder = reference._Coder(None)
        code(coder, reference._Positions(coder, []))
        return sized(coder.finish() or b"")

    def numbers(*counts: int) -> bytes:
        return stream_of(lambda c, p: [c.number(p.tensor_counts, n) for n in counts])  # type: ignore[func-returns-value]

    def too_long(coder: Any, positions: Any) -> None:
        for model in positions.tensor_counts.length:
            coder.adaptive(model, 1)

    def first_row(coder: Any, positions: Any, left: int, rows: int, unary: int) -> None:
        positions._code_learning(15)
        models = positions.rows[min((left * 64 // rows).bit_length() // 2, 11)]
        for i in range(unary):
            coder.adaptive(models[i], 1)

    def long_row(coder: Any, positions: Any) -> None:
        first_row(coder, positions, 20, 40, 16)
        coder.number(positions.long_rows, 10)

    def far_split(coder: Any, positions: Any) -> None:
        first_row(coder, positions, 20, 40, 16)
        coder.number(positions.long_rows, 4)
        positions._code_many(20, (256 << 16) // 300, 120)

    def binomial_split(coder: Any, positions: Any) -> None:
        first_row(coder, positions, 2, 4, 2)
        positions._code_binomial(2, (2 << 16) // 3, 0)

    def empty_row(coder: Any, positions: Any) -> None:
        coder.adaptive(positions.rows[min((2 * 64 // 2).bit_length() // 2, 11)][0], 0)

    def magnitudes_of(*found: int, largest: int) -> bytes:
        indices = np.arange(len(found))
        layout = STEPS_LAYOUTS["vector"]
        data = encode_entries(indices, np.array(found, np.int32), largest, layout, 1000)
        assert data is not None
        return data

    vector = magnitudes_of(1, 1, largest=1)
    golomb = encode_positions(np.arange(2), 5)
    cases: list[tuple[str, str, bytes]] = [
        ("square", "a zero at the end", ternary(1, sized(b"\x80\0"))),
        ("square", "bytes that no reader consumes", ternary(1, sized(bytes(30) + b"\1"))),
        ("square", "more positions than bytes", b"\x12\3\xe0\x5d" + np.ones(1, "<f4").tobytes()),
        ("vector", "more positions than parameters", ternary(6, vector)),
        ("vector", "signs with adaptive positions", ternary(2, vector, codec=5)),
        ("vector", "an adaptive payload in another", b"\x12" + ternary(2, vector)),
        ("vector", "powers of two with adaptive positions", ternary(2, vector, codec=17)),
        ("vector", "no inner payload", b"\x12"),
        ("vector", "mu is zero", b"\x12\3\2" + bytes(5) + vector),
        ("vector", "padding of the signs", ternary(2, vector)[:7] + b"\4" + vector),
        ("mixed", "a tensor with more positions than are left", ternary(3, numbers(5))),
        ("mixed", "a position in an empty tensor", ternary(3, numbers(0, 0, 1))),
        ("mixed", "a tensor with more positions than parameters", ternary(20, numbers(0, 9))),
        ("mixed", "positions left after the last tensor", ternary(100, numbers(0, 0, 0, 0, 0, 0))),
        ("mixed", "a number of 2^31 - 1 or more", ternary(3, stream_of(too_long))),
        ("square", "a row with more positions than are left", ternary(20, stream_of(long_row))),
        ("square", "a split far from its expected number", ternary(20, stream_of(far_split))),
        ("narrow", "a split with too many on the right", ternary(2, stream_of(binomial_split))),
        ("vector", "a last row with too many positions", ternary(2, stream_of(empty_row))),
        ("vector", "a stream that ends early", steps(stream=vector[:-1])),
        ("vector", "a byte after the stream", steps(stream=vector + b"\1")),
        ("vector", "positions without a length", ternary(2, b"")),
        ("vector", "a zero at the end of steps", steps(stream=sized(vector[1:] + b"\0"))),
        ("vector", "bytes after steps", steps(stream=sized(vector[1:] + bytes(30) + b"\1"))),
        ("vector", "a largest magnitude of 0", steps(largest=b"\0", stream=vector)),
        ("vector", "a largest magnitude of 2^31", steps(largest=varint(2**31), stream=vector)),
        ("vector", "a largest magnitude of nothing", steps(0, b"\2", b"\0")),
        (
            "vector",
            "a largest magnitude that no position has",
            steps(largest=b"\5", stream=magnitudes_of(1, 3, largest=5)),
        ),
        (
            "vector",
            "a magnitude above the largest",
            steps(largest=b"\x14", stream=magnitudes_of(40, 1, largest=40)),
        ),
        ("vector", "Golomb: above the largest", steps(2, b"\3", coding=0, stream=b"\x0e" + golomb)),
        ("vector", "Golomb: below the largest", steps(2, b"\3", coding=0, stream=b"\1" + golomb)),
        ("vector", "Golomb: padding", steps(2, b"\3", coding=0, stream=b"\x12" + golomb)),
        ("vector", "Golomb: bytes left over", steps(coding=0, stream=golomb + b"\0")),
        ("vector", "an unknown coding", steps(coding=2, stream=vector)),
        ("vector", "steps without a coding", steps(stream=b"")[:-1]),
        ("vector", "padding of the signs of steps", steps(stream=vector, signs=b"\4")),
        ("vector", "an exponent of -25", steps(exponents=b"\x67", stream=vector)),
        ("vector", "an exponent of 23", steps(exponents=b"\x97", stream=vector)),
        ("vector", "no exponent", steps(exponents=b"\0", stream=vector)),
        ("vector", "an exponent of nothing", steps(0, exponents=b"\x80")),
        ("vector", "more steps than parameters", steps(6, stream=vector)),
    ]
    return [
        {"layout": layout, "reason": reason, "hex": data.hex()} for layout, reason, data in cases
    ]


def exact_start() -> np.ndarray:
    """Return weights between multiples of 2**-24, of zeros of both signs, and large ones."""
    rng = np.random.default_rng(24)
    start = rng.standard_normal(LAYOUT.size).astype(np.float32)
    start[:20] *= np.float32(2.0**-20)
    start[20:60] *= np.float32(3000)
    start[:6] = np.float32([0.5, -0.5, 1.5, -1.5, 2.5, -0.25]) * np.float32(2.0**-24)
    start[6:8] = [-0.0, 0.0]
    return start


def exact_federation(name: str, parameters: dict[str, Any]) -> dict[str, object]:
    method = stc(p_up=0.3, p_down=0.3, **parameters)
    start = exact_start()
    server = Server(start, method, LAYOUT, federation="steps")
    rounded = Server(start, method, LAYOUT, federation="steps", initial="float16")
    clients = {i: Client(i, method, LAYOUT, start, federation="steps") for i in (0, 1, AWAY, FAR)}
    rounds = []
    broadcasts = []
    # The exponent of the broadcasts changes with these scales.
    scales = [2e-5, 2e-5, 0, 0.7, 0.7, 1e-2]
    for t, cohort in enumerate([[0, 1, AWAY], [0, FAR], [], [1, FAR], [0, 1], [1]]):
        uploads = []
        for i in cohort:
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            rng = np.random.default_rng([t, i % 1000])
            delta = (scales[t] * rng.standard_normal(LAYOUT.size)).astype(np.float32)
            data = clients[i].send(clients[i].weights + delta).data
            server.receive(i, data, num_examples=t + 1)
            uploads.append([i, t + 1, data.hex()])
        broadcasts.append(server.finish_round().data)
        weights = floats(server.weights)
        rounds.append({"uploads": uploads, "broadcast": broadcasts[-1].hex(), "weights": weights})
        if server.round == 2:
            middle = {"round": 2, "model": server.catch_up(AWAY, -1).data.hex()}
    opened = [Broadcast.open(data, server.terms) for data in broadcasts]
    stamps = [opened[0].header.stamp, *(broadcast.next_stamp for broadcast in opened)]
    sums = []
    for since in range(server.round):
        total = merge_updates([broadcast.update for broadcast in opened[since:]])
        assert isinstance(total, Steps)
        builder = CatchUpBuilder(since, server.round, False, server.terms)
        sums.append(builder.sum(encode_sum(total, LAYOUT), stamps[since], stamps[-1]).hex())
    model = server.catch_up(AWAY, -1)
    assert model.how is How.MODEL
    assert len(model.data) > 4 * LAYOUT.size + 30  # it has low parts
    for i in (0, 1):
        rounded.receive(
            i,
            Client(i, method, LAYOUT, start, federation="steps", initial="float16")
            .send(
                rounded.weights
                + np.random.default_rng(i).standard_normal(LAYOUT.size).astype(np.float32)
            )
            .data,
        )
    first = rounded.catch_up(AWAY, -1).data
    rounded.finish_round()
    return {
        "method": name,
        "parameters": {"p_up": 0.3, "p_down": 0.3, **parameters},
        "federation": "steps",
        "terms": server.terms.digest.hex(),
        "start": floats(start),
        "rounds": rounds,
        "away": [server.catch_up(AWAY, since).data.hex() for since in range(-1, server.round + 1)],
        "replay": CatchUpBuilder(0, server.round, False, server.terms)
        .replay(broadcasts, stamps[0])
        .hex(),
        "sums": sums,
        "model": model.data.hex(),
        "middle": middle,
        "initial": [
            {
                "round": 0,
                "hex": first.hex(),
                "weights": floats(
                    Server(start, method, LAYOUT, federation="steps", initial="float16").weights
                ),
            },
            {
                "round": 1,
                "hex": rounded.catch_up(AWAY, -1).data.hex(),
                "weights": floats(rounded.weights),
            },
        ],
    }


def exact_federations() -> list[dict[str, object]]:
    return [
        exact_federation("steps", {"codec": "adaptive", "magnitudes": "powers"}),
        exact_federation(
            "steps-tensor", {"codec": "adaptive", "magnitudes": "powers", "scope": "tensor"}
        ),
        exact_federation("steps-golomb", {"magnitudes": "powers"}),
    ]


def refused_models(federation: dict[str, Any]) -> list[dict[str, str]]:
    terms = Terms(LAYOUT, stc(**federation["parameters"]))
    model = b"\1" + np.ones(LAYOUT.size, "<f4").tobytes()

    def low(*values: float) -> bytes:
        update = Sparse(LAYOUT.size, np.arange(len(values)), np.float32(values))
        return SparseCodec().encode(update, LAYOUT)

    def sealed(payload: bytes) -> bytes:
        return seal(CATCH_UP, terms.header(b"abc", 1) + b"\x12" + payload)

    steps = b"\x13\0\1\0\0"
    broken = {
        "no low parts": sealed(model + low()),
        "a low part of 0": sealed(model + low(2.0**-24, 0)),
        "a low part of -0": sealed(model + low(-0.0)),
        "a low part that is NaN": sealed(model + low(2.0**-24)[:2] + b"\0\0\xc0\x7f\0"),
        "low parts that end early": sealed(model + low(2.0**-24)[:-1]),
        "bytes after low parts": sealed(model + low(2.0**-24) + b"\0"),
        "a model with steps": sealed(model + steps),
        "a model with adaptive low parts": sealed(model + b"\x12" + low(2.0**-24)),
    }
    return [{"reason": reason, "hex": data.hex()} for reason, data in broken.items()]


def refused_sums(federation: dict[str, Any]) -> list[dict[str, str]]:
    terms = Terms(LAYOUT, stc(**federation["parameters"]))
    stamp = bytes.fromhex(federation["rounds"][0]["broadcast"])[8:11]

    def sealed(payload: bytes, stamp: bytes = stamp) -> bytes:
        return seal(CATCH_UP, terms.header(stamp, 1) + b"\x09abc" + payload)

    steps = b"\x13\0\1\0\0"
    broken = {
        "a sum of codec 3": sealed(b"\3\0" + bytes(4)),
        "a sum with adaptive positions": sealed(b"\x12\3\0" + bytes(4)),
        "a sum of another history": sealed(steps, b"xyz"),
        "a sum that ends early": sealed(steps[:-1]),
        "a sum with bytes left over": sealed(steps + b"\0"),
    }
    return [{"reason": reason, "hex": data.hex()} for reason, data in broken.items()]


UPDATE_LAYOUTS = {
    "small": LAYOUT,
    "wide": Layout(("fc", "none", "bias"), ((20, 66), (0,), (130,))),
}
UPDATE_CODECS = ("rotated", "palette", "adaptive-palette", "cosines")
UPDATE_METHODS = (
    "stc-momentum", "fedavg-adam", "eden-both-ways", "sparseloco", "sparseloco-both-ways", "demo",
)  # fmt: skip


def update_payloads() -> list[dict[str, object]]:
    rng = np.random.default_rng(32)
    found = []
    for name in UPDATE_CODECS:
        for layout in ("small", "small", "small", "wide"):
            update = sample_update(name, UPDATE_LAYOUTS[layout], rng)
            data = CODECS[name].encode(update, UPDATE_LAYOUTS[layout])
            adds = floats(update.to_dense())
            found.append({"name": name, "layout": layout, "hex": data.hex(), "adds": adds})
    return found


def refused_updates() -> list[dict[str, str]]:
    one = np.float32(1).tobytes()
    two = np.float32(2).tobytes()
    infinite = np.float32(np.inf).tobytes()
    seed = bytes(8)
    levels = bytes(16)  # 110 parameters have one block of 128
    at_zero = encode_positions(np.array([0]), LAYOUT.size)
    both = encode_positions(np.array([0, 1]), LAYOUT.size)
    rotated = b"\x20" + seed + b"\1" + one + levels
    palette = b"\x21\1\1" + one + b"\0\0\0" + at_zero
    cosines = b"\x22\1" + one + at_zero
    broken = {
        "rotated: no bits": b"\x20" + seed + b"\0" + one,
        "rotated: five bits": b"\x20" + seed + b"\5" + one + 5 * levels,
        "rotated: negative scale": b"\x20" + seed + b"\1" + np.float32(-1).tobytes() + levels,
        "rotated: scale of -0": b"\x20" + seed + b"\1" + np.float32(-0.0).tobytes() + levels,
        "rotated: infinite scale": b"\x20" + seed + b"\1" + infinite + levels,
        "rotated: ends early": rotated[:-1],
        "rotated: bytes left over": rotated + b"\0",
        "palette: five values": b"\x21\1\5" + 5 * one + b"\0\0\0" + at_zero,
        "palette: value of zero": b"\x21\1\1" + bytes(4) + b"\0\0\0" + at_zero,
        "palette: not ascending": b"\x21\2\2" + two + one + b"\0\0\4" + both,
        "palette: equal values": b"\x21\2\2" + one + one + b"\0\0\4" + both,
        "palette: infinite value": b"\x21\1\1" + infinite + b"\0\0\0" + at_zero,
        "palette: number outside": b"\x21\1\1" + one + b"\0\0\1" + at_zero,
        "palette: unused value": b"\x21\1\2" + one + two + b"\0\0\0" + at_zero,
        "palette: of a tensor without positions": b"\x21\1\1"
        + one
        + b"\1"
        + one
        + b"\0\0"
        + at_zero,
        "palette: padding of the numbers": b"\x21\1\1" + one + b"\0\0\x10" + at_zero,
        "palette: more positions than parameters": b"\x21\x70" + bytes(40),
        "palette: ends early": palette[:-1],
        "palette: bytes left over": palette + b"\0",
        "cosines: infinite coefficient": b"\x22\1" + infinite + at_zero,
        "cosines: more positions than parameters": b"\x22\x70" + bytes(600),
        "cosines: ends early": cosines[:-1],
        "cosines: bytes left over": cosines + b"\0",
        "adaptive positions of cosines": b"\x12" + b"\x22\1" + one + b"\0",
        "a codec that is not assigned": b"\x15" + bytes(8),
    }
    # The payloads that were changed are valid themselves.
    for valid in (rotated, palette, cosines):
        BY_ID[valid[0]].decode(valid, LAYOUT)
    return [{"reason": reason, "hex": data.hex()} for reason, data in broken.items()]


def updates_makers(golden: dict[str, Any]) -> dict[str, Callable[[], object]]:
    return {
        "update_layouts": lambda: {
            name: {"names": layout.names, "shapes": layout.shapes, "digest": layout.digest.hex()}
            for name, layout in UPDATE_LAYOUTS.items()
        },
        "update_payloads": update_payloads,
        "refused_updates": refused_updates,
        "update_federations": lambda: [federation(name, METHODS[name]) for name in UPDATE_METHODS],
    }


def complete(
    path: Path, makers: Callable[[dict[str, Any]], dict[str, Callable[[], object]]]
) -> None:
    """Add the missing sections to a file of golden vectors."""
    golden: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    missing = [name for name in makers(golden) if name not in golden]
    if not missing:
        print(f"{path} is complete; golden vectors are never written again")
        return
    for name in missing:
        golden[name] = makers(golden)[name]()
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def steps_makers(golden: dict[str, Any]) -> dict[str, Callable[[], object]]:
    return {
        "layouts": lambda: {
            name: {"names": layout.names, "shapes": layout.shapes, "digest": layout.digest.hex()}
            for name, layout in STEPS_LAYOUTS.items()
        },
        "position_payloads": position_payloads,
        "refused_payloads": refused_payloads,
        "exact_federations": exact_federations,
        "refused_models": lambda: refused_models(golden["exact_federations"][0]),
        "refused_sums": lambda: refused_sums(golden["exact_federations"][0]),
    }


ADDRESSED_METHODS = {
    "stc": (METHODS["stc"], "exact"),
    "signsgd": (METHODS["signsgd"], "exact"),
    "sgd": (METHODS["sgd"], "exact"),
    "stc-float16": (METHODS["stc"], "float16"),
    "stc-powers": (stc(0.1, 0.1, magnitudes="powers"), "exact"),
}


def addressed_server(name: str, rounds: int = 5) -> tuple[Server, list[Broadcast]]:
    """Return a server after some rounds; client 300 was counted in the rounds 1 and 3."""
    method, precision = ADDRESSED_METHODS[name]
    start = np.random.default_rng(9).standard_normal(LAYOUT.size).astype(np.float32)
    # So many that all broadcasts are kept.
    server = Server(start, method, LAYOUT, federation="addressed", initial=precision)
    clients = {
        i: Client(i, method, LAYOUT, start, federation="addressed", initial=precision)
        for i in (0, AWAY)
    }
    broadcasts = []
    for t in range(rounds):
        for i in [0, AWAY] if t % 2 else [0]:
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            server.receive(i, clients[i].send(trained(clients[i], t)).data)
        broadcasts.append(server.finish_round())
    return server, broadcasts


def addressed(name: str) -> dict[str, object]:
    server, broadcasts = addressed_server(name)
    messages = [server.catch_up(AWAY, since) for since in range(-1, server.round + 1)]
    stamps = [*(broadcast.header.stamp for broadcast in broadcasts), server.stamp]
    weights, signs = server._replica.base_and_signs()
    low = server._replica.low_parts
    for since in (0, 2, 3):  # models, which are longer than what the server sends
        addressee = Addressee(AWAY, stamps[since], uploaded_later=since < 3)
        builder = CatchUpBuilder(since, server.round, since == 3, server.terms, addressee)
        data = builder.model(weights, signs, server.stamp, {}, low)
        messages.append(CatchUp(since, server.round, How.MODEL, data))
    method, precision = ADDRESSED_METHODS[name]
    first = Server(
        np.random.default_rng(9).standard_normal(LAYOUT.size).astype(np.float32),
        method,
        LAYOUT,
        initial=precision,
    )
    return {
        "method": name,
        "exact": server.terms.has_steps,
        "federation": "addressed",
        "client": AWAY,
        "terms": server.terms.digest.hex(),
        "start": floats(first.weights),
        "broadcasts": [broadcast.data.hex() for broadcast in broadcasts],
        "weights": floats(server.weights),
        "catch_ups": [
            {
                "since": found.since,
                "how": found.how.value,
                "counted": found.since == 3 and found.how is not How.REPLAY,
                "uploaded_later": 0 <= found.since < 3,
                "hex": found.data.hex(),
            }
            for found in messages
        ],
    }


def refused_addressed() -> list[dict[str, object]]:
    server, broadcasts = addressed_server("stc")
    end = server.round
    stamps = [*(broadcast.header.stamp for broadcast in broadcasts), server.stamp]
    weights = server._replica.weights
    datas = [broadcast.data for broadcast in broadcasts]

    def model(since: int, client: int = AWAY, stamp: bytes = b"abc", **flags: bool) -> bytes:
        addressee = Addressee(client, stamp, flags.get("later", False))
        counted = flags.get("counted", False)
        builder = CatchUpBuilder(since, end, counted, server.terms, addressee)
        return builder.model(weights, None, server.stamp)

    def replay(since: int, client: int) -> bytes:
        builder = CatchUpBuilder(since, end, False, server.terms, Addressee(client))
        return builder.replay(datas[since:], stamps[since])

    header = server.terms.header(stamps[2], end)
    first_version = model(2, stamp=stamps[2])
    broken: dict[str, tuple[int, bytes]] = {
        "a model for another client": (2, model(2, 301, stamps[2])),
        "a model for a client without weights, and another client": (-1, model(-1, 301, b"")),
        "a replay for another client": (2, replay(2, 0)),
        "a model from another history": (2, model(2)),
        "no stamp before a model": (2, model(2, stamp=b"")),
        "a stamp for a client without weights": (-1, model(-1)),
        "counted, and so was a later upload": (
            2,
            model(2, stamp=stamps[2], later=True, counted=True),
        ),
        "a later upload of a client without weights": (-1, model(-1, stamp=b"", later=True)),
        "no addressee": (2, seal(ADDRESSED_CATCH_UP, header)),
        "no flags": (2, seal(ADDRESSED_CATCH_UP, header, varint(AWAY))),
        "an addressee above 64 bits": (2, seal(ADDRESSED_CATCH_UP, header, b"\xff" * 9 + b"\2\1")),
        "version 3": (2, first_version[:1] + b"\x33" + first_version[2:]),
        "version 2 of a broadcast": (4, datas[4][:1] + b"\x22" + datas[4][2:]),
        "wrong checksum": (2, first_version[:-1] + bytes([first_version[-1] ^ 1])),
    }
    return [
        {"reason": reason, "since": since, "hex": data.hex()}
        for reason, (since, data) in broken.items()
    ]


def v2_makers(_golden: dict[str, Any]) -> dict[str, Callable[[], object]]:
    names = {"names": LAYOUT.names, "shapes": LAYOUT.shapes, "digest": LAYOUT.digest.hex()}
    return {
        "layout": lambda: names,
        "addressed": lambda: [addressed(name) for name in ADDRESSED_METHODS],
        "refused_addressed": refused_addressed,
    }


def v1_makers(golden: dict[str, Any]) -> dict[str, Callable[[], object]]:
    names = {"names": LAYOUT.names, "shapes": LAYOUT.shapes, "digest": LAYOUT.digest.hex()}
    return {
        "layout": lambda: names,
        "arrays": arrays,
        "payloads": payloads,
        "federations": lambda: [federation(name, method) for name, method in METHODS.items()],
        "refused": refused,
        "calls": lambda: cohort_notices(golden["federations"][0]),
        "refused_calls": lambda: refused_notices(golden["federations"][0]),
        "carried": carried,
        "refused_carried": lambda: refused_carried(golden["carried"]["federations"][0]),
        "initial": initial,
        "refused_initial": lambda: refused_initial(golden["initial"][0]),
        "initial_replays": lambda: initial_replays(golden["initial"]),
        "refused_initial_replays": lambda: refused_initial_replays(golden["initial"][0]),
    }


def main() -> None:
    complete(HERE / "v1.json", v1_makers)
    complete(HERE / "v1-steps.json", steps_makers)
    complete(HERE / "v2-catch-ups.json", v2_makers)
    complete(HERE / "v1-updates.json", updates_makers)


if __name__ == "__main__":
    main()
