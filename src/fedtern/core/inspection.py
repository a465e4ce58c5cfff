"""Analyse the parts of a message, for display."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fedtern.core.arrays import open_array
from fedtern.core.carried import read_carried
from fedtern.core.codecs import (
    CODECS,
    AdaptiveCodec,
    BinaryCodec,
    DenseCodec,
    PaletteCodec,
    SparseCodec,
    StepsCodec,
    TernaryCodec,
)
from fedtern.core.codecs.adaptive import encode_entries
from fedtern.core.codecs.golomb import golomb_width, read_count
from fedtern.core.envelope import (
    ADDRESSED_CATCH_UP,
    ARRAY,
    BROADCAST,
    CATCH_UP,
    COHORT_NOTICE,
    ENVELOPE_BYTES,
    KINDS,
    SECURE,
    SECURE_STEPS,
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
_ADAPTIVE_CODING = 1
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
    if kind == SECURE:
        found.parts.append((found.facts["step"], len(payload)))
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
    elif mode == MODES[MODEL].value and payload[:1] == bytes([SparseCodec.id]) and layout:
        SparseCodec().decode(payload, layout)  # raises an error if the payload is damaged
        found.parts.append(("low parts of exact weights", len(payload)))
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
    if kind == SECURE:
        if (step := reader.byte()) >= len(SECURE_STEPS):
            raise DecodeError(f"unknown step {step} of a secure round")
        found.facts["step"] = SECURE_STEPS[step]
        found.parts.append(("step", before - reader.remaining))
    if kind in (CATCH_UP, ADDRESSED_CATCH_UP):
        if kind == ADDRESSED_CATCH_UP:
            found.facts["addressee"] = str(reader.varint())
            found.parts.append(("addressee", before - reader.remaining))
            before = reader.remaining
        lag, uploaded_later, counted, mode = read_lag(
            reader, is_addressed=kind == ADDRESSED_CATCH_UP
        )
        if uploaded_later:
            found.facts["uploads to later rounds"] = "counted"
        found.facts["since"] = str(round - lag)
        found.facts["catch-up"] = MODES[mode].value
        found.facts["last upload counted"] = "yes" if counted else "no, or see the broadcasts"
        if mode == SUM:
            found.facts["new history"] = reader.take(STAMP_BYTES).hex()
        elif mode == MODEL and lag <= round and kind == ADDRESSED_CATCH_UP:
            found.facts["history at since"] = reader.take(STAMP_BYTES).hex()
        found.parts.append(("lag and mode", before - reader.remaining))
    return reader.rest()


def _format_clients(ids: Iterable[int] | None) -> str:
    if ids is None:
        return "all clients"
    return ", ".join(map(str, sorted(ids))) or "none"


def _inspect_payload(payload: bytes, layout: Layout | None, found: Inspection) -> None:
    """Add the parts of a payload to ``found``."""
    if payload[:1] == bytes([AdaptiveCodec.id]):
        _inspect_adaptive(payload, layout, found)
        return
    if not payload or payload[0] not in CODECS:
        raise DecodeError(f"unknown codec {payload[:1].hex() or 'at the end of the message'}")
    codec = CODECS[payload[0]]
    found.facts["update"] = f"{codec.name} (codec {codec.id})"
    found.parts.append(("codec", 1))
    if layout is not None and isinstance(codec, StepsCodec):
        _inspect_steps(codec, payload, layout, found)
        return
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
    _compare_with_entropy(count, layout, value_bits, found)


def _inspect_adaptive(payload: bytes, layout: Layout | None, found: Inspection) -> None:
    """Add the parts of a payload with adaptive positions to ``found``."""
    plain = CODECS.get(payload[1]) if len(payload) > 1 else None
    if not isinstance(plain, SparseCodec | TernaryCodec | BinaryCodec | PaletteCodec):
        raise DecodeError(f"codec {payload[1:2].hex() or 'nothing'} has no adaptive positions")
    found.facts["update"] = f"{plain.name}, {AdaptiveCodec.name} (codec 18 with {plain.id})"
    found.parts.append(("codec", 2))
    if layout is None:
        found.parts.append((plain.name, len(payload) - 2))
        return
    update = AdaptiveCodec(plain).decode(payload, layout)  # raises an error if it is damaged
    reader = Reader(payload[2:])
    count = read_count(reader, layout.size)
    parts = [("count", len(payload) - 2 - reader.remaining)]
    value_bits = 1.0
    if isinstance(plain, SparseCodec):
        parts.append(("values", 4 * count))
        value_bits = 32.0
    elif isinstance(plain, PaletteCodec):
        head, _ = plain.encode_head(update, layout)
        numbers = (2 * count + 7) // 8
        parts.append(("palettes", len(head) - 1 - parts[0][1] - numbers))
        parts.append(("numbers of values", numbers))
        value_bits = 2.0
    else:
        parts.append(("magnitudes", 4 * layout.segments(plain.scope).size))
        if isinstance(plain, TernaryCodec):
            parts.append(("signs", (count + 7) // 8))
        else:
            value_bits = 0.0
    positions = len(payload) - 2 - sum(nbytes for _, nbytes in parts)
    found.parts += [*parts, ("positions, adaptive", positions)]
    _compare_with_entropy(count, layout, value_bits, found)
    _compare_positions(positions, count, layout, found)


def _inspect_steps(codec: StepsCodec, payload: bytes, layout: Layout, found: Inspection) -> None:
    """Add the parts of a payload of steps, after its codec, to ``found``."""
    update = codec.decode(payload, layout)
    count, largest = update.indices.size, update.largest
    reader = Reader(payload[1:])
    before = reader.remaining
    read_count(reader, layout.size)
    reader.varint()
    parts = [("count and largest magnitude", before - reader.remaining)]
    parts.append(("exponents", len(reader.take(layout.segments(codec.scope).size))))
    parts.append(("signs", reader.bits(count).size))
    is_adaptive = reader.byte() == _ADAPTIVE_CODING
    parts.append(("coding", 1))
    found.facts["largest magnitude"] = str(largest)
    if is_adaptive and largest > 1:
        # Positions and magnitudes share a stream. Coding the positions alone gives their size.
        stream = reader.remaining
        alone = encode_entries(update.indices, np.empty(0, np.int32), 1, layout, stream + 8)
        positions = stream if alone is None else min(len(alone), stream)
        parts.append(("positions, adaptive", positions))
        parts.append(("magnitudes, adaptive", stream - positions))
    elif is_adaptive:
        positions = reader.remaining
        parts.append(("positions, adaptive", positions))
    else:
        if largest > 1:
            packed = reader.bits(count * (largest - 1).bit_length())
            parts.append(("magnitudes", packed.size))
        positions = reader.remaining
        low_bits = (count * golomb_width(count, layout.size) + 7) // 8
        parts.append(("positions, low bits", low_bits))
        parts.append(("positions, quotients", positions - low_bits))
    found.parts += parts
    # The entropy of the magnitudes is that of their own frequencies.
    frequencies = np.unique(np.abs(update.steps), return_counts=True)[1] / max(count, 1)
    value_bits = 1 - float((frequencies * np.log2(frequencies)).sum())
    _compare_with_entropy(count, layout, value_bits, found)
    _compare_positions(positions, count, layout, found)


def _compare_with_entropy(count: int, layout: Layout, value_bits: float, found: Inspection) -> None:
    """Add the number of non-zeros and the entropy bound to ``found``."""
    found.size = layout.size
    found.nonzeros = count
    if count:
        found.bits_per_nonzero = 8 * found.nbytes / count
        found.entropy_bound = _entropy(count / layout.size) * layout.size / count + value_bits


def _compare_positions(nbytes: int, count: int, layout: Layout, found: Inspection) -> None:
    """Add the bits per position to ``found``, and those of uniformly random positions."""
    if count:
        ideal = _entropy(count / layout.size) * layout.size / count
        found.facts["bits per position"] = (
            f"{8 * nbytes / count:.3f}; uniformly random positions need {ideal:.3f}"
        )


def _entropy(p: float) -> float:
    """Return the bits per position of a random pattern of density p."""
    return 0.0 if p in (0, 1) else -p * math.log2(p) - (1 - p) * math.log2(1 - p)
