"""Bytes of real messages, and of catch-ups after 1 to 100 rounds away.

The messages are those of `benchmarks/messages`, which `captured.py` has written.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import captured
import peers
from captured import Captured, Message
from fedtern.core.protocol.catchup import CatchUpBuilder, encode_sum
from fedtern.core.updates import Update
from fedtern.core.updates.sums import merge_updates
from rows import Options, Row, Rows, Target

LAGS = (1, 2, 5, 10, 20, 50, 100)
DIRECTIONS = ("up", "down")
TARGETS = {
    ("cnn-kws", 10): Target("<=", 0.40),
    ("cnn-kws", 20): Target("<=", 0.32),
    ("cnn-kws", 50): Target("<=", 0.22),
}
NO_STAMP = bytes(3)
COMPRESSED = 16  # messages for each general compressor, at least


def rows(options: Options) -> Rows:
    for task in captured.TASKS[:2] if options.quick else captured.TASKS:
        found = captured.load(task)
        for direction, messages in zip(DIRECTIONS, (found.uploads, found.broadcasts), strict=True):
            few = messages[:2] if options.quick else messages
            name = f"{task}: {direction}"
            yield beside_golomb(name, few)
            yield from beside_compressors(name, few[:: max(len(few) // COMPRESSED, 1)])
            if not options.quick:
                yield beside_nncodec(name, few[len(few) // 2])
        for lag in LAGS[:4] if options.quick else LAGS:
            yield catch_up(task, found, lag)


def beside_golomb(name: str, messages: list[Message]) -> Row:
    ours = statistics.mean(len(message.data) for message in messages)
    golomb = statistics.mean(message.golomb_bytes for message in messages)
    note = f"whole messages, mean of {len(messages)}"
    return Row(name, "Golomb", ours, golomb, "bytes", note=note)


def beside_compressors(name: str, messages: list[Message]) -> Rows:
    """Compare payloads with general compressors, on the gaps between positions and the signs."""
    ours = statistics.mean(message.payload_bytes for message in messages)
    for compressor, pack in peers.general().items():
        if pack is None:
            yield Row(name, compressor, note="not installed: pip install zstandard")
            continue
        squeeze, back = pack
        sizes = []
        for message in messages:
            plain = peers.gaps(message.update)
            squeezed = squeeze(plain)
            if back(squeezed) != plain:
                raise ValueError(f"{compressor}: the decoded gaps differ from the input")
            sizes.append(len(squeezed))
        note = f"updates alone, mean of {len(messages)}"
        peer = f"{compressor} of the gaps"
        yield Row(name, peer, ours, statistics.mean(sizes), "bytes", note=note)


def beside_nncodec(name: str, message: Message) -> Row:
    """Compare one payload with DeepCABAC, which takes seconds."""
    found = peers.run_nncodec(message.update)
    if isinstance(found, str):
        return Row(name, peers.NNCODEC, note=found)
    note = "one update alone"
    return Row(name, peers.NNCODEC, message.payload_bytes, found.nbytes, "bytes", note=note)


def catch_up(task: str, found: Captured, lag: int) -> Row:
    """Compare sums of steps with the shorter of a replay and a sum of Golomb-coded updates."""
    ours = []
    theirs = []
    for end in range(LAGS[-1], len(found.broadcasts) + 1, 5):
        missed = found.broadcasts[end - lag : end]
        builder = CatchUpBuilder(0, lag, False, found.terms)
        total = _sum(found.steps[end - lag : end], found)
        replay = builder.replay_size([message.data for message in missed])
        ours.append(min(len(builder.sum(total, NO_STAMP, NO_STAMP)), replay))
        plain = _sum([message.update for message in missed], found)
        old_replay = builder.replay_size([bytes(message.golomb_bytes) for message in missed])
        theirs.append(min(len(builder.sum(plain, NO_STAMP, NO_STAMP)), old_replay))
    return Row(
        f"{task}: catch-up after {lag} round{'s' * (lag > 1)}",
        "Golomb: replay or sum",
        statistics.mean(ours),
        statistics.mean(theirs),
        "bytes",
        TARGETS.get((task, lag)),
        f"mean of {len(ours)}",
    )


def _sum(updates: Sequence[Update], found: Captured) -> bytes:
    merged = merge_updates(updates)
    assert merged is not None
    return encode_sum(merged, found.terms.layout)
