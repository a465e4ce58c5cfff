"""What nodes say besides their updates: how many examples they have, and how well they did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from logging import WARNING

from flwr.app import MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import FedAvg

from fedtern.flower.frames import UPLOAD
from fedtern.flower.session import Reply

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


def weight_of(reply: Reply, key: str) -> int:
    """The number of examples that an upload was trained on; 1 where there is no upload."""
    if reply.answer is None or reply.answer.kind != UPLOAD:
        return 1
    records = list(reply.content.metric_records.values())
    found = records[0].get(key) if len(records) == 1 else None
    if not isinstance(found, int | float) or found < 1 or found != int(found):
        raise ValueError(
            f"expected one MetricRecord with {key!r}, a whole number of at least 1, got {found!r}"
            f" in {len(records)} records"
        )
    return int(found)


def aggregate(replies: Sequence[Reply], combine: Aggregate, strategy: FedAvg) -> MetricRecord:
    """The metrics of some replies, as the strategy combines them; the odd ones are left out."""
    names = Counter(_names(reply) for reply in replies)
    usual = names.most_common(1)[0][0] if names else ()
    alike = [reply.content for reply in replies if _names(reply) == usual]
    if len(alike) < len(replies):
        log(WARNING, "fedtern: %s nodes report other metrics than %s: theirs are left out",
            len(replies) - len(alike), list(usual))  # fmt: skip
    if len(usual) == 0 or strategy.weighted_by_key not in usual:
        return MetricRecord()
    contents = [RecordDict(dict(content.metric_records)) for content in alike]
    return combine(contents, strategy.weighted_by_key)


def _names(reply: Reply) -> tuple[str, ...]:
    """The names of a reply's metrics; none where it has not exactly one record of them."""
    records = list(reply.content.metric_records.values())
    return tuple(sorted(records[0])) if len(records) == 1 else ()
