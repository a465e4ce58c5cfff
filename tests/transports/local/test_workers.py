"""Training in worker processes, compared with training in one process."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedtern import METHODS, FedternError, sgd, stc  # noqa: E402
from fedtern.data.hyperparameters import Sgd  # noqa: E402
from fedtern.federation.client_session import Job  # noqa: E402
from fedtern.training import Task  # noqa: E402
from fedtern.training.batched_mlp import BatchedMlpTraining  # noqa: E402
from fedtern.training.local_training import LocalTraining  # noqa: E402
from fedtern.transports.local import workers as workers_module  # noqa: E402
from fedtern.transports.local.shared_vectors import SharedVectors  # noqa: E402
from fedtern.transports.local.simulation import federate, simulate  # noqa: E402
from fedtern.transports.local.trainers import choose_trainer  # noqa: E402
from fedtern.transports.local.workers import Kind, ParallelTraining, evaluate_share  # noqa: E402
from training.factories import (  # noqa: E402
    SIX_CLIENTS,
    convolution,
    every_other,
    five_jobs,
    images,
    local_training,
    perceptron,
)


@pytest.fixture
def parallel():
    """Two workers that train a convolutional model."""
    training = ParallelTraining(local_training(convolution), 2)
    yield training
    training.close()


def in_one_process(local: LocalTraining) -> LocalTraining | BatchedMlpTraining:
    trainer = choose_trainer(local, 0)
    assert isinstance(trainer, LocalTraining | BatchedMlpTraining)
    return trainer


@pytest.mark.parametrize("example_moments", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("model", [convolution, perceptron])
def test_workers_give_the_same_bits_as_one_process(model, momentum, example_moments):
    single = in_one_process(local_training(model, 2, momentum, example_moments, every_other))
    parallel = ParallelTraining(single, 3)
    weights = parallel.local.model.weights
    jobs = five_jobs(weights.size, velocity=momentum > 0)
    try:
        for _ in range(2):
            for a, b in zip(
                single.train(weights, jobs), parallel.train(weights, jobs), strict=True
            ):
                for x, y in zip(a, b, strict=True):
                    assert (x is None) == (y is None)
                    assert x is None or np.array_equal(x, y)
        assert single.evaluate(weights) == parallel.evaluate(weights)
        outcomes = parallel.train(weights, jobs)
        next(outcomes)
        outcomes.close()  # unread outcomes must not affect the next jobs
        assert np.array_equal(
            next(parallel.train(weights, jobs)).delta, next(single.train(weights, jobs)).delta
        )
    finally:
        parallel.close()


def test_a_cohort_larger_than_a_batch_is_trained_in_parts(monkeypatch):
    monkeypatch.setattr(BatchedMlpTraining, "together", 2)
    single = in_one_process(local_training(perceptron))
    parallel = ParallelTraining(single, 2)
    weights = parallel.local.model.weights
    jobs = [Job(i % 6, i) for i in range(11)]
    try:
        for a, b in zip(single.train(weights, jobs), parallel.train(weights, jobs), strict=True):
            assert np.array_equal(a.delta, b.delta)
        assert len(parallel._workers) == 1
        with pytest.raises(IndexError):
            list(parallel.train(weights, [Job(0, 0), Job(99, 0), Job(1, 0)]))
        assert len(list(parallel.train(weights, jobs))) == 11
    finally:
        parallel.close()


def test_the_death_of_a_worker_is_an_error_that_suggests_fewer_workers(parallel):
    weights = parallel.local.model.weights
    os.kill(parallel._workers[1].process.pid, signal.SIGKILL)
    parallel._workers[1].process.join()
    with pytest.raises(
        FedternError, match=r"A worker process died \(exit code -9\); .* --workers 0"
    ):
        list(parallel.train(weights, five_jobs(weights.size, velocity=False)))


def test_an_error_in_a_worker_is_raised_in_the_parent_and_workers_continue(parallel):
    weights = parallel.local.model.weights
    for _ in range(3):
        with pytest.raises(IndexError):
            list(parallel.train(weights, [Job(99, 0), Job(98, 0), Job(0, 0)]))
    assert len(list(parallel.train(weights, [Job(0, 0)]))) == 1


def test_an_unread_result_does_not_affect_the_next_evaluation(parallel):
    weights = parallel.local.model.weights
    parallel._send(Kind.EVALUATE, [(None, (0, 1))])  # like an interrupted evaluation
    assert parallel.evaluate(weights) == parallel.local.evaluate(weights)


def test_an_error_of_one_job_does_not_affect_later_jobs():
    def fail_in_round_seven(_client: int, round: int):
        if round == 7:
            raise KeyError("seven")

    parallel = ParallelTraining(local_training(convolution, restriction=fail_in_round_seven), 2)
    weights = parallel.local.model.weights
    try:
        with pytest.raises(KeyError):
            list(parallel.train(weights, [Job(i, 0, 7 if i == 1 else 0) for i in range(5)]))
        assert len(list(parallel.train(weights, five_jobs(weights.size, velocity=False)))) == 5
        assert parallel.evaluate(weights) == parallel.local.evaluate(weights)
    finally:
        parallel.close()


def test_an_interrupt_while_receiving_a_reply_closes_the_workers(parallel, monkeypatch):
    weights = parallel.local.model.weights

    def interrupted():
        raise KeyboardInterrupt

    for worker in parallel._workers:
        monkeypatch.setattr(worker.replies, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(parallel.train(weights, [Job(0, 0)] * 4))
    with pytest.raises(FedternError, match="is closed; make a new one, or resume its run"):
        parallel.evaluate(weights)


def test_closed_workers_can_be_closed_again_but_not_used(parallel):
    weights = parallel.local.model.weights
    parallel.close()
    parallel.close()
    with pytest.raises(FedternError, match="This federation is closed"):
        parallel.evaluate(weights)


def test_a_forked_copy_of_the_parent_does_not_stop_the_workers(parallel):
    weights = parallel.local.model.weights
    if (child := os.fork()) == 0:
        parallel.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(parallel.train(weights, [Job(0, 0), Job(1, 0), Job(2, 0)]))) == 3


def test_workers_stop_when_no_reference_to_them_is_left():
    parallel = ParallelTraining(local_training(convolution), 2)
    processes = [worker.process for worker in parallel._workers]
    assert all(process.is_alive() for process in processes)
    del parallel
    gc.collect()
    assert not any(process.is_alive() for process in processes)


def test_training_does_not_change_the_velocity_it_continues_from(parallel):
    weights = parallel.local.model.weights
    (first,) = parallel.train(weights, [Job(0, 0)])
    velocity = first.velocity.copy()
    (second,) = parallel.train(weights, [Job(0, 1, 1, first.velocity)])
    assert np.array_equal(first.velocity, velocity)
    (again,) = parallel.train(weights, [Job(0, 1, 1, velocity)])  # not in shared memory
    assert np.array_equal(again.velocity, second.velocity)


def test_outcomes_are_copied_when_shared_vectors_become_scarce(parallel):
    weights = parallel.local.model.weights
    kept = [list(parallel.train(weights, [Job(i, 0) for i in range(6)])) for _ in range(9)]
    assert parallel._vectors.available <= 17  # of 34; the rest is reserved for pending jobs
    for again in kept[1:]:
        for a, b in zip(kept[0], again, strict=True):
            assert np.array_equal(a.delta, b.delta)
            assert np.array_equal(a.velocity, b.velocity)


def test_limited_shared_memory_is_enough_for_pending_jobs(monkeypatch):
    def limited(size: int, count: int) -> SharedVectors:
        if count > 16:
            raise OSError(12, "Cannot allocate memory")
        return SharedVectors(size, count)

    single = local_training(convolution)
    weights = single.model.weights
    jobs = [Job(i, 0, 0, np.ones_like(weights)) for i in range(6)]
    monkeypatch.setattr(workers_module, "SharedVectors", limited)
    parallel = ParallelTraining(single, 2)
    try:
        for _ in range(2):
            for a, b in zip(
                single.train(weights, jobs), parallel.train(weights, jobs), strict=True
            ):
                assert np.array_equal(a.delta, b.delta)
    finally:
        parallel.close()


def test_shares_of_an_evaluation_cover_all_chunks_once(monkeypatch):
    monkeypatch.setattr(workers_module, "_TEST_CHUNK", 4)
    local = local_training(convolution)
    shares = [evaluate_share(local, share, 3) for share in range(3)]
    expected = [local.model.evaluate_batch(*batch) for batch in local.test_examples.chunks(4)]
    chunks = sorted(chunk for share in shares for chunk in share)
    assert chunks == [(number, chunk) for number, chunk in enumerate(expected)]


@pytest.mark.parametrize("method", [stc(0.1, 0.1, local_steps=2), sgd(), METHODS["structured"]()])
@pytest.mark.parametrize("model", [convolution, perceptron])
def test_a_federation_gives_the_same_bytes_for_any_number_of_workers(model, method):
    data = images()
    task = Task("t", data, model, 0.1, 1)
    results = []
    for workers in (0, 2):
        federation = federate(
            task, data, method, SIX_CLIENTS, Sgd(0.1, 0.9), seed=1, workers=workers
        )
        for _ in range(4):
            federation.step()
        evaluation = replace(federation.evaluate(), seconds={})
        results.append((federation.server.weights.tobytes(), evaluation))
        federation.close()
    assert results[0] == results[1]


def test_a_snapshot_does_not_change_when_workers_train_on():
    data = images()
    task = Task("t", data, convolution, 0.1, 1)
    federation = federate(task, data, stc(0.1, 0.1), SIX_CLIENTS, Sgd(0.1, 0.9), seed=1, workers=2)
    try:
        for _ in range(3):
            federation.step()
        snapshot = federation.snapshot()
        before = snapshot.to_bytes()
        for _ in range(4):
            federation.step()
        assert snapshot.to_bytes() == before
    finally:
        federation.close()


@pytest.mark.parametrize("evaluations", [0, 1])
def test_closing_a_simulation_stops_its_workers(evaluations):
    simulation = simulate(
        convolution(), images(), iterations=4, learning_rate=0.1, environment=SIX_CLIENTS, workers=2
    )
    for _ in range(evaluations):
        next(simulation)
    before = len(torch.multiprocessing.active_children())
    simulation.close()
    assert len(torch.multiprocessing.active_children()) == before - 2
    simulation.close()
    assert list(simulation) == []
