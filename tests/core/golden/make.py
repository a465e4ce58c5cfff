"""Write ``v1.json``: messages and their decoded contents. Existing entries are never changed.

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
from fedtern import Client, Layout, Method, Server, compress, decompress
from fedtern.core.carried import Values
from fedtern.core.codecs import UpdateSequenceCodec
from fedtern.core.compressors import SparseTernary, TopK
from fedtern.core.envelope import ARRAY, BROADCAST, CATCH_UP, COHORT_NOTICE, UPLOAD, seal
from fedtern.core.layout import Carried
from fedtern.core.protocol import Broadcast, CohortNotice, How
from fedtern.core.protocol.catchup import CatchUpBuilder
from fedtern.core.protocol.initial import encode_initial
from fedtern.core.protocol.terms import Terms, initial_stamp
from fedtern.core.updates.sums import merge_updates

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


def main() -> None:
    path = HERE / "v1.json"
    golden: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    names = {"names": LAYOUT.names, "shapes": LAYOUT.shapes, "digest": LAYOUT.digest.hex()}
    makers: dict[str, Callable[[], object]] = {
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
    missing = [name for name in makers if name not in golden]
    if not missing:
        sys.exit(f"{path} is complete; golden vectors are never written again")
    for name in missing:
        golden[name] = makers[name]()
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
