"""Simulate a federation with one call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtern.core.dtypes import Overflow
from fedtern.core.errors import FedternError, StoreError
from fedtern.core.methods import Method, make_method, stc
from fedtern.core.snapshot import Snapshot
from fedtern.core.template import Carry
from fedtern.data import Dataset, Split
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import Sgd
from fedtern.data.metric_spec import MetricSpec
from fedtern.privacy import PrivacySettings
from fedtern.privacy.secure import shared_positions_of
from fedtern.runs import Evaluation, Experiment, RunDirectory, complete_method, parse_method
from fedtern.runs.callbacks import check_callbacks, notify, started
from fedtern.runs.method_registry import known_methods
from fedtern.runs.run_directory import open_run
from fedtern.training.augment import Augment, Transform
from fedtern.training.devices import check_device
from fedtern.training.fingerprint import describe_training, fingerprint
from fedtern.training.objective import Loss, Metrics
from fedtern.training.optimizers import OptimizerFactory, Schedule
from fedtern.training.sources import Loaded, load_data
from fedtern.training.tasks import Task, get_task, is_built_in
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.secure import SecureFederation
from fedtern.transports.local.training_loop import resume as resume_run
from fedtern.transports.local.training_loop import train_federation

_IGNORED = -100  # targets that the cross-entropy of torch leaves out


def simulate(
    model: nn.Module | str,
    data: Any = None,
    method: Method | str | None = None,
    *,
    client_data: Sequence[Any] | None = None,
    environment: Environment | None = None,
    iterations: int | None = None,
    loss: Loss | None = None,
    metrics: Metrics | None = None,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    carry: Carry | None = None,
    trainable: Sequence[str] | None = None,
    overflow: Overflow | None = None,
    augment: Augment | None = None,
    transform: Transform | None = None,
    evaluate_every: int | None = None,
    privacy: PrivacySettings | None = None,
    callbacks: Sequence[Any] = (),
    seed: int = 0,
    device: torch.device | str = "cpu",
    memory_bytes: int | None = None,
    workers: int | None = None,
    threads: int = 1,
    name: str | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
) -> Simulation:
    """Simulate a federation; iterate over the result to train it.

    Args:
        model: a module, which stays unchanged, or the name of a task.
        data: the data of a module: a ``fedtern.data.Dataset``, a pair of arrays (inputs, targets),
            a torch ``Dataset`` or ``DataLoader``, or a pair (train, test) of these. Without test
            examples, every tenth example is one. For a task, its data directory.
        method: a method, or its name with parameters, such as "stc:p_up=1/100"; by default
            ``stc()``.
        client_data: the training data of each client: a list of pairs of arrays, torch datasets or
            data loaders. ``data`` is the test data then. The data loaders' batch size is used.
        environment: clients and their data; by default the paper's base configuration. With
            ``client_data``, by default 10 clients, or all if there are fewer, in each round.
        iterations: local iterations of a client that participates in every round; by default the
            task's. Required for a module.
        loss: from a batch's outputs and targets to the batch's mean loss; by default cross-entropy.
        metrics: metrics of an evaluation, the primary one first: a list of
            ``fedtern.training.Metric``, or functions by name, where higher values are better. By
            default accuracy, or none with another loss.
        optimizer: makes an optimiser of torch for a list of parameters, instead of SGD. Its state
            is kept for each client.
        schedule: factor of the learning rate at each iteration, counted from 0; for a scheduler of
            torch, see ``fedtern.training.torch_schedule``.
        learning_rate: learning rate of SGD; by default the task's. Required for a module without
            ``optimizer``.
        momentum: momentum of SGD; by default the task's, or 0 for a module.
        weight_decay: weight decay of SGD; by default the task's, or 0 for a module.
        carry: how the server combines buffers, such as the statistics of batch normalisation:
            "average", "latest", or "local" to keep them on each client.
        trainable: patterns of the names of the parameters to train, such as ``["head.*"]``; others
            stay as they are and are never sent.
        overflow: what to do with a weight that is too large for the dtype of its parameter:
            "refuse" raises an error, "saturate" uses the largest value.
        augment: random change to training batches; only for a module.
        transform: change to all batches; only for a module.
        evaluate_every: iterations between two evaluations; by default there are 50 evaluations.
        privacy: differential privacy of the clients, with noise from ``seed``; training ends when
            another round could exceed its budget.
        callbacks: objects that are called after rounds, evaluations and checkpoints; see
            ``Callback``. Trackers are in ``fedtern.runs.trackers``.
        seed: seed of all randomness.
        device: torch device to train on.
        memory_bytes: memory for the clients' residuals, momentum and optimiser state; beyond it,
            they are on disk.
        workers: number of processes that train clients; by default the number of cores, if that
            is faster than one process.
        threads: number of torch threads; above 1, only one process trains. One is faster for most
            models, and its results are the same to the last bit for any number of workers. The
            setting of torch is restored after each evaluation.
        name: name of the experiment in the run directory; by default that of the model's class.
        out: run directory to write, for ``fedtern report`` and to resume from.
        resume: whether to continue the run in ``out``, if there is one.

    Returns:
        An iterator over evaluations. Its ``model`` is the trained model.

    Raises:
        ValueError: an argument is invalid.
        StoreError: ``out`` holds another run, or a run and ``resume`` is False.

    >>> simulation = simulate("logistic-digits", iterations=40, evaluate_every=20)
    >>> rounds = list(simulation)
    >>> [r.iteration for r in rounds], rounds[-1].loss < rounds[0].loss
    ([20, 40], True)
    >>> {name: tuple(weight.shape) for name, weight in simulation.weights.items()}
    {'1.weight': (10, 64), '1.bias': (10,)}

    With your own model, data and loss:

    >>> x = np.linspace(0, 1, 200, dtype=np.float32).reshape(-1, 1)
    >>> line = simulate(nn.Linear(1, 1), (x, 3 * x + 1), "stc:p_up=1/2,p_down=1/2",
    ...                 loss=nn.functional.mse_loss, environment=Environment(clients=4,
    ...                 participation=1), iterations=200, learning_rate=0.3)
    >>> line.run().loss < 0.01
    True
    >>> round(line.model(torch.ones(1, 1)).item(), 1)
    4.0

    """
    given: dict[str, Any] = {
        "loss": loss,
        "metrics": metrics,
        "optimizer": optimizer,
        "schedule": schedule,
        "carry": carry,
        "trainable": trainable,
        "overflow": overflow,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    _check_method(method)
    _check_environment(environment)
    chosen_device = check_device(device)
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    if memory_bytes is not None and memory_bytes < 0:
        raise ValueError(f"memory_bytes must not be negative, got {memory_bytes}")
    if iterations is not None and iterations != int(iterations):
        raise ValueError(f"iterations must be an integer, got {iterations}")
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if isinstance(model, str):
        task, loaded = _named_task(model, data, client_data, augment, transform)
        task = replace(task, **changes) if changes else task
    else:
        task, loaded = _own_task(
            model, data, client_data, iterations, learning_rate, augment, transform, name, changes
        )
    place = _environment(environment, loaded)
    chosen_method = _check_method(method, place.participation)
    total = int(_or_default(iterations, task.iterations))
    if total < 1 or (evaluate_every is not None and evaluate_every < 1):
        raise ValueError(
            f"iterations and evaluate_every must be at least 1, got {total} and {evaluate_every}"
        )
    sgd = task.check_sgd(
        Sgd(
            _or_default(learning_rate, task.learning_rate),
            _or_default(momentum, task.momentum),
            _or_default(weight_decay, task.weight_decay),
        )
    )
    dataset = loaded.dataset
    split = place.split_dataset(dataset, seed) if loaded.split is None else loaded.split
    every = evaluate_every or max(total // 50, 1)
    experiment = Experiment(
        name or task.name,
        _method_values(chosen_method),
        place,
        total,
        sgd.learning_rate,
        sgd.momentum,
        sgd.weight_decay,
        every,
        seed,
        privacy,
    )
    run = None
    if out is not None:
        run = open_run(experiment, Path(out).parent, path=Path(out))
        _check_resumable(run, resume)  # before the federation is made, which can take long
    elif resume:
        raise ValueError("resume=True needs the run directory to continue: pass out=...")
    federation = federate(
        task,
        dataset,
        chosen_method,
        place,
        sgd,
        seed=seed,
        device=chosen_device,
        split=split,
        memory_bytes=memory_bytes,
        workers=0 if threads > 1 else workers,
        privacy=privacy,
    )
    try:
        if not is_built_in(task):
            with torch_threads(threads):
                _check_evaluation(federation, dataset)
        plan = Plan(task, dataset, split, total, every, threads, experiment)
        return Simulation(federation, plan, check_callbacks(callbacks), run, resume=resume)
    except BaseException:
        federation.close()
        raise


@dataclass(frozen=True, eq=False)
class Plan:
    """Task, data and length of a simulation.

    Attributes:
        task: gives the model, loss and metrics.
        dataset: the dataset.
        split: the training examples of each client.
        iterations: local iterations in total.
        evaluate_every: local iterations between evaluations.
        threads: number of torch threads.
        experiment: description of the training.

    """

    task: Task
    dataset: Dataset
    split: Split
    iterations: int
    evaluate_every: int
    threads: int
    experiment: Experiment


class Simulation(Iterator[Evaluation]):
    """Iterator over the evaluations of a federation, which trains between them.

    Args:
        federation: the federation, before its first round.
        plan: what it trains.
        callbacks: objects with some of the methods of ``Callback``.
        run: the run directory, if there is one.
        resume: whether to continue the run in the directory.

    Attributes:
        evaluations: all evaluations so far, with those of a run that was resumed.

    Raises:
        StoreError: the run directory holds another run, or one and ``resume`` is False.

    """

    def __init__(
        self,
        federation: Federation,
        plan: Plan,
        callbacks: Sequence[Any] = (),
        run: RunDirectory | None = None,
        *,
        resume: bool = False,
    ) -> None:
        self.evaluations: list[Evaluation] = []
        self._federation = federation
        self._plan = plan
        self._callbacks = callbacks
        self._run = run
        self._is_stopping = False
        self._resume = resume
        self._fingerprint: dict[str, str] = {}
        self._saved: dict[str, Tensor] | None = None  # weights of a run that was finished before
        if run is not None:
            self._fingerprint = fingerprint(
                plan.task, federation.model, plan.dataset, plan.split, plan.iterations
            )
            self._open(run)
        self._has_ended = False  # to its end
        self._is_broken = False  # by an error or by close()
        # The generator has only a weak reference: without a cycle, Python closes it, with a
        # checkpoint, as soon as the simulation is no longer used.
        self._evaluations = _evaluate(weakref.ref(self), closing(federation))

    def __next__(self) -> Evaluation:
        """Train until the next evaluation and return it."""
        try:
            with torch_threads(self._plan.threads):
                return next(self._evaluations)
        except StopIteration:
            self._has_ended = not self._is_broken
            raise
        except BaseException:
            self._is_broken = True
            raise

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def run(self) -> Evaluation:
        """Train to the end and return the last evaluation.

        Raises:
            FedternError: an error or ``close`` has ended this simulation before.

        >>> simulate("logistic-digits", iterations=10).run().iteration
        10
        """
        for _ in self:
            pass
        if self._is_broken:
            raise FedternError(
                f"this simulation ended at iteration {self.iteration}, before its last one; make a"
                " new one, with resume=True if it has a run directory"
            )
        return self.evaluations[-1]

    def stop(self) -> None:
        """End the training after this round; the run is complete. Callbacks may call this."""
        self._is_stopping = True

    @property
    def iteration(self) -> int:
        """Local iterations so far of a client that takes part in every round."""
        if self._saved is not None:
            return self.evaluations[-1].iteration
        return self._federation.iteration

    @property
    def round(self) -> int:
        """Finished rounds."""
        if self._saved is not None:
            return self.evaluations[-1].round
        return self._federation.server.round

    @property
    def config(self) -> Mapping[str, Any]:
        """The experiment, as in ``config.json`` of a run directory."""
        return self._plan.experiment.to_json()

    @property
    def path(self) -> Path | None:
        """The run directory, if there is one."""
        return None if self._run is None else self._run.path

    @property
    def metric(self) -> MetricSpec:
        """Name and direction of the primary metric."""
        return self._plan.task.objective.primary

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        """Names and directions of all metrics, the primary one first; without the loss."""
        return tuple(metric.spec for metric in self._plan.task.objective.metrics)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Copies of the model's current tensors by name, as ``load_state_dict`` takes them."""
        if self._saved is not None:
            return {name: tensor.clone() for name, tensor in self._saved.items()}
        return self._federation.trained_model().state_dict()

    @property
    def model(self) -> nn.Module:
        """A copy of the model with its current weights, on the CPU and in evaluation mode."""
        module = self._federation.model.copy_module()
        module.load_state_dict(self.weights, strict=False)
        return module

    def close(self) -> None:
        """Stop training and its worker processes. With a run directory, write a checkpoint."""
        self._is_broken = not self._has_ended
        self._evaluations.close()
        # A generator that was never started does not run its ``with`` block.
        self._federation.close()

    def _open(self, run: RunDirectory) -> bool:
        """Check that a run is that of this training; read it and return True if it is finished."""
        open_run(run.experiment, run.path.parent, path=run.path)
        _check_resumable(run, self._resume)
        run.check_fingerprint(self._fingerprint)
        if not run.is_finished():
            return False
        self.evaluations = run.complete_evaluations()
        arrays = Snapshot.from_bytes(run.model_path.read_bytes()).arrays
        own = self._federation.model.state_dict()
        self._saved = {
            name: torch.from_numpy(np.array(arrays[name])).to(tensor.dtype)
            for name, tensor in own.items()
        }
        return True

    def _begin(self, stack: ExitStack) -> int | None:
        """Lock and prepare the run directory, and replay its evaluations.

        Args:
            stack: releases the lock.

        Returns:
            The iteration of the last evaluation; None if the run is finished.

        """
        evaluated: int | None = 0
        if self._run is not None and self._saved is None:
            stack.enter_context(self._run.locked())
            # Another simulation may have used the directory since this one was made.
            evaluated = None if self._open(self._run) else self._prepare(self._run)
        stack.enter_context(started(self._callbacks, weakref.proxy(self), self.evaluations))
        return None if self._saved is not None else evaluated

    def _rounds(self, evaluated: int) -> Generator[Evaluation, None, None]:
        this = weakref.ref(self)
        return train_federation(
            self._federation,
            self._plan.iterations,
            self._plan.evaluate_every,
            self._run,
            evaluated=evaluated,
            ended=lambda: _alive(this)._is_stopping,
            progress=lambda _: _alive(this)._notify("on_round"),
            checkpointed=lambda path: _alive(this)._notify("on_checkpoint", path),
        )

    def _evaluated(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)
        self._notify("on_evaluation", evaluation)

    def _prepare(self, run: RunDirectory) -> int:
        """Write the head of a run directory; return the iteration of the last evaluation."""
        run.write_experiment()
        training = describe_training(self._plan.task, self._federation.model, self._fingerprint)
        run.write_fingerprint(self._fingerprint, training)
        evaluated = resume_run(run, self._federation)
        self.evaluations = run.evaluations()
        layout = self._federation.server.terms.layout
        run.write_setup(self._plan.split, self._plan.dataset, layout.size, self.metric)
        return evaluated

    def _notify(self, method: str, *arguments: object) -> None:
        notify(self._callbacks, method, self, *arguments)


