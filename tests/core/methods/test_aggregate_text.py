"""The parameter ``aggregate`` of methods."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fedtern.core.methods import (
    METHODS,
    ClippedMean,
    CoordinateMedian,
    Krum,
    Mean,
    Method,
    Recipe,
    TrimmedMean,
    fedavg,
    make_method,
    method_from_spec,
    signsgd,
    stc,
    with_aggregate,
)
from fedtern.core.methods.aggregate_text import AGGREGATES, format_aggregate, parse_aggregate
from fedtern.core.methods.robust import min_uploads
from fedtern.privacy.secure import secure_topk

TEXTS = {
    "median": CoordinateMedian(),
    "trimmed-mean": TrimmedMean(0.1),
    "trimmed-mean:1/4": TrimmedMean(0.25),
    "krum": Krum(1),
    "krum:2": Krum(2),
    "clip:0.5": ClippedMean(0.5),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_gives_an_aggregation_and_back(text):
    assert parse_aggregate(text) == TEXTS[text]
    assert parse_aggregate(format_aggregate(TEXTS[text])) == TEXTS[text]


@pytest.mark.parametrize("text", TEXTS)
def test_the_aggregation_is_part_of_the_spec_and_of_the_digest(text):
    method = make_method({"name": "fedavg", "local_steps": 25, "aggregate": text})
    assert method.aggregate == TEXTS[text]
    assert method.parameters["aggregate"] == format_aggregate(TEXTS[text])
    assert method_from_spec(method.spec) == method == with_aggregate(fedavg(25), text)
    assert method.digest != fedavg(25).digest


def test_texts_of_the_same_aggregation_give_the_same_digest():
    texts = ("trimmed-mean", "trimmed-mean:0.10", "trimmed-mean:1/10")
    assert len({with_aggregate(fedavg(), text).digest for text in texts}) == 1


@pytest.mark.parametrize("aggregate", [None, "mean"])
def test_a_method_with_its_own_mean_keeps_its_spec_and_digest(aggregate):
    method = make_method({"name": "stc", "aggregate": aggregate})
    assert method == stc()
    assert "aggregate" not in method.parameters
    assert method.digest == stc().digest
    assert make_method({"name": "signsgd", "aggregate": aggregate}) == signsgd()


def test_a_clipped_mean_keeps_the_weights_of_the_method():
    assert with_aggregate(fedavg(weighted=True), "clip:2").aggregate == ClippedMean(2, True)
    assert with_aggregate(stc(), "clip:2").aggregate == ClippedMean(2)


def test_only_krum_needs_several_uploads():
    assert [min_uploads(each) for each in (Krum(0), Krum(2), CoordinateMedian(), Mean())] == [
        3,
        7,
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("medain", "Unknown aggregation 'medain'. Did you mean 'median'"),
        ("", "Unknown aggregation ''. Available: mean, median, trimmed-mean, krum, clip."),
        ("median:3", "Aggregation 'median' takes no value, got 'median:3'; use 'median'"),
        ("trimmed-mean:0.5", "share must be above 0 and below 0.5, got 0.5; use for example"),
        ("trimmed-mean:", "expected a number or a fraction"),
        ("krum:0.5", "Invalid aggregation 'krum:0.5': expected a whole number, got '0.5'"),
        ("krum:-1", "liars must be at least 0, got -1; use for example 'krum:1'"),
        ("clip", "Invalid aggregation 'clip': expected a number"),
        ("clip:0", "max_norm must be positive, got 0"),
        ("clip:inf", "expected a number or a fraction like 1/400, got 'inf'"),
    ],
)
def test_an_invalid_text_is_an_error_with_its_value_and_an_example(text, message):
    with pytest.raises(ValueError, match=r"[Aa]ggregation ") as error:
        fedavg(aggregate=text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        (stc, "median", "'stc' does not support aggregate=median: it sends a few values"),
        (stc, "krum:2", "'stc' does not support aggregate=krum:2: it sends a few values"),
        (METHODS["sketched"], "trimmed-mean", "it sends a few values of each update"),
        (signsgd, "clip:1", "it has an aggregation of its own, 'majority_vote'"),
        (secure_topk, "clip:1", "the server sees only the sum of the uploads"),
        (lambda: fedavg(weighted=True), "median", "together with weighted=true"),
    ],
)
def test_an_unsupported_aggregation_is_an_error_with_the_remedy(make, text, message):
    with pytest.raises(ValueError, match="does not support aggregate=") as error:
        with_aggregate(make(), text)
    assert message in str(error.value)
    assert "Use " in str(error.value) or "Remove " in str(error.value)


DENSE = {"sgd", "fedavg", "ef_signsgd", "terngrad", "qsgd", "grid", "atomo", "powersgd", "eden"}


@pytest.mark.parametrize("name", METHODS)
def test_dense_methods_support_every_aggregation_and_sparse_ones_clipping(name):
    supported = set()
    for text in AGGREGATES.values():
        with suppress(ValueError):
            method = METHODS[name](aggregate=text)
            assert method_from_spec(method.spec) == method
            supported.add(text.partition(":")[0])
    if name in DENSE | {"demo"}:
        assert supported == set(AGGREGATES)
    else:
        assert supported == {"mean"} if name == "signsgd" else {"mean", "clip"}


def test_a_recipe_with_a_parameter_aggregate_of_its_own_keeps_it():
    def mine(aggregate: int = 3) -> Method:
        """Count."""
        return fedavg(aggregate)

    recipe = Recipe(mine, "mine")
    assert recipe(aggregate=7).local_steps == 7
    assert recipe(5).parameters == {"aggregate": 5}
    assert recipe().parameters == {"aggregate": 3}
