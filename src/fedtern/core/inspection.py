"""Analyse the parts of a message, for display."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedtern.core.arrays import open_array
from fedtern.core.carried import read_carried
from fedtern.core.codecs import CODECS, DenseCodec, SparseCodec, TernaryCodec
from fedtern.core.codecs.golomb import golomb_width, read_count
from fedtern.core.envelope import (
    ARRAY,
    BROADCAST,
    CATCH_UP,
    COHORT_NOTICE,
    ENVELOPE_BYTES,
    KINDS,
    unseal,
)
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout
from fedtern.core.protocol.catchup import (
    MODEL,
    MODES,
    REPLAY,
    REPLAY_MARKER,
    START,
    SUM,
    read_lag,
)
from fedtern.core.protocol.initial import initial_precision, read_initial
from fedtern.core.protocol.messages import read_cohort
from fedtern.core.protocol.terms import STAMP_BYTES
from fedtern.core.wire import Reader

_CODECS_WITH_POSITIONS = (SparseCodec, TernaryCodec)
_WHOLE_MODELS = (MODES[MODEL].value, MODES[START].value)


@dataclass
class Inspection:
    """The parts of a message, and its size compared with the entropy bound.

    Attributes:
        kind: the kind of the message.
        nbytes: the size of the message.
        facts: contents of the message by name.
        parts: names and sizes of the message's parts, in their order.
        size: the number of parameters, if known.
        nonzeros: the number of non-zeros, if known.
        bits_per_nonzero: the size of the whole message per non-zero, in bits.
        entropy_bound: the least number of bits per non-zero for random positions.

    """

    kind: str
    nbytes: int
    facts: dict[str, str] = field(default_factory=dict)
    parts: list[tuple[str, int]] = field(default_factory=list)
    size: int | None = None
    nonzeros: int | None = None
    bits_per_nonzero: float | None = None
    entropy_bound: float | None = None

    @property
    def density(self) -> float | None:
        """The share of non-zeros."""
        return self.nonzeros / self.size if self.size and self.nonzeros is not None else None

    @property
    def ratio(self) -> float | None:
        """The size of the same update in float32, divided by the size of the message."""
        return 4 * self.size / self.nbytes if self.size else None


def inspect(data: bytes, layout: Layout | None = None) -> Inspection:
    """Analyse the parts of a message.

    Args:
        data: the message.
        layout: the model's tensors, which only arrays contain themselves. Without it, positions
            are not analysed, and the model must not have carried tensors.

    Raises:
        DecodeError: the bytes are not a message, or do not fit the layout.

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
    found.parts.append(("envelope", ENVELOPE_BYTES))
    if kind == ARRAY:
        layout, payload = open_array(data)
        found.facts["shape"] = str(layout.shapes[0])
        found.parts.append(("shape", reader.remaining - len(payload)))
    else:
        payload = _inspect_header(kind, reader, found)
    if kind == COHORT_NOTICE:
        return found
    mode = found.facts.get("catch-up")
    if mode == MODES[REPLAY].value or (layout is None and mode in _WHOLE_MODELS):
        found.parts.append((found.facts["catch-up"], len(payload)))
        return found
    if layout is not None and layout.carried:
        payload = _inspect_carried(payload, layout, found)
    if layout is not None and mode in _WHOLE_MODELS:
        payload = _inspect_whole_model(payload, layout, mode == MODES[START].value, found)
    if mode == MODES[START].value and payload[:1] == bytes([REPLAY_MARKER]):
        found.parts.append(("broadcasts", len(payload)))
    elif payload or mode not in _WHOLE_MODELS:
        _inspect_payload(payload, layout, found)
    return found


def _inspect_carried(payload: bytes, layout: Layout, found: Inspection) -> bytes:
    """Add the section of carried tensors to ``found``, and return the bytes after it."""
    reader = Reader(payload)
    changed = read_carried(reader, layout)
    found.facts["carried tensors"] = ", ".join(changed) or "unchanged"
    found.parts.append(("carried tensors", len(payload) - reader.remaining))
    return reader.rest()