def _alive(reference: weakref.ref[Simulation]) -> Simulation:
    """Return the simulation, which is in use while it trains."""
    simulation = reference()
    assert simulation is not None
    return simulation


def _evaluate(
    this: weakref.ref[Simulation], federation: closing[Federation]
) -> Generator[Evaluation, None, None]:
    """Train a simulation and yield its evaluations."""
    with ExitStack() as stack:
        stack.enter_context(federation)
        evaluated = _alive(this)._begin(stack)
        if evaluated is None:
            return
        with closing(_alive(this)._rounds(evaluated)) as rounds:
            for evaluation in rounds:
                _alive(this)._evaluated(evaluation)
                yield evaluation


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Use a number of torch threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def federate(
    task: Task,
    dataset: Dataset,
    method: Method,
    environment: Environment,
    sgd: Sgd,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    split: Split | None = None,
    memory_bytes: int | None = None,
    spill_directory: Path | None = None,
    workers: int | None = None,
    make: Callable[..., Federation] | None = None,
    privacy: PrivacySettings | None = None,
) -> Federation:
    """Make the federation of a task, before its first round.

    Args:
        task: gives the model and its examples.
        dataset: the dataset.
        method: the compression method.
        environment: clients and their data.
        sgd: hyperparameters.
        seed: seed of all randomness.
        device: torch device to train on.
        split: the split of the dataset, if it was made already.
        memory_bytes: memory for the clients' residuals and momentum; beyond it, they are on disk.
        spill_directory: directory of the file on disk.
        workers: number of processes that train clients; None chooses it.
        make: the class of the federation; by default the one that the method needs.
        privacy: differential privacy.

    """
    if make is None:
        make = Federation if shared_positions_of(method) is None else SecureFederation
    return make(
        task.flat_model(seed, device),
        task.examples(dataset, device),
        environment.split_dataset(dataset, seed) if split is None else split,
        method,
        environment,
        sgd,
        seed=seed,
        memory_bytes=memory_bytes,
        spill_directory=spill_directory,
        workers=workers,
        optimizer=task.optimizer,
        schedule=task.schedule,
        privacy=privacy,
    )


