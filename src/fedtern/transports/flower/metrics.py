"""What nodes say besides their updates: how many examples they have, and how well they did."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from logging import WARNING

from flwr.app import MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import FedAvg

from fedtern.transports.flower.messages import UPLOAD
from fedtern.transports.flower.session import Reply

_Form = tuple[str, tuple[tuple[str, int | None], ...]]


def weight_of(reply: Reply, key: str) -> int:
    """The number of examples that an upload was trained on; 1 where there is no upload."""
    if reply.answer is None or reply.answer.kind != UPLOAD:
        return 1
    records = list(reply.content.metric_records.values())
    found = records[0].get(key) if len(records) == 1 else None
    # Not finite is not whole, either.
    if not isinstance(found, int | float) or found < 1 or not float(found).is_integer():
        raise ValueError(
            f"expected one MetricRecord with {key!r}, a whole number of at least 1, got {found!r}"
            f" in {len(records)} records"
        )
    return int(found)


def aggregate(replies: Sequence[Reply], strategy: FedAvg) -> MetricRecord:
    """The metrics of uploads, as the strategy combines them; the odd ones are left out."""
    alike = comparable(replies, strategy.weighted_by_key)
    contents = [RecordDict(dict(reply.content.metric_records)) for reply in alike]
    if not contents:
        return MetricRecord()
    return strategy.train_metrics_aggr_fn(contents, strategy.weighted_by_key)


def comparable(replies: Sequence[Reply], key: str) -> list[Reply]:
    """Those whose metrics can be combined: they report the same things, and have a weight."""
    forms = [(_form(reply), reply) for reply in replies if _counts(reply, key)]
    nothing: _Form = "", ()
    ((usual, _),) = Counter(form for form, _ in forms).most_common(1) or [(nothing, 0)]
    alike = [reply for form, reply in forms if form == usual and (key, None) in usual[1]]
    if len(alike) < len(replies):
        names = [name for name, _ in usual[1]]
        log(WARNING, "fedtern: %s nodes report other metrics than %s in %r, or no %r: theirs are"
            " left out", len(replies) - len(alike), names, usual[0], key)  # fmt: skip
    return alike


def _form(reply: Reply) -> _Form:
    """The record's name, and names and lengths of what is in it; nothing but for one record."""
    records = reply.content.metric_records
    if len(records) != 1:
        return "", ()
    ((name, record),) = records.items()
    metrics = sorted(record.items())
    return name, tuple((k, len(v) if isinstance(v, list) else None) for k, v in metrics)


def _counts(reply: Reply, key: str) -> bool:
    """Whether a reply can be weighed with others: metrics without a weight are nobody's mean."""
    weights = [r[key] for r in reply.content.metric_records.values() if key in r]
    return all(isinstance(w, int | float) and 0 < w < math.inf for w in weights)
