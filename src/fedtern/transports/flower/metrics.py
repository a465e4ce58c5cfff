"""Metrics in the replies of nodes: their number of examples, and the results of their apps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from logging import WARNING

from flwr.app import MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import FedAvg

from fedtern.transports.flower.messages import AnswerKind
from fedtern.transports.flower.session import Reply

# Name of the record; name of each metric, with its length if it is a list.
_Signature = tuple[str, tuple[tuple[str, int | None], ...]]


def num_examples_in(reply: Reply, key: str) -> int:
    """Return the number of examples that an upload was trained on; 1 if there is no upload.

    Args:
        reply: The reply of a node.
        key: Name of the metric.

    Raises:
        ValueError: The metric is missing, or is not a whole number of at least 1.

    """
    if reply.answer is None or reply.answer.kind is not AnswerKind.UPLOAD:
        return 1
    records = list(reply.content.metric_records.values())
    found = records[0].get(key) if len(records) == 1 else None
    # Infinity and NaN are not integers either.
    if not isinstance(found, int | float) or found < 1 or not float(found).is_integer():
        raise ValueError(
            f"expected one MetricRecord with {key!r}, a whole number of at least 1, got {found!r}"
            f" in {len(records)} records"
        )
    return int(found)


def aggregate_train_metrics(replies: Sequence[Reply], strategy: FedAvg) -> MetricRecord:
    """Combine the metrics of uploads as the strategy does; see ``comparable`` for exceptions."""
    usable = comparable(replies, strategy.weighted_by_key)
    contents = [RecordDict(dict(reply.content.metric_records)) for reply in usable]
    if not contents:
        return MetricRecord()
    return strategy.train_metrics_aggr_fn(contents, strategy.weighted_by_key)


def comparable(replies: Sequence[Reply], key: str) -> list[Reply]:
    """Return the replies whose metrics can be combined.

    These have a weight, and the same metrics as most of the replies. The others are logged.

    Args:
        replies: Replies of nodes.
        key: Name of the metric that is the weight of a reply.

    """
    signed = [(_signature(reply), reply) for reply in replies if _has_usable_weight(reply, key)]
    counts = Counter(signature for signature, _ in signed).most_common(1)
    name, metrics = counts[0][0] if counts else ("", ())
    usable = [
        reply
        for signature, reply in signed
        if signature == (name, metrics) and (key, None) in metrics
    ]
    if len(usable) < len(replies):
        log(
            WARNING,
            "fedtern: %s nodes report other metrics than %s in %r, or no %r: theirs are left out",
            len(replies) - len(usable),
            [metric for metric, _ in metrics],
            name,
            key,
        )
    return usable


def _signature(reply: Reply) -> _Signature:
    """Return name and metrics of a reply's only record; empty if it has none or several."""
    records = reply.content.metric_records
    if len(records) != 1:
        return "", ()
    ((name, record),) = records.items()
    metrics = sorted(record.items())
    return name, tuple((k, len(v) if isinstance(v, list) else None) for k, v in metrics)


def _has_usable_weight(reply: Reply, key: str) -> bool:
    """Return whether the weights in a reply are positive and finite; none at all is fine here."""
    weights = [r[key] for r in reply.content.metric_records.values() if key in r]
    return all(isinstance(w, int | float) and 0 < w < math.inf for w in weights)