def _inspect_whole_model(
    payload: bytes, layout: Layout, is_initial: bool, found: Inspection
) -> bytes:
    """Add the weights of a whole model to ``found``, and return the bytes after them."""
    reader = Reader(payload)
    found.size = layout.size
    if is_initial:
        precision = initial_precision(payload)
        read_initial(reader, layout)
        found.parts.append((f"initial model ({precision})", len(payload) - reader.remaining))
    else:
        DenseCodec().decode(reader.take(1 + 4 * layout.size), layout)
        found.parts.append(("weights", len(payload) - reader.remaining))
    return reader.rest()


def _inspect_header(kind: int, reader: Reader, found: Inspection) -> bytes:
    """Add the parts before the payload to ``found``, and return the payload."""
    before = reader.remaining
    for name in ("layout", "method", "history"):
        found.facts[name] = reader.take(3).hex()
    round = reader.u32()
    found.facts["round"] = str(round)
    found.parts.append(("terms, history and round", before - reader.remaining))
    before = reader.remaining
    if kind == BROADCAST:
        found.facts["counted"] = _format_clients(reader.ids())
        found.facts["next cohort"] = _format_clients(read_cohort(reader))
        found.parts.append(("acknowledgements and cohort", before - reader.remaining))
    if kind == COHORT_NOTICE:
        found.facts["cohort"] = _format_clients(read_cohort(reader))
        found.parts.append(("cohort", before - reader.remaining))
        reader.end()
    if kind == CATCH_UP:
        lag, counted, mode = read_lag(reader)
        found.facts["since"] = str(round - lag)
        found.facts["catch-up"] = MODES[mode].value
        found.facts["last upload counted"] = "yes" if counted else "no, or see the broadcasts"
        if mode == SUM:
            found.facts["new history"] = reader.take(STAMP_BYTES).hex()
        found.parts.append(("lag and mode", before - reader.remaining))
    return reader.rest()


def _format_clients(ids: Iterable[int] | None) -> str:
    if ids is None:
        return "all clients"
    return ", ".join(map(str, sorted(ids))) or "none"


def _inspect_payload(payload: bytes, layout: Layout | None, found: Inspection) -> None:
    """Add the parts of a payload to ``found``."""
    if not payload or payload[0] not in CODECS:
        raise DecodeError(f"unknown codec {payload[:1].hex() or 'at the end of the message'}")
    codec = CODECS[payload[0]]
    found.facts["update"] = f"{codec.name} (codec {codec.id})"
    found.parts.append(("codec", 1))
    if layout is None or not isinstance(codec, _CODECS_WITH_POSITIONS):
        found.parts.append((codec.name, len(payload) - 1))
        found.size = layout.size if layout else None
        return
    codec.decode(payload, layout)  # raises an error if the payload is damaged
    reader = Reader(payload[1:])
    before = reader.remaining
    count = read_count(reader, layout.size)
    parts = [("count", before - reader.remaining)]
    if isinstance(codec, TernaryCodec):
        parts.append(("magnitudes", 4 * layout.segments(codec.scope).size))
        parts.append(("signs", (count + 7) // 8))
        value_bits = 1
    else:
        parts.append(("values", 4 * count))
        value_bits = 32
    low_bits = count * golomb_width(count, layout.size)
    parts.append(("positions, low bits", (low_bits + 7) // 8))
    quotients = len(payload) - 1 - sum(nbytes for _, nbytes in parts)
    parts.append(("positions, quotients", quotients))
    found.parts += parts
    found.size = layout.size
    found.nonzeros = count
    if count:
        found.bits_per_nonzero = 8 * found.nbytes / count
        found.entropy_bound = _entropy(count / layout.size) * layout.size / count + value_bits


def _entropy(p: float) -> float:
    """Return the bits per position of a random pattern of density p."""
    return 0.0 if p in (0, 1) else -p * math.log2(p) - (1 - p) * math.log2(1 - p)