def _check_method(method: object, participation: float | None = None) -> Method:
    """Return the method of an argument; ``p_down="auto"`` needs the participation."""
    if method is None:
        return stc()
    if isinstance(method, Method):
        if method.parameters.get("p_down") != "auto":
            return method
        return make_method(complete_method(_method_values(method), participation), known_methods())
    if isinstance(method, str):
        return make_method(complete_method(parse_method(method), participation), known_methods())
    raise ValueError(
        f"method must be the name of a method or a method such as fedtern.stc(), got {method!r}"
    )


def _check_environment(environment: object) -> None:
    if not isinstance(environment, Environment | None):
        raise ValueError(f"environment must be a fedtern.Environment, got {environment!r}")


def _method_values(method: Method) -> Mapping[str, Any]:
    """Return name and parameters of a method, for a run directory."""
    if method.name in known_methods():
        return complete_method({"name": method.name, **method.parameters})
    return {"name": "own", "digest": method.digest.hex(), "local_steps": method.local_steps}


def _check_resumable(run: RunDirectory, resume: bool) -> None:
    if run.recorded_digest() is not None and not resume:
        raise StoreError(
            f"{run.path} holds a run; pass resume=True to continue it, or choose another directory"
        )


def _environment(environment: Environment | None, loaded: Loaded) -> Environment:
    """Return the environment, completed by the clients and the batch size of the data."""
    dataset = loaded.dataset
    split = loaded.split
    if split is not None:
        clients = len(split)
        if environment is None:
            share = min(1.0, 10 / clients)
            environment = Environment(clients=clients, participation=share, split="natural")
        elif environment.clients != clients:
            raise ValueError(
                f"environment has {environment.clients} clients, but client_data has the data of"
                f" {clients}"
            )
        environment = replace(environment, split="natural")
    if environment is None:
        # Every client gets a mixture of all classes, also if there are fewer than ten.
        classes = dataset.num_classes
        few = classes is not None and classes < Environment.classes_per_client
        environment = Environment(split="iid") if few else Environment()
    if loaded.batch_size is not None:
        environment = replace(environment, batch_size=loaded.batch_size)
    return environment


