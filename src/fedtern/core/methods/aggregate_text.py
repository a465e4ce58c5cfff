"""Aggregations as text: the parameter ``aggregate`` that every method has.

The text is part of a method's spec, so that peers compare it and stores and experiments keep it.
"""

from __future__ import annotations

from dataclasses import replace

from fedtern.core.codecs import (
    AdaptiveCodec,
    BinaryCodec,
    MaskedCodec,
    PaletteCodec,
    PowersCodec,
    SketchedCodec,
    SparseCodec,
    StepsCodec,
    TernaryCodec,
)
from fedtern.core.methods.aggregation import Mean
from fedtern.core.methods.method import Method
from fedtern.core.methods.robust import ClippedMean, CoordinateMedian, Krum, TrimmedMean
from fedtern.core.names import look_up
from fedtern.core.numbers import format_shortest, parse_number

AGGREGATE = "aggregate"
"""The name of the parameter."""

AGGREGATES = {
    "mean": "mean",
    "median": "median",
    "trimmed-mean": "trimmed-mean:0.1",
    "krum": "krum:1",
    "clip": "clip:0.5",
}
"""Every aggregation by its name, with an example of its text."""

RobustAggregate = ClippedMean | CoordinateMedian | TrimmedMean | Krum

_SPARSE = (
    AdaptiveCodec,
    BinaryCodec,
    MaskedCodec,
    PaletteCodec,
    PowersCodec,
    SketchedCodec,
    SparseCodec,
    StepsCodec,
    TernaryCodec,
)


def parse_aggregate(text: str) -> RobustAggregate | None:
    """Parse the text of an aggregation; None for "mean", which leaves the method's own mean.

    >>> parse_aggregate("trimmed-mean:0.2")
    TrimmedMean(share=0.2)

    Raises:
        ValueError: the name is unknown, or its value is missing, superfluous or out of range.

    """
    name, colon, value = text.partition(":")
    example = look_up(name, AGGREGATES, "aggregation")
    if colon and ":" not in example:
        raise ValueError(f"Aggregation {name!r} takes no value, got {text!r}; use {name!r}.")
    try:
        if name == "median":
            return CoordinateMedian()
        if name == "trimmed-mean":
            return TrimmedMean(parse_number(value)) if colon else TrimmedMean()
        if name == "krum":
            return Krum(_parse_integer(value)) if colon else Krum()
        if name == "clip":
            return ClippedMean(parse_number(value))
    except ValueError as error:
        raise ValueError(
            f"Invalid aggregation {text!r}: {error}; use for example {example!r}."
        ) from error
    return None


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, got {text!r}") from None


def format_aggregate(aggregate: RobustAggregate) -> str:
    """Return the text of an aggregation: the same text for the same aggregation.

    >>> [format_aggregate(each) for each in (Krum(), TrimmedMean(1 / 4), ClippedMean(2))]
    ['krum:1', 'trimmed-mean:0.25', 'clip:2']
    """
    if isinstance(aggregate, TrimmedMean):
        return f"trimmed-mean:{format_shortest(aggregate.share)}"
    if isinstance(aggregate, Krum):
        return f"krum:{aggregate.liars}"
    if isinstance(aggregate, ClippedMean):
        return f"clip:{format_shortest(aggregate.max_norm)}"
    return "median"


def normalize_aggregate(text: str | None) -> str | None:
    """Return the canonical text of an aggregation; None for the mean.

    >>> normalize_aggregate("trimmed-mean"), normalize_aggregate("mean")
    ('trimmed-mean:0.1', None)
    """
    aggregate = None if text is None else parse_aggregate(text)
    return None if aggregate is None else format_aggregate(aggregate)


def supports_aggregates(method: Method) -> bool:
    """Return whether another aggregation can replace that of a method."""
    return isinstance(method.aggregate, Mean) and not _hides_uploads(method)


def with_aggregate(method: Method, text: str) -> Method:
    """Return a method with another aggregation, which is part of its spec.

    Args:
        method: a method that averages updates.
        text: "mean", "median", "trimmed-mean:SHARE", "krum:LIARS" or "clip:NORM".

    Raises:
        ValueError: the text is invalid, or the method does not support the aggregation.

    """
    aggregate = parse_aggregate(text)
    if aggregate is None:
        return method
    shown = format_aggregate(aggregate)
    refused = f"Method {method.name or 'without a name'!r} does not support aggregate={shown}"
    mean = method.aggregate
    if not isinstance(mean, Mean):
        raise ValueError(
            f"{refused}: it has an aggregation of its own, {mean.part_id!r}. Remove the aggregation"
            " or use another method, such as fedavg."
        )
    if _hides_uploads(method):
        raise ValueError(
            f"{refused}: with secure aggregation, the server sees only the sum of the uploads."
            " Remove the aggregation or use another method, such as fedavg."
        )
    if isinstance(aggregate, ClippedMean):
        aggregate = replace(aggregate, weighted=mean.weighted)
    elif isinstance(method.up.codec, _SPARSE):
        raise ValueError(
            f"{refused}: it sends a few values of each update, and different clients send different"
            " ones. Use clip:NORM, or a dense method, such as fedavg."
        )
    elif mean.weighted:
        raise ValueError(
            f"{refused} together with weighted=true: this aggregation counts all clients the same."
            " Remove weighted, or use clip:NORM."
        )
    return replace(method, aggregate=aggregate, parameters={**method.parameters, AGGREGATE: shown})


def _hides_uploads(method: Method) -> bool:
    """Return whether the server sees only the sum of the uploads."""
    compressor = getattr(method.up.feedback, "compressor", None)
    return getattr(compressor, "hides_uploads", False)
