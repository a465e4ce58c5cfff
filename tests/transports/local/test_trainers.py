"""Who trains makes no difference to what is learned."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fedtern import METHODS, Environment, FedternError, sgd, stc  # noqa: E402
from fedtern.data import Dataset, Split  # noqa: E402
from fedtern.data.hyperparameters import Sgd  # noqa: E402
from fedtern.federation.client_session import Job  # noqa: E402
from fedtern.training import Task  # noqa: E402
from fedtern.training.augment import CropFlip  # noqa: E402
from fedtern.training.batched_mlp import StackTraining  # noqa: E402
from fedtern.training.flat import FlatModel  # noqa: E402
from fedtern.training.local_training import LocalTraining  # noqa: E402
from fedtern.transports.local.shared_vectors import Blocks  # noqa: E402
from fedtern.transports.local.simulation import federate, simulate  # noqa: E402
from fedtern.transports.local.trainers import choose_trainer  # noqa: E402
from fedtern.transports.local.worker import EVALUATE, _evaluate  # noqa: E402
from fedtern.transports.local.workers import ParallelTraining  # noqa: E402

SOME = Environment(clients=6, participation=0.5, classes_per_client=2, batch_size=7)


def pictures(size: int = 150) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (size, 1, 8, 8), np.uint8)
    return Dataset("pictures", x[30:], np.arange(size - 30) % 4, x[:30], np.arange(30) % 4, 4)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 4)
    )


def local(model, steps=1, momentum=0.9, observe=False, restriction=None, augment=None):
    data = pictures()
    task = Task("t", data, model, 0.1, 1, augment=augment)
    options = {} if restriction is None else {"restriction": restriction}
    return LocalTraining(
        FlatModel(task.build(0)),
        task.examples(data),
        SOME.split_dataset(data, 0),
        Sgd(0.1, momentum, 1e-3),
        batch_size=7,
        local_steps=steps,
        observe=observe,
        seed=5,
        **options,
    )


def half(client: int, round: int):
    def restrict(step: np.ndarray) -> None:
        step[client % 2 :: 2] = 0

    return restrict


def jobs(size: int, velocity: bool) -> list[Job]:
    speed = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    return [Job(i, 3 * i, 1, speed if velocity and i % 2 else None) for i in range(5)]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("observe", [False, True])
@pytest.mark.parametrize("restriction", [None, half])
def test_a_stack_learns_what_one_client_at_a_time_does(steps, momentum, observe, restriction):
    one = local(perceptron, steps, momentum, observe, restriction)
    many = StackTraining(one)
    weights = one.model.weights
    wanted = jobs(weights.size, velocity=momentum > 0)
    for a, b in zip(one.train(weights, wanted), many.train(weights, wanted), strict=True):
        assert np.allclose(a.delta, b.delta, rtol=1e-4, atol=1e-5)
        for x, y in ((a.velocity, b.velocity), (a.moments, b.moments)):
            assert (x is None) == (y is None)
            assert x is None or np.allclose(x, y, rtol=1e-4, atol=1e-5)
    assert one.evaluate(weights) == many.evaluate(weights)


def alone(one: LocalTraining) -> LocalTraining | StackTraining:
    found = choose_trainer(one, 0)
    assert isinstance(found, LocalTraining | StackTraining)
    return found


def test_a_cohort_larger_than_a_stack_is_trained_in_parts(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(StackTraining, "together", 2)
    one = alone(local(perceptron))
    many = ParallelTraining(one, 2)
    weights = many.local.model.weights
    wanted = [Job(i % 6, i) for i in range(11)]
    try:
        for a, b in zip(one.train(weights, wanted), many.train(weights, wanted), strict=True):
            assert np.array_equal(a.delta, b.delta)
        assert len(many._workers) == 1
        with pytest.raises(IndexError):
            list(many.train(weights, [Job(0, 0), Job(99, 0), Job(1, 0)]))
        assert len(list(many.train(weights, wanted))) == 11
    finally:
        many.close()


NO_STACKS = {
    "a convolution": convolution,
    "a layer without bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4, bias=False)),
    "another activation": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 4)
    ),
    "two linear layers in a row": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4)
    ),
    "an activation at the end": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU()),
    "pictures that are not flattened": lambda: nn.Sequential(nn.Linear(8, 4)),
}


@pytest.mark.parametrize("name", NO_STACKS)
def test_other_models_are_no_stacks(name):
    assert not StackTraining.suits(local(NO_STACKS[name]))


def test_a_stack_learns_the_same_bits_whoever_else_is_in_the_cohort():
    """A node of a real federation trains alone."""
    torch.set_num_threads(1)
    one = local(perceptron, 3)
    # Data for epochs that end in batches of different lengths.
    one.split = Split(tuple(np.arange(n) for n in (20, 9, 15, 5, 11, 7)))
    stack, weights = StackTraining(one), one.model.weights
    for position in (0, 1, 2):
        cohort = [Job(client, position) for client in range(6)]
        for job, together in zip(cohort, stack.train(weights, cohort), strict=True):
            (alone,) = stack.train(weights, [job])
            assert np.array_equal(alone.delta, together.delta)


def test_what_is_augmented_is_no_stack():
    assert StackTraining.suits(local(perceptron))
    assert not StackTraining.suits(local(perceptron, augment=CropFlip()))


@pytest.mark.parametrize("observe", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("model", [convolution, perceptron])
def test_workers_learn_bit_for_bit_what_one_process_does(model, momentum, observe):
    torch.set_num_threads(1)
    one = alone(local(model, 2, momentum, observe, half))
    many = ParallelTraining(one, 3)
    weights = many.local.model.weights
    wanted = jobs(weights.size, velocity=momentum > 0)
    try:
        for _ in range(2):
            for a, b in zip(one.train(weights, wanted), many.train(weights, wanted), strict=True):
                for x, y in zip(a, b, strict=True):
                    assert (x is None) == (y is None)
                    assert x is None or np.array_equal(x, y)
        assert one.evaluate(weights) == many.evaluate(weights)
        some = many.train(weights, wanted)
        next(some)
        some.close()  # whoever stops listening does not confuse the next one
        assert np.array_equal(
            next(many.train(weights, wanted)).delta, next(one.train(weights, wanted)).delta
        )
    finally:
        many.close()


def test_a_worker_that_dies_is_one_sentence():
    many = ParallelTraining(local(convolution), 2)
    weights = many.local.model.weights
    os.kill(many._workers[1].process.pid, signal.SIGKILL)
    many._workers[1].process.join()
    with pytest.raises(FedternError, match=r"a worker process has died .* --workers 0"):
        list(many.train(weights, jobs(weights.size, velocity=False)))
    many.close()


def test_what_goes_wrong_in_a_worker_is_raised_here_and_the_others_go_on():
    many = ParallelTraining(local(convolution), 2)
    weights = many.local.model.weights
    try:
        for _ in range(3):
            with pytest.raises(IndexError):
                list(many.train(weights, [Job(99, 0), Job(98, 0), Job(0, 0)]))
        assert len(list(many.train(weights, [Job(0, 0)]))) == 1
        many._order(EVALUATE, [(None, (0, 1))])  # as if somebody had been interrupted
        assert many.evaluate(weights) == many.local.evaluate(weights)
    finally:
        many.close()


def test_an_answer_that_was_interrupted_is_not_waited_for(monkeypatch):
    many = ParallelTraining(local(convolution), 2)
    weights = many.local.model.weights

    def interrupted():
        raise KeyboardInterrupt

    for worker in many._workers:
        monkeypatch.setattr(worker.pipe, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(many.train(weights, [Job(0, 0)] * 4))
    with pytest.raises(FedternError, match="has been closed: make another, or resume its run"):
        many.evaluate(weights)


def test_small_models_and_explicit_wishes_decide_who_trains():
    small = local(convolution)
    assert choose_trainer(small) is small
    assert choose_trainer(small, 1) is small
    assert isinstance(choose_trainer(local(perceptron), 0), StackTraining)
    for model in (convolution, perceptron):
        chosen = choose_trainer(local(model), 2)
        assert isinstance(chosen, ParallelTraining)
        chosen.close()
    with pytest.raises(ValueError, match="workers must not be negative, got -1"):
        choose_trainer(small, -1)


def test_large_stacks_and_processes_of_a_pool_do_without_workers(monkeypatch):
    def wide() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2000), nn.ReLU(), nn.Linear(2000, 4))

    assert isinstance(choose_trainer(local(wide), 2), StackTraining)
    small = local(convolution)
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert choose_trainer(small, 2) is small
    assert isinstance(choose_trainer(local(perceptron)), StackTraining)


def test_who_goes_on_after_closing_is_told_so():
    many = ParallelTraining(local(convolution), 2)
    weights = many.local.model.weights
    many.close()
    many.close()
    with pytest.raises(FedternError, match="this federation has been closed"):
        many.evaluate(weights)


def test_a_forked_copy_does_not_end_the_workers():
    many = ParallelTraining(local(convolution), 2)
    weights = many.local.model.weights
    try:
        if (child := os.fork()) == 0:
            many.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert len(list(many.train(weights, [Job(0, 0), Job(1, 0), Job(2, 0)]))) == 3
    finally:
        many.close()


@pytest.mark.parametrize("method", [stc(0.1, 0.1, local_steps=2), sgd(), METHODS["structured"]()])
@pytest.mark.parametrize("model", [convolution, perceptron])
def test_a_federation_gives_the_same_bytes_whatever_the_number_of_workers(model, method):
    torch.set_num_threads(1)
    data = pictures()
    task = Task("t", data, model, 0.1, 1)
    found = []
    for workers in (0, 2):
        made = federate(task, data, method, SOME, Sgd(0.1, 0.9), seed=1, workers=workers)
        for _ in range(4):
            made.step()
        found.append((made.server.weights.copy(), replace(made.evaluate(), seconds={})))
        made.close()
    assert found[0][0].tobytes() == found[1][0].tobytes()
    assert found[0][1] == found[1][1]


def test_a_snapshot_is_a_value_where_workers_train():
    data = pictures()
    task = Task("t", data, convolution, 0.1, 1)
    made = federate(task, data, stc(0.1, 0.1), SOME, Sgd(0.1, 0.9), seed=1, workers=2)
    try:
        for _ in range(3):
            made.step()
        taken = made.snapshot()
        before = taken.to_bytes()
        for _ in range(4):
            made.step()
        assert taken.to_bytes() == before
    finally:
        made.close()


@pytest.mark.parametrize("asked", [0, 1])
def test_simulate_ends_its_workers(asked):
    rounds = simulate(
        convolution(), pictures(), iterations=4, learning_rate=0.1, environment=SOME, workers=2
    )
    for _ in range(asked):
        next(rounds)
    before = len(torch.multiprocessing.active_children())
    rounds.close()
    assert len(torch.multiprocessing.active_children()) == before - 2
    rounds.close()
    assert list(rounds) == []


def test_a_test_is_summed_in_the_order_of_its_chunks(monkeypatch):
    monkeypatch.setattr("fedtern.transports.local.worker.CHUNK", 4)
    one = local(convolution)
    shares = [_evaluate(one, share, 3) for share in range(3)]
    chunks = [one.model.test(*batch) for batch in one.test.chunks(4)]
    told = sorted(chunk for share in shares for chunk in share)
    assert told == [(number, *chunk) for number, chunk in enumerate(chunks)]


def test_workers_end_when_nobody_holds_them():
    many = ParallelTraining(local(convolution), 2)
    processes = [worker.process for worker in many._workers]
    assert all(process.is_alive() for process in processes)
    del many
    gc.collect()
    assert not any(process.is_alive() for process in processes)


def test_layers_that_share_weights_are_no_stack():
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        model[3].weight = model[1].weight
        return model

    assert not StackTraining.suits(local(tied))


def test_an_error_in_a_worker_does_not_confuse_what_follows():
    def once(client: int, round: int):
        if round == 7:
            raise KeyError("seven")

    many = ParallelTraining(local(convolution, restriction=once), 2)
    weights = many.local.model.weights
    try:
        with pytest.raises(KeyError):
            list(many.train(weights, [Job(i, 0, 7 if i == 1 else 0) for i in range(5)]))
        assert len(list(many.train(weights, jobs(weights.size, velocity=False)))) == 5
        assert many.evaluate(weights) == many.local.evaluate(weights)
    finally:
        many.close()


def test_moments_count_what_momentum_adds():
    without, with_it = (local(perceptron, momentum=m, observe=True) for m in (0.0, 0.9))
    weights = without.model.weights
    (a,), (b,) = (one.train(weights, [Job(0, 0)]) for one in (without, with_it))
    assert np.allclose(b.moments, 100 * a.moments, rtol=1e-4)


def test_vectors_that_processes_share_come_back_when_nobody_holds_them():
    blocks = Blocks(10, 2)
    one, two = blocks.take(), blocks.take()
    one[...], two[...] = 1, 2
    assert blocks[blocks.number(two)].tolist() == [2] * 10
    with pytest.raises(FedternError, match=r"all 2 vectors .* are held .* --workers 0"):
        blocks.take()
    assert blocks.left == 0
    part = one[3:]
    del one
    with pytest.raises(FedternError, match="are held"):
        blocks.take()
    assert part.tolist() == [1] * 7
    del part
    assert blocks.number(blocks.take()) == 0
    assert blocks.adopt(two) is two
    stranger = np.full(10, 5, np.float32)
    assert blocks.adopt(stranger) is not stranger
    assert blocks.adopt(stranger).tolist() == [5] * 10


def test_workers_leave_what_they_go_on_from_as_it_was():
    many = ParallelTraining(local(convolution), 2)
    weights = many.local.model.weights
    try:
        (first,) = many.train(weights, [Job(0, 0)])
        kept = first.velocity.copy()
        (second,) = many.train(weights, [Job(0, 1, 1, first.velocity)])
        assert np.array_equal(first.velocity, kept)
        (again,) = many.train(weights, [Job(0, 1, 1, kept)])  # as after a restart
        assert np.array_equal(again.velocity, second.velocity)
    finally:
        many.close()


def test_whoever_keeps_everything_gets_copies_in_the_end():
    many = ParallelTraining(local(convolution), 2)
    weights = many.local.model.weights
    try:
        kept = [list(many.train(weights, [Job(i, 0) for i in range(6)])) for _ in range(9)]
        assert many._blocks.left <= 17  # of 34: the rest is for what is in work
        for again in kept[1:]:
            for a, b in zip(kept[0], again, strict=True):
                assert np.array_equal(a.delta, b.delta)
                assert np.array_equal(a.velocity, b.velocity)
    finally:
        many.close()


def test_where_a_system_promises_little_there_is_room_for_what_is_in_work(monkeypatch):
    from fedtern.transports.local import workers

    def some(size: int, count: int) -> Blocks:
        if count > 16:
            raise OSError(12, "Cannot allocate memory")
        return Blocks(size, count)

    one = local(convolution)
    weights = one.model.weights
    wanted = [Job(i, 0, 0, np.ones_like(weights)) for i in range(6)]
    monkeypatch.setattr(workers, "Blocks", some)
    many = ParallelTraining(one, 2)
    try:
        for _ in range(2):
            for a, b in zip(one.train(weights, wanted), many.train(weights, wanted), strict=True):
                assert np.array_equal(a.delta, b.delta)
    finally:
        many.close()


def test_an_interrupted_step_leaves_the_model_as_it_was():
    one = local(convolution, 3)
    weights, before = one.model.weights, None

    def tired():
        yield from (one.examples.batch(np.arange(5)) for _ in range(2))
        raise KeyboardInterrupt

    before = one.evaluate(weights)
    with pytest.raises(KeyboardInterrupt):
        one.model.train(tired(), one.sgd)
    assert one.evaluate(weights) == before


def test_sparse_gradients_and_parameters_that_take_no_part_are_trained():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)
            self.unused = nn.Linear(2, 2)

        def forward(self, x):
            return self.table(x).mean(1)

    model = FlatModel(Words())
    moved = model.train([(torch.tensor([[1, 2]]), torch.tensor([3]))], Sgd(0.1)).delta != 0
    assert np.flatnonzero(moved).tolist() == list(range(4, 12))
