"""Optimisers of torch on clients: the same steps as in torch, and a state for each client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from fedtern.federation.client_session import Job
from fedtern.training.flat import FlatModel
from fedtern.training.local_training import LocalTraining
from fedtern.training.optimizers import check_factor, torch_schedule
from training.factories import convolution, local_training, perceptron

OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, 1e-2),
    "groups": lambda p: torch.optim.Adam([{"params": p[:2], "lr": 0.1}, {"params": p[2:]}], 1e-2),
}


def training(model, optimizer, schedule=None, steps=2) -> LocalTraining:
    local = local_training(model, steps, momentum=0.0)
    return LocalTraining(
        local.model,
        (local.train_examples, local.test_examples),
        local.split,
        local.sgd,
        batch_size=7,
        local_steps=steps,
        optimizer=optimizer,
        schedule=schedule,
        seed=5,
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_in_two_rounds_equal_those_of_torch(name):
    local = training(perceptron, OPTIMIZERS[name], lambda i: 1 / (1 + i))
    weights = local.model.weights
    (first,) = local.train(weights, [Job(2, 0, 0)])
    list(local.train(weights, [Job(3, 0, 0)]))  # another client must not change the state
    (second,) = local.train(weights + first.delta, [Job(2, 2, 1, state=first.state)])

    reference = perceptron()
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.tensor(weights), reference.parameters())
    optimizer = OPTIMIZERS[name](list(reference.parameters()))
    rates = [group["lr"] for group in optimizer.param_groups]
    batches = [b for job in (Job(2, 0), Job(2, 2)) for b, _ in local.batches(job)]
    for i, indices in enumerate(batches):
        inputs, labels = local.train_examples.batch(indices)
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(inputs), labels).backward()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate / (1 + i)
        optimizer.step()
    expected = nn.utils.parameters_to_vector(reference.parameters()).detach().numpy()
    assert np.allclose(weights + first.delta + second.delta, expected, rtol=1e-4, atol=1e-5)


def test_training_leaves_the_model_unchanged():
    local = training(convolution, OPTIMIZERS["adam"])
    before = local.model.weights
    list(local.train(before, [Job(0, 0), Job(1, 0)]))
    assert np.array_equal(local.model.weights, before)


class Counting(torch.optim.SGD):
    """Keeps a counter that is not a tensor."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["nothing"] = None


def test_numbers_in_the_state_are_kept():
    local = training(perceptron, lambda p: Counting(p, 0.1))
    weights = local.model.weights
    (first,) = local.train(weights, [Job(0, 0)])
    (second,) = local.train(weights, [Job(0, 2, 1, state=first.state)])
    assert second.state is not None
    assert {int(v) for v in local.state_packing.views(second.state).values()} == {4}


class InGroups(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1


class WithList(torch.optim.SGD):
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["history"] = [parameter.grad]


class WithGlobal(torch.optim.SGD):
    def step(self, closure=None):
        self.state["everything"]["count"] = 1


class Growing(torch.optim.SGD):
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            count = len(self.state[parameter].get("history", [])) + 1
            self.state[parameter]["history"] = torch.zeros(count)


OTHERS = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.LBFGS, r"optimiser LBFGS cannot be used: its step\(\) failed"),
        (torch.optim.SparseAdam, "optimiser SparseAdam cannot be used"),
        (lambda p: InGroups(p, 0.1), "state of optimiser InGroups cannot .* parameter groups"),
        (lambda p: WithList(p, 0.1), "state of optimiser WithList .* 'history' is a list, not a"),
        (
            lambda p: WithGlobal(p, 0.1),
            "optimiser WithGlobal .* 'everything', which is not a param",
        ),
        (lambda p: torch.optim.Adam, "must be a function that makes a torch optimiser.* returned"),
        (lambda p: torch.optim.Adam(OTHERS.parameters()), "must use the parameters that it is"),
    ],
)
def test_an_optimiser_whose_state_cannot_be_kept_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        FlatModel(perceptron()).make_optimizer(make)


def test_a_state_that_grows_is_named_with_both_shapes():
    local = training(perceptron, lambda p: Growing(p, 0.1))
    with pytest.raises(ValueError, match=r"'optimizer.0.history' was float32\[1\] and now is .*2"):
        list(local.train(local.model.weights, [Job(0, 0)]))


def test_a_scheduler_of_torch_gives_factors():
    schedule = torch_schedule(lambda o: lr_scheduler.CosineAnnealingLR(o, 10))
    assert schedule(10) == pytest.approx(0, abs=1e-9)
    assert schedule(5) == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"needs a function that makes a scheduler .* got 3"):
        torch_schedule(lambda _: 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau needs the loss"),
        (
            lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=10),
            "OneCycleLR sets learning rates",
        ),
        (lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.01), "CyclicLR sets learning rates"),
    ],
)
def test_a_scheduler_without_factors_is_an_error_with_its_name(make, message):
    with pytest.raises(ValueError, match=message):
        torch_schedule(make)


@pytest.mark.parametrize("factor", [-1, float("nan"), "fast", None])
def test_a_factor_that_is_no_learning_rate_is_an_error_with_the_iteration(factor):
    with pytest.raises(ValueError, match=f"got {factor!r} at iteration 7"):
        check_factor(lambda _: factor, 7)
