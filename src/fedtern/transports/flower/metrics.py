"""Metrics in the replies of nodes: their number of examples, and the results of their apps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from logging import WARNING
from typing import TypeGuard

from flwr.app import MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import FedAvg

from fedtern.transports.flower.messages import KEY, AnswerKind
from fedtern.transports.flower.session import Reply

# Name of the record; name of each metric, with its length if it is a list.
_Signature = tuple[str, tuple[tuple[str, int | None], ...]]


def num_examples_in(reply: Reply, key: str) -> float:
    """Return the number of examples that an upload was trained on; 1 if there is no upload.

    Args:
        reply: The reply of a node.
        key: Name of the metric.

    Raises:
        ValueError: The metric is missing, or is not a positive finite number.

    """
    if reply.answer is None or reply.answer.kind is not AnswerKind.UPLOAD:
        return 1
    records = reply.content.metric_records
    weights = [record[key] for record in records.values() if key in record]
    if not weights:
        names = ", ".join(repr(name) for record in records.values() for name in record) or "none"
        raise ValueError(
            f"the train function's reply has no metric {key!r}, by which the strategy weights its"
            f" nodes; its metrics are: {names}"
        )
    weight = weights[0]
    if not _is_weight(weight) or any(other != weight for other in weights):
        found = ", ".join(map(repr, weights))
        raise ValueError(f"{key!r} must be one positive finite number, got {found}")
    return float(weight)


def aggregate_train_metrics(replies: Sequence[Reply], strategy: FedAvg) -> MetricRecord:
    """Combine the metrics of uploads as the strategy does; see ``comparable`` for exceptions."""
    key = strategy.weighted_by_key
    contents = [_weight_first(reply.content, key) for reply in comparable(replies, key)]
    if not contents:
        return MetricRecord()
    return strategy.train_metrics_aggr_fn(contents, key)


def _weight_first(content: RecordDict, key: str) -> RecordDict:
    """Return all records of a reply but the upload; Flower reads the weight from the first."""
    records = {name: record for name, record in content.items() if name != KEY}
    return RecordDict(dict(sorted(records.items(), key=lambda item: not _has_metric(item[1], key))))


def _has_metric(record: object, key: str) -> bool:
    return isinstance(record, MetricRecord) and key in record


def comparable(replies: Sequence[Reply], key: str) -> list[Reply]:
    """Return the replies whose metrics can be combined.

    These have a weight, and the same metrics as most of the replies. The others are logged.

    Args:
        replies: Replies of nodes.
        key: Name of the metric that is the weight of a reply.

    """
    signed = [(_signature(reply), reply) for reply in replies if _has_usable_weight(reply, key)]
    counts = Counter(signature for signature, _ in signed).most_common(1)
    signature = counts[0][0] if counts else ()
    names = [metric for _, metrics in signature for metric, _ in metrics]
    usable = [reply for found, reply in signed if found == signature and key in names]
    if len(usable) < len(replies):
        log(
            WARNING,
            "fedtern: %s nodes report other metrics than %s in %s, or no %r: theirs are left out",
            len(replies) - len(usable),
            names,
            ", ".join(repr(record) for record, _ in signature),
            key,
        )
    return usable


def _signature(reply: Reply) -> tuple[_Signature, ...]:
    """Return the names of all metrics of a reply, by record."""
    return tuple(
        (name, tuple((k, len(v) if isinstance(v, list) else None) for k, v in sorted(r.items())))
        for name, r in reply.content.metric_records.items()
    )


def _has_usable_weight(reply: Reply, key: str) -> bool:
    """Return whether the weights in a reply are positive and finite; none at all is fine here."""
    return all(_is_weight(r[key]) for r in reply.content.metric_records.values() if key in r)


def _is_weight(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 < value < math.inf
