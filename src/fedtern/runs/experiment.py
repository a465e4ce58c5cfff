"""One run, said in full: the same experiment gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedtern.core.methods import Method, make_method
from fedtern.core.names import look_up
from fedtern.core.numbers import one_over
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import TASK_DEFAULTS, Sgd, task_defaults
from fedtern.runs.method_text import MOST, complete, parse_method
from fedtern.training.tasks import Task, get_task


@dataclass(frozen=True)
class Experiment:
    """A task, a method, an environment and a seed; ``digest`` names it.

    What is None stands for the task's own value and is filled in when the experiment is made.

    >>> one = Experiment.of("logistic-digits", {"name": "stc"}, seed=3)
    >>> Experiment.from_json(one.to_json()) == one, one.learning_rate
    (True, 0.1)
    """

    task: str
    method: Mapping[str, Any]
    environment: Environment
    iterations: int
    learning_rate: float
    momentum: float
    weight_decay: float
    evaluate_every: int
    seed: int = 0

    @classmethod
    def of(
        cls,
        task: str,
        method: Mapping[str, Any] | str,
        environment: Environment | None = None,
        *,
        iterations: int | None = None,
        learning_rate: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        evaluate_every: int | None = None,
        seed: int = 0,
    ) -> Experiment:
        """An experiment with a task's own values where nothing else is said."""
        known = task_defaults(task)
        total = _whole("iterations", known.iterations if iterations is None else iterations, 1)
        every = max(total // 50, 1) if evaluate_every is None else evaluate_every
        sgd = Sgd(
            float(known.learning_rate if learning_rate is None else learning_rate),
            float(known.momentum if momentum is None else momentum),
            float(known.weight_decay if weight_decay is None else weight_decay),
        )
        return cls(
            task,
            complete(parse_method(method) if isinstance(method, str) else method),
            environment or Environment(),
            total,
            sgd.learning_rate,
            sgd.momentum,
            sgd.weight_decay,
            _whole("evaluate_every", every, 1),
            _whole("seed", seed, 0),
        )

    def make_task(self) -> Task:
        """The task by its name."""
        return get_task(self.task)

    def make_method(self) -> Method:
        """The method with its parameters."""
        return make_method(self.method)

    def make_sgd(self) -> Sgd:
        """How each client trains."""
        return Sgd(self.learning_rate, self.momentum, self.weight_decay)

    @property
    def is_usual(self) -> bool:
        """Whether it trains at its task's own rate, so that others may be compared with it.

        >>> one = Experiment.of("logistic-digits", "sgd", momentum=0.9)
        >>> one.is_usual, Experiment.of("logistic-digits", "sgd", learning_rate=1).is_usual
        (True, False)
        """
        own, rates = TASK_DEFAULTS.get(self.task), (self.learning_rate, self.weight_decay)
        return own is None or rates == (own.learning_rate, own.weight_decay)

    @property
    def trained(self) -> int:
        """The iterations that it ends after: a round, of several local ones, is never split.

        >>> Experiment.of("logistic-mnist", "fedavg:local_steps=400").trained
        5200
        """
        local = self.make_method().local_steps
        return -(-self.iterations // local) * local

    def to_json(self) -> dict[str, Any]:
        """The experiment as JSON would have it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Experiment:
        """Undo ``to_json``; what is no part of an experiment is left out."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        return cls(**{**known, "environment": Environment(**known["environment"])})

    @classmethod
    def from_toml(cls, path: Path) -> Experiment:
        """Read an experiment that a person wrote; what it leaves out has its default."""
        try:
            values = tomllib.loads(path.read_text())
            known = {f.name: f for f in fields(cls)}
            for name in values:
                look_up(name, known, "setting")
            if not {"task", "method"} <= set(values):
                raise ValueError("an experiment needs a task and a method")
            places = values.pop("environment", {})
            for name in places:
                look_up(name, {f.name: f for f in fields(Environment)}, "setting of an environment")
            return cls.of(environment=Environment(**places).check_options_apply(), **values)
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from error

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that are the same for the same experiment only."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """The method in a few words.

        >>> Experiment.of("logistic-digits", {"name": "fedavg", "local_steps": 25}).label
        'fedavg local_steps=25'
        """
        default = complete({"name": self.method["name"]})
        shown = ("p_up", "local_steps", "delta")
        parts = [
            f"{key}={_readable(value)}"
            for key, value in self.method.items()
            if key != "name"
            and (value != default[key] or key in shown)
            and not (key == "local_steps" and value == default[key] == 1)
        ]
        return " ".join([self.method["name"], *parts])

    @property
    def title(self) -> str:
        """The method and what else tells the experiment from the paper's base configuration.

        >>> few = Environment(classes_per_client=1)
        >>> Experiment.of("logistic-digits", "sgd", few, seed=2).title
        'sgd classes_per_client=1 seed=2'
        """
        base, own = asdict(Environment()), asdict(self.environment)
        unusual = {key: value for key, value in own.items() if value != base[key]}
        if self.task in TASK_DEFAULTS and self.momentum != TASK_DEFAULTS[self.task].momentum:
            unusual["momentum"] = self.momentum
        if self.seed:
            unusual["seed"] = self.seed
        return " ".join([self.label, *(f"{k}={_readable(v)}" for k, v in unusual.items())])


def titles(experiments: Iterable[Experiment]) -> dict[str, str]:
    """What to call each of several, by its digest; the task is said where there are others.

    >>> one, two = (Experiment.of(f"{model}-digits", "sgd") for model in ("logistic", "mlp"))
    >>> list(titles([one]).values()), list(titles([one, two]).values())
    (['sgd'], ['logistic-digits sgd', 'mlp-digits sgd'])
    """
    every = {each.digest: each for each in experiments}
    several = len({each.task for each in every.values()}) > 1
    return {d: f"{each.task} {each.title}" if several else each.title for d, each in every.items()}


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if value >= MOST:
        raise ValueError(f"{name} must be a whole number below 2**63, got {value}")
    return value


def _readable(value: Any) -> str:
    return one_over(value) or str(value)
