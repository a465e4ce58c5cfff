"""The primary metric of a run, and which of its values are better."""

from __future__ import annotations

import math

import pytest

from fedtern.data.metric_spec import MetricSpec

PERPLEXITY = MetricSpec("perplexity", "lower")


def test_a_run_without_a_metric_has_accuracy():
    assert MetricSpec.of_run({}) == MetricSpec.of_run({"metric": 3}) == MetricSpec()


def test_a_metric_survives_the_configuration_of_a_run():
    assert MetricSpec.of_run({"metric": PERPLEXITY.to_json()}) == PERPLEXITY


def test_the_value_is_a_field_of_the_line_or_of_its_metrics():
    assert MetricSpec().value({"accuracy": 0.5}) == 0.5
    assert PERPLEXITY.value({"accuracy": None, "metrics": {"perplexity": 3.5}}) == 3.5
    for missing in ({}, {"metrics": {"perplexity": None}}, {"perplexity": math.inf}):
        assert PERPLEXITY.value(missing) is None


@pytest.mark.parametrize(("spec", "better", "worse"), [(MetricSpec(), 2, 1), (PERPLEXITY, 1, 2)])
def test_better_follows_the_direction(spec, better, worse):
    assert spec.is_better(better, worse)
    assert not spec.is_better(worse, better)
    assert not spec.is_better(math.nan, worse)
    assert spec.best_of([worse, better]) == better
    assert spec.best_of([]) is None
    assert spec.rank(better) < spec.rank(worse) < spec.rank(None)


def test_small_and_large_values_keep_four_digits():
    assert [PERPLEXITY.format(v) for v in (0.00123456, 12.345, 123456.0)] == [
        "0.001235", "12.35", "1.235e+05",
    ]  # fmt: skip
