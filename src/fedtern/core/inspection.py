"""What a message is made of, for people."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedtern.core.arrays import open_array
from fedtern.core.codecs import CODECS, SparseCodec, TernaryCodec
from fedtern.core.codecs.golomb import golomb_width, read_count
from fedtern.core.envelope import ARRAY, BROADCAST, CATCH_UP, COHORT_NOTICE, FRAME, KINDS, unseal
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout
from fedtern.core.protocol.catchup import MODES, SUM, read_lag
from fedtern.core.protocol.messages import read_cohort
from fedtern.core.protocol.terms import STAMP_BYTES
from fedtern.core.wire import Reader

_NAMES = {codec_id: codec.name for codec_id, codec in CODECS.items()}
_WITH_POSITIONS = (SparseCodec, TernaryCodec)


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

    >>> import numpy as np
    >>> from fedtern import compress
    >>> found = inspect(compress(np.random.default_rng(0).standard_normal(100_000), p=0.01))
    >>> found.kind, found.nonzeros, dict(found.parts)["signs"]
    ('array', 1000, 125)
    """
    kind, reader = unseal(data)
    if kind not in KINDS:
        raise DecodeError(f"unknown kind of message: {kind}")
    found = Inspection(KINDS[kind], len(data))
    found.parts.append(("envelope", FRAME))
    if kind == ARRAY:
        layout, payload = open_array(data)
        found.facts["shape"] = str(layout.shapes[0])
        found.parts.append(("shape", reader.left - len(payload)))
    else:
        payload = _head(kind, reader, found)
    if kind == COHORT_NOTICE:
        return found
    if kind == CATCH_UP and found.facts["way"] != MODES[SUM].value:
        found.parts.append((found.facts["way"], len(payload)))
        return found
    _payload(payload, layout, found)
    return found


def _head(kind: int, reader: Reader, found: Inspection) -> bytes:
    """Note what precedes the payload; the payload is left."""
    before = reader.left
    for name in ("layout", "method", "history"):
        found.facts[name] = reader.take(3).hex()
    round = reader.u32()
    found.facts["round"] = str(round)
    found.parts.append(("terms, history and round", before - reader.left))
    before = reader.left
    if kind == BROADCAST:
        found.facts["counted"] = _names(reader.ids())
        found.facts["next cohort"] = _names(read_cohort(reader))
        found.parts.append(("acknowledgements and cohort", before - reader.left))
    if kind == COHORT_NOTICE:
        found.facts["cohort"] = _names(read_cohort(reader))
        found.parts.append(("cohort", before - reader.left))
        reader.end()
    if kind == CATCH_UP:
        lag, counted, mode = read_lag(reader)
        found.facts["since"] = str(round - lag)
        found.facts["way"] = MODES[mode].value
        found.facts["last upload counted"] = "yes" if counted else "no, or see inside"
        if mode == SUM:
            found.facts["new history"] = reader.take(STAMP_BYTES).hex()
        found.parts.append(("way", before - reader.left))
    return reader.rest()


def _names(ids: Iterable[int] | None) -> str:
    return "anybody" if ids is None else ", ".join(map(str, sorted(ids))) or "nobody"


def _payload(payload: bytes, layout: Layout | None, found: Inspection) -> None:
    if not payload or payload[0] not in CODECS:
        raise DecodeError(f"unknown codec {payload[:1].hex() or 'at the end of the message'}")
    codec = CODECS[payload[0]]
    found.facts["update"] = f"{_NAMES[payload[0]]} (codec {payload[0]})"
    found.parts.append(("codec", 1))
    if layout is None or not isinstance(codec, _WITH_POSITIONS):
        found.parts.append((_NAMES[payload[0]], len(payload) - 1))
        found.size = layout.size if layout else None
        return
    codec.decode(payload, layout)  # or it may not be what it says
    reader = Reader(payload[1:])
    before = reader.left
    count = read_count(reader, layout.size)
    values = [("values", 4 * count)]
    if isinstance(codec, TernaryCodec):
        magnitudes = 4 * layout.segments(codec.scope).size
        values = [("magnitudes", magnitudes), ("signs", (count + 7) // 8)]
    low = (count * golomb_width(count, layout.size) + 7) // 8
    found.parts += [("count", before - reader.left), *values, ("positions, low bits", low)]
    rest = len(payload) - sum(size for _, size in found.parts[-len(values) - 2 :]) - 1
    found.parts.append(("positions, quotients", rest))
    found.size, found.nonzeros = layout.size, count
    if count:
        found.bits_per_nonzero = 8 * found.nbytes / count
        value_bits = 1 if isinstance(codec, TernaryCodec) else 32
        found.entropy_bound = _entropy(count / layout.size) * layout.size / count + value_bits


def _entropy(p: float) -> float:
    """Bits for each position of a random pattern of density p."""
    return 0.0 if p in (0, 1) else -p * math.log2(p) - (1 - p) * math.log2(1 - p)
