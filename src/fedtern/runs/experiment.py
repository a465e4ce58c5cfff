"""Complete description of a run: the same experiment produces the same bytes."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedtern.core.methods import Method, make_method
from fedtern.core.methods.aggregate_text import AGGREGATE
from fedtern.core.methods.robust import Krum, min_uploads
from fedtern.core.names import look_up
from fedtern.core.numbers import format_reciprocal
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import TASK_DEFAULTS, Sgd, task_defaults
from fedtern.privacy import PrivacySettings
from fedtern.privacy.central import check_mean
from fedtern.runs.method_registry import known_methods
from fedtern.runs.method_text import INTEGER_LIMIT, complete_method, parse_method


@dataclass(frozen=True)
class Experiment:
    """Task, method, environment, hyperparameters and seed of a run.

    Create one with ``Experiment.of``, which fills in defaults. Every value is stored, so that a
    later change of a default does not change an experiment that was run.

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
    privacy: PrivacySettings | None = None

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
        privacy: PrivacySettings | Mapping[str, Any] | None = None,
    ) -> Experiment:
        """Create an experiment with defaults for everything that is not given.

        Args:
            task: Name of a task.
            method: Name and parameters of a method, or a text such as ``"stc:p_up=1/100"``.
            environment: Clients and their data; by default the paper's base configuration.
            iterations: Local iterations, over all rounds; by default the task's.
            learning_rate: Learning rate of SGD; by default the task's.
            momentum: Momentum of SGD; by default the task's.
            weight_decay: Weight decay of SGD; by default the task's.
            evaluate_every: Iterations between evaluations; by default a fiftieth of all.
            seed: Random seed.
            privacy: Differential privacy of the clients.

        Raises:
            ValueError: The task or the method is unknown, or a value is out of range.

        """
        defaults = task_defaults(task)
        total = _integer("iterations", defaults.iterations if iterations is None else iterations, 1)
        every = max(total // 50, 1) if evaluate_every is None else evaluate_every
        sgd = Sgd(
            float(defaults.learning_rate if learning_rate is None else learning_rate),
            float(defaults.momentum if momentum is None else momentum),
            float(defaults.weight_decay if weight_decay is None else weight_decay),
        )
        place = environment or Environment()
        described = parse_method(method) if isinstance(method, str) else method
        experiment = cls(
            task,
            complete_method(described, place.participation),
            place,
            total,
            sgd.learning_rate,
            sgd.momentum,
            sgd.weight_decay,
            _integer("evaluate_every", every, 1),
            _integer("seed", seed, 0),
            PrivacySettings(**privacy) if isinstance(privacy, Mapping) else privacy,
        )
        experiment._check_aggregate()
        return experiment

    def _check_aggregate(self) -> None:
        """Raise if the aggregation does not fit the other settings."""
        method = self.make_method()
        needed = min_uploads(method.aggregate)
        cohort = self.environment.cohort_size
        if needed > cohort:
            liars = (cohort - min_uploads(Krum(0))) // 2
            smaller = f"krum:{liars} or " if liars >= 0 else ""
            raise ValueError(
                f"aggregate={method.parameters.get(AGGREGATE, method.aggregate.part_id)} needs at"
                f" least {needed} uploads in each round, but {cohort} of {self.environment.clients}"
                f" clients take part. Use {smaller}a larger participation."
            )
        if self.privacy is not None and self.privacy.model == "central":
            check_mean(method)

    def make_method(self) -> Method:
        """Return the method with its parameters."""
        return make_method(self.method, known_methods())

    @property
    def sgd(self) -> Sgd:
        """Hyperparameters of SGD on each client."""
        return Sgd(self.learning_rate, self.momentum, self.weight_decay)

    @property
    def uses_task_rates(self) -> bool:
        """Whether learning rate and weight decay are the task's, as in the paper's comparisons.

        >>> one = Experiment.of("logistic-digits", "sgd", momentum=0.9)
        >>> other = Experiment.of("logistic-digits", "sgd", learning_rate=1)
        >>> one.uses_task_rates, other.uses_task_rates
        (True, False)
        """
        defaults = TASK_DEFAULTS.get(self.task)
        if defaults is None:
            return True
        return (self.learning_rate, self.weight_decay) == (
            defaults.learning_rate,
            defaults.weight_decay,
        )

    @property
    def last_iteration(self) -> int:
        """Iteration at which training ends: a round of several local iterations is not split.

        >>> Experiment.of("logistic-mnist", "fedavg:local_steps=400").last_iteration
        5200
        """
        local_steps = self.make_method().local_steps
        return -(-self.iterations // local_steps) * local_steps

    def to_json(self) -> dict[str, Any]:
        """Return the experiment as a JSON object."""
        values = asdict(self)
        if self.privacy is None:  # as in files of earlier versions
            del values["privacy"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Experiment:
        """Read a JSON object that ``to_json`` returned; other keys are ignored."""
        known = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        known["environment"] = Environment(**known["environment"])
        if known.get("privacy") is not None:
            known["privacy"] = PrivacySettings(**known["privacy"])
        return cls(**known)

    @classmethod
    def from_toml(cls, path: Path) -> Experiment:
        """Read an experiment from a TOML file; missing settings have their defaults.

        Raises:
            ValueError: The file cannot be read, or one of its settings is unknown or invalid.

        """
        try:
            values = tomllib.loads(path.read_text())
            known = {f.name: f for f in fields(cls)}
            for name in values:
                look_up(name, known, "setting")
            if not {"task", "method"} <= set(values):
                raise ValueError("an experiment needs a task and a method")
            environment = values.pop("environment", {})
            for name in values.get("privacy", {}):
                look_up(name, {f.name: f for f in fields(PrivacySettings)}, "setting of privacy")
            for name in environment:
                look_up(name, {f.name: f for f in fields(Environment)}, "setting of an environment")
            return cls.of(environment=Environment(**environment).check_options_apply(), **values)
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from error

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that identify the experiment."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """The method with its main parameters and those that differ from their defaults.

        >>> Experiment.of("logistic-digits", {"name": "fedavg", "local_steps": 25}).label
        'fedavg local_steps=25'
        >>> Experiment.of("logistic-digits", {"name": "stc", "codec": "adaptive"}).label
        'stc p_up=1/400 codec=adaptive'
        """
        default = complete_method({"name": self.method["name"]})
        shown = ("p_up", "local_steps", "delta")
        parts = [
            f"{key}={_readable(value)}"
            for key, value in self.method.items()
            if key not in ("name", "participation")  # the latter is that of the environment
            and (value != default.get(key) or key in shown)
            and not (key == "local_steps" and value == default[key] == 1)
            and not value == default.get(key) == "auto"
        ]
        if self.privacy is not None:
            model = "" if self.privacy.model == "central" else f"{self.privacy.model}-"
            parts.append(f"{model}dp noise={self.privacy.noise_multiplier:g}")
        return " ".join([self.method["name"], *parts])

    @property
    def title(self) -> str:
        """The label with all settings that differ from the paper's base configuration.

        >>> few = Environment(classes_per_client=1)
        >>> Experiment.of("logistic-digits", "sgd", few, seed=2).title
        'sgd classes_per_client=1 seed=2'
        """
        base = asdict(Environment())
        changed = {k: v for k, v in asdict(self.environment).items() if v != base[k]}
        defaults = TASK_DEFAULTS.get(self.task)
        if defaults is not None and self.momentum != defaults.momentum:
            changed["momentum"] = self.momentum
        if self.seed:
            changed["seed"] = self.seed
        return " ".join([self.label, *(f"{k}={_readable(v)}" for k, v in changed.items())])


def titles(experiments: Iterable[Experiment]) -> dict[str, str]:
    """Return the title of each experiment by digest, with its task if there are several tasks.

    >>> one, two = (Experiment.of(f"{model}-digits", "sgd") for model in ("logistic", "mlp"))
    >>> list(titles([one]).values()), list(titles([one, two]).values())
    (['sgd'], ['logistic-digits sgd', 'mlp-digits sgd'])
    """
    every = {each.digest: each for each in experiments}
    several = len({each.task for each in every.values()}) > 1
    return {d: f"{each.task} {each.title}" if several else each.title for d, each in every.items()}


def _integer(name: str, value: Any, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    if value >= INTEGER_LIMIT:
        raise ValueError(f"{name} must be a whole number below 2**63, got {value}")
    return value


def _readable(value: Any) -> str:
    return format_reciprocal(value) or str(value)