def _named_task(
    name: str,
    data: Any,
    client_data: Sequence[Any] | None,
    augment: Augment | None,
    transform: Transform | None,
) -> tuple[Task, Loaded]:
    task = get_task(name)
    if isinstance(data, Dataset):
        raise ValueError(
            f"task {name!r} has its own dataset; pass the data directory, or a module and a Dataset"
        )
    if not isinstance(data, str | PathLike | None):
        raise ValueError(
            f"data of task {name!r} must be a data directory, got {data!r}; pass other arguments by"
            " name, for example method=..."
        )
    for argument, value in (
        ("augment", augment),
        ("transform", transform),
        ("client_data", client_data),
    ):
        if value is not None:
            raise ValueError(
                f"{argument} must not be set for task {name!r}, which has its own; leave it out, or"
                " pass a module and a Dataset"
            )
    return task, Loaded(task.load(None if data is None else Path(data)))


def _own_task(
    model: nn.Module,
    data: Any,
    client_data: Sequence[Any] | None,
    iterations: int | None,
    learning_rate: float | None,
    augment: Augment | None,
    transform: Transform | None,
    name: str | None,
    changes: Mapping[str, Any],
) -> tuple[Task, Loaded]:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a module or the name of a task, got {model!r}")
    loaded = load_data(data, client_data)
    optimizer = changes.get("optimizer")
    if optimizer is not None and learning_rate is not None:
        raise ValueError("pass either learning_rate or optimizer, which has its own learning rate")
    if iterations is None or (learning_rate is None and optimizer is None):
        raise ValueError("a module needs iterations and learning_rate (or optimizer)")
    _check_targets(loaded.dataset, changes.get("loss"))
    task = Task(
        name or type(model).__name__,
        loaded.dataset,
        lambda: model,
        1.0 if learning_rate is None else learning_rate,  # not used with an optimiser
        iterations,
        augment=augment,
        transform=transform,
        **changes,
    )
    return task, loaded


