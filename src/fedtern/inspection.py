"""What a message is made of, for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from fedtern.arrays import open_array
from fedtern.codecs import CODECS
from fedtern.codecs.golomb import golomb_width, read_count
from fedtern.envelope import ARRAY, BROADCAST, CATCH_UP, UPLOAD, unseal
from fedtern.errors import DecodeError
from fedtern.layout import Layout
from fedtern.wire import Reader

_KINDS = {UPLOAD: "upload", BROADCAST: "broadcast", CATCH_UP: "catch-up", ARRAY: "array"}
_MODES = {0: "replayed broadcasts", 1: "sum of broadcasts", 2: "whole model"}
_UPDATES = (
    "nothing",
    "dense",
    "sparse",
    "ternary",
    "ternary, by tensor",
    "signs",
    "series",
    "tally",
)
_SPARSE, _TERNARY, _BY_TENSOR = 2, 3, 4


@dataclass
class Inspection:
    """A message's parts, and how it compares with what could not be beaten."""

    kind: str
    nbytes: int
    facts: dict[str, str] = field(default_factory=dict)
    parts: list[tuple[str, int]] = field(default_factory=list)
    size: int | None = None
    nonzeros: int | None = None
    bits_per_nonzero: float | None = None
    entropy_bound: float | None = None  # bits a non-zero, for positions that are random

    @property
    def density(self) -> float | None:
        """The share of parameters that differ from zero."""
        return self.nonzeros / self.size if self.size and self.nonzeros is not None else None

    @property
    def ratio(self) -> float | None:
        """How many times longer the same in float32 would be."""
        return 4 * self.size / self.nbytes if self.size else None


def inspect(data: bytes, layout: Layout | None = None) -> Inspection:
    """Take a message apart; uploads, broadcasts and catch-ups do not say how large the model is.

    >>> from fedtern import compress
    >>> found = inspect(compress(np.random.default_rng(0).standard_normal(100_000), p=0.01))
    >>> found.kind, found.nonzeros, dict(found.parts)["signs"]
    ('array', 1000, 125)
    """
    kind, reader = unseal(data)
    if kind not in _KINDS:
        raise DecodeError(f"unknown kind of message: {kind}")
    found = Inspection(_KINDS[kind], len(data))
    found.parts.append(("envelope", 7))
    if kind == ARRAY:
        layout, payload = open_array(data)
        found.facts["shape"] = str(layout.shapes[0])
        found.parts.append(("shape", reader.left - len(payload)))
    else:
        payload = b"".join(_head(kind, reader, found))
    if kind == CATCH_UP and found.facts["way"] != _MODES[1]:
        found.parts.append((found.facts["way"], len(payload)))
        return found
    _payload(payload, layout, found)
    return found


def _head(kind: int, reader: Reader, found: Inspection) -> Iterator[bytes]:
    """Note what precedes the payload, and yield the payload."""
    for name in ("federation", "layout", "method"):
        found.facts[name] = reader.take(3).hex()
    found.facts["round"] = str(reader.u32())
    found.parts.append(("terms and round", 13))
    before = reader.left
    if kind == BROADCAST:
        found.facts["counted"] = _names(reader.ids())
        found.facts["next cohort"] = _names(reader.ids()) if reader.byte() else "anybody"
        found.parts.append(("acknowledgements and cohort", before - reader.left))
    if kind == CATCH_UP:
        found.facts["since"] = str(reader.u32() - 1)
        mode = reader.byte()
        found.facts["way"] = _MODES.get(mode & 0x7F, "unknown")
        found.facts["last upload counted"] = "yes" if mode & 0x80 else "no, or see inside"
        found.parts.append(("since and mode", 5))
    yield reader.rest()


def _names(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids)) or "nobody"


def _payload(payload: bytes, layout: Layout | None, found: Inspection) -> None:
    codec = payload[0] if payload else -1
    if codec not in CODECS:
        raise DecodeError(f"unknown codec {codec}")
    found.facts["update"] = f"{_UPDATES[codec]} (codec {codec})"
    found.parts.append(("codec", 1))
    if layout is None or codec not in (_SPARSE, _TERNARY, _BY_TENSOR):
        found.parts.append((_UPDATES[codec], len(payload) - 1))
        found.size = layout.size if layout else None
        return
    CODECS[codec].decode(payload, layout)  # or it may not be what it says
    reader = Reader(payload[1:])
    before = reader.left
    count = read_count(reader, layout.size)
    signs, mus = (count + 7) // 8, 4 * layout.segments("tensor").size if codec == _BY_TENSOR else 4
    values = (
        [("values", 4 * count)] if codec == _SPARSE else [("magnitudes", mus), ("signs", signs)]
    )
    low = (count * golomb_width(count, layout.size) + 7) // 8
    found.parts += [("count", before - reader.left), *values, ("positions, low bits", low)]
    rest = len(payload) - sum(size for _, size in found.parts[-len(values) - 2 :]) - 1
    found.parts.append(("positions, quotients", rest))
    found.size, found.nonzeros = layout.size, count
    if count:
        found.bits_per_nonzero = 8 * found.nbytes / count
        value_bits = 32 if codec == _SPARSE else 1
        found.entropy_bound = _entropy(count / layout.size) * layout.size / count + value_bits


def _entropy(p: float) -> float:
    """Bits for each position of a random pattern of density p."""
    return 0.0 if p in (0, 1) else -p * math.log2(p) - (1 - p) * math.log2(1 - p)
