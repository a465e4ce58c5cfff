"""One run, said in full: the same experiment gives the same bytes."""

from __future__ import annotations

import hashlib
import inspect
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from fedtern.environment import Environment
from fedtern.methods import METHODS, Method
from fedtern.names import look_up
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
        method: Mapping[str, Any],
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
        known = get_task(task)
        total = known.iterations if iterations is None else iterations
        if total < 1:
            raise ValueError(f"iterations must be at least 1, got {total}")
        if evaluate_every is not None and evaluate_every < 1:
            raise ValueError(f"evaluate_every must be at least 1, got {evaluate_every}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        return cls(
            task,
            complete(method),
            environment or Environment(),
            total,
            known.learning_rate if learning_rate is None else learning_rate,
            known.momentum if momentum is None else momentum,
            known.weight_decay if weight_decay is None else weight_decay,
            evaluate_every or max(total // 50, 1),
            seed,
        )

    def make_task(self) -> Task:
        """The task by its name."""
        return get_task(self.task)

    def make_method(self) -> Method:
        """The method with its parameters."""
        parameters = {name: value for name, value in self.method.items() if name != "name"}
        return METHODS[self.method["name"]](**parameters)

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
            environment = Environment(**values.pop("environment", {}))
            return cls.of(environment=environment, **values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

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
            if key != "name" and (value != default[key] or key in shown) and value != 1
        ]
        return " ".join([self.method["name"], *parts])


def complete(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method's name and all of its parameters, those not given at their defaults."""
    if "name" not in method:
        raise ValueError(f"a method needs a name, got {dict(method)}")
    make = look_up(method["name"], METHODS, "method")
    parameters = inspect.signature(make).parameters
    for name in method:
        if name != "name" and name not in parameters:
            raise ValueError(
                f"method {method['name']!r} has no parameter {name!r}; it has"
                f" {', '.join(parameters) or 'none'}"
            )
    given = {n: method.get(n, p.default) for n, p in parameters.items()}
    make(**given)  # or its values are out of range
    return {"name": method["name"], **given}


def parse_method(text: str) -> dict[str, Any]:
    """A method as a person types it.

    >>> parse_method("stc:p_up=1/100,scope=tensor")
    {'name': 'stc', 'p_up': 0.01, 'scope': 'tensor'}
    """
    name, _, rest = text.partition(":")
    method: dict[str, Any] = {"name": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"expected parameter=value after the colon in {text!r}, got {part!r}")
        method[key.replace("-", "_")] = _parse_value(value)
    return method


def _parse_value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        return text


def _readable(value: Any) -> str:
    if isinstance(value, float) and 0 < value < 1:
        whole = round(1 / value)
        if 1 / whole == value:
            return f"1/{whole}"
    return str(value)