def _check_targets(dataset: Dataset, loss: Loss | None) -> None:
    targets = dataset.train_labels
    if loss is not None:
        return
    # Floats of several columns can be shares of the classes.
    is_column = targets.ndim == 2 and targets.shape[1] == 1
    if is_column and targets.dtype.kind in "iu":
        raise ValueError(
            f"the default loss, cross-entropy, needs class numbers of shape ({len(targets)},), but"
            f" the targets have shape {targets.shape}; use targets.squeeze(1)"
        )
    if (is_column or targets.ndim == 1) and targets.dtype.kind not in "iu":
        raise ValueError(
            f"the default loss, cross-entropy, needs class numbers, but the targets are"
            f" {targets.dtype}; pass a loss, for example loss=torch.nn.functional.mse_loss"
        )


def _check_evaluation(federation: Federation, dataset: Dataset) -> None:
    """Check model, loss and metrics on test examples, before a simulation is returned."""
    examples = federation.test_examples
    targets = (dataset.train_labels, dataset.test_labels)
    limits = None
    if all(part.dtype.kind in "iu" for part in targets):
        limits = (
            min(int(part.min(where=part != _IGNORED, initial=0)) for part in targets),
            max(int(part.max()) for part in targets),
        )
    try:
        federation.model.check_batch(*next(examples.chunks(2)), limits)
    except ValueError:
        # Some metrics need more examples, such as an area under a curve.
        federation.model.check_batch(*next(examples.chunks(1000)), limits)


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value
