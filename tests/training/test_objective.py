"""Losses and metrics."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from torch.nn.functional import mse_loss

from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation
from fedtern.training.objective import ACCURACY, CLASSIFICATION, BatchScores, Metric, Objective


def zero(_outputs, _targets):
    return 0.0


def test_classification_reports_sums_of_losses_and_correct_predictions():
    scores = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    loss, metrics = CLASSIFICATION.score(scores, torch.tensor([0, 1, 1]))
    expected = torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1, 1]), reduction="sum")
    assert (loss, metrics) == (float(expected), (2.0,))


def test_an_example_with_several_labels_counts_as_its_share_of_correct_ones():
    scores = torch.zeros(1, 3, 4)  # example, class, position
    scores[0, 2, :3] = 1
    assert ACCURACY.total(scores, torch.full((1, 4), 2)) == 0.75


def test_a_transform_applies_to_the_mean_over_all_batches():
    rmse = Objective(mse_loss, (Metric("rmse", mse_loss, "lower", math.sqrt),))
    first = rmse.score(torch.tensor([[1.0], [1.0], [1.0]]), torch.zeros(3, 1))
    second = rmse.score(torch.tensor([[5.0]]), torch.zeros(1, 1))
    scores = rmse.combine([first, second], 4)
    assert scores.loss == 7
    assert scores.metrics == {"rmse": math.sqrt(7)}


def test_a_transform_that_overflows_gives_the_worst_value():
    perplexity = Metric("perplexity", zero, "lower", math.exp)
    assert perplexity.finish(1e6, 1) == math.inf
    assert Metric("root", zero, "higher", math.sqrt).finish(-1.0, 1) == -math.inf


def test_the_first_metric_is_the_primary_one_and_the_loss_if_there_is_none():
    both = Objective.of(mse_loss, {"a": zero, "b": Metric("b", zero, "lower")})
    assert [metric.spec for metric in both.metrics] == [MetricSpec("a"), MetricSpec("b", "lower")]
    assert both.primary == MetricSpec("a")
    assert Objective.of().primary == MetricSpec("accuracy")
    assert Objective.of(mse_loss).primary == MetricSpec("loss", "lower")
    assert Objective.of(mse_loss).combine([BatchScores(3.0, ())], 2) == (1.5, {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Objective.of("mse"), "loss must be a function of outputs and targets, got 'mse'"),
        (lambda: Objective.of(None, "accuracy"), "metrics must be a list .* got 'accuracy'"),
        (lambda: Objective.of(None, 3), "metrics must be a list of fedtern.training.Metric .* 3"),
        (lambda: Objective.of(None, [ACCURACY, ACCURACY]), "different names, got accuracy, acc"),
        (lambda: Metric("", zero), "a metric needs a name, got ''"),
        (lambda: Metric("a", 3), "metric 'a' needs a function of outputs and targets, got 3"),
        (lambda: Metric("a", zero, "max"), 'must be "higher" or "lower", got \'max\''),
        (lambda: Metric("loss", zero), "'loss' is always reported"),
        (lambda: Metric("a", zero, reduction="max"), 'must be "mean" or "sum", got \'max\''),
        (
            lambda: Objective(lambda o, t: o - t).mean_loss(torch.ones(2), torch.ones(2)),
            r"with one value, the mean of the batch, got shape \(2,\)",
        ),
        (lambda: Objective(zero).mean_loss(torch.ones(2), torch.ones(2)), "of the batch, got 0.0"),
    ],
)
def test_an_invalid_loss_or_metric_is_an_error_with_the_reason(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", [field.name for field in fields(Evaluation)])
def test_a_metric_cannot_have_the_name_of_a_field_of_evaluations(name):
    if name == "accuracy":
        assert Metric(name, mse_loss).name == name
        return
    with pytest.raises(ValueError, match="choose another name for the metric"):
        Metric(name, mse_loss)
