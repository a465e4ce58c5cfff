"""The choice of a trainer."""

from __future__ import annotations

import multiprocessing

import pytest

pytest.importorskip("torch")

from torch import nn

from fedtern.training.batched_mlp import BatchedMlpTraining
from fedtern.transports.local.trainers import choose_trainer
from fedtern.transports.local.workers import ParallelTraining
from training.factories import convolution, local_training, perceptron


def test_a_small_model_trains_in_this_process_unless_workers_are_requested():
    small = local_training(convolution)
    assert choose_trainer(small) is small
    assert choose_trainer(small, 1) is small
    assert isinstance(choose_trainer(local_training(perceptron), 0), BatchedMlpTraining)
    for model in (convolution, perceptron):
        chosen = choose_trainer(local_training(model), 2)
        assert isinstance(chosen, ParallelTraining)
        chosen.close()


def test_a_negative_number_of_workers_is_an_error():
    with pytest.raises(ValueError, match="workers must not be negative, got -1"):
        choose_trainer(local_training(convolution), -1)


def test_a_large_perceptron_trains_without_workers():
    def wide() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2000), nn.ReLU(), nn.Linear(2000, 4))

    assert isinstance(choose_trainer(local_training(wide), 2), BatchedMlpTraining)


def test_a_daemon_process_trains_without_workers(monkeypatch):
    small = local_training(convolution)
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert choose_trainer(small, 2) is small
    assert isinstance(choose_trainer(local_training(perceptron)), BatchedMlpTraining)
