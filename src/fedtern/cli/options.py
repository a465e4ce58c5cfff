"""Options that several commands share, and the settings of commands that train."""

from __future__ import annotations

import inspect
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fedtern.core.methods.aggregate_text import AGGREGATE, AGGREGATES
from fedtern.core.names import look_up
from fedtern.core.numbers import parse_number
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import TASK_DEFAULTS
from fedtern.privacy import PrivacySettings
from fedtern.runs import LOCAL_ENGINE, Experiment, format_method, parse_method
from fedtern.runs.method_registry import known_methods

if TYPE_CHECKING:  # needs torch
    from fedtern.tuning import Plan

_CHECKPOINTS = "FEDTERN_CHECKPOINT_SECONDS"  # an environment variable


def parse_fraction(text: str | float) -> float:
    """Read a number or a fraction such as 1/400.

    Raises:
        typer.BadParameter: The text is neither. Typer would not show the text of a ValueError.

    """
    try:
        return parse_number(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_share(text: str | float) -> float | str:
    """Read a number, a fraction such as 1/400, or the word "auto".

    Raises:
        typer.BadParameter: The text is none of these.

    """
    return "auto" if text == "auto" else parse_fraction(text)


def parse_numbers(text: str) -> tuple[float, ...]:
    """Read numbers that are separated by commas, and drop repeated ones.

    Raises:
        ValueError: A part of the text is not a number.

    >>> parse_numbers("1, 2,1/4,2"), parse_numbers("")
    ((1.0, 2.0, 0.25), ())
    """
    parts = (part.strip() for part in text.split(","))
    try:
        return tuple(dict.fromkeys(parse_number(part) for part in parts if part))
    except ValueError:
        raise ValueError(f"expected numbers like 1,2,10, got {text!r}") from None


def command_line() -> str:
    """Return the command as the user typed it."""
    return shlex.join(["fedtern", *sys.argv[1:]])


def checkpoint_seconds() -> float:
    """Return the time between two checkpoints of a run.

    Raises:
        ValueError: The environment variable is not a number of seconds.

    """
    given = os.environ.get(_CHECKPOINTS, "30")
    with suppress(ValueError):
        if (seconds := float(given)) >= 0:
            return seconds
    raise ValueError(f"{_CHECKPOINTS} must be a number of seconds of at least 0, got {given!r}")


def load_tasks(imports: list[str] | None) -> None:
    """Register your own tasks; see ``fedtern.training.tasks.load_tasks``."""
    from fedtern.training.tasks import load_tasks  # imports torch

    load_tasks(imports)


def fraction_option(help: str, show_default: bool | str = True) -> Any:
    """Return an option whose value is a number or a fraction."""
    return typer.Option(
        parser=parse_fraction, metavar="FRACTION", help=help, show_default=show_default
    )


def share_option(help: str) -> Any:
    """Return an option whose value is a number, a fraction or "auto"."""
    return typer.Option(
        parser=parse_share, metavar="FRACTION", help=help, show_default=_METHOD_DEFAULT
    )


def complete_task_name(start: str) -> list[str]:
    """Return the built-in tasks that start with a text, for the shell.

    >>> complete_task_name("logistic-d")
    ['logistic-digits']
    """
    return [name for name in TASK_DEFAULTS if name.startswith(start)]


def complete_method_name(start: str) -> list[str]:
    """Return the methods that start with a text, for the shell.

    >>> complete_method_name("st")
    ['stc', 'stc_plus', 'strom', 'structured']
    """
    return sorted(name for name in known_methods() if name.startswith(start))


def complete_aggregate(start: str) -> list[str]:
    """Return examples of the aggregations that start with a text, for the shell.

    >>> complete_aggregate("m")
    ['mean', 'median']
    """
    return [text for text in AGGREGATES.values() if text.startswith(start)]


_TASK_HELP = "Task; see `fedtern tasks`."
Task = Annotated[str, typer.Argument(help=_TASK_HELP, autocompletion=complete_task_name)]
TaskOption = Annotated[str, typer.Option(help=_TASK_HELP, autocompletion=complete_task_name)]
Seed = Annotated[int, typer.Option(help="Random seed.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the datasets.",
        show_default="$FEDTERN_DATA, or a cache that downloads them",
    ),
]
Out = Annotated[Path, typer.Option(help="Directory for runs; each run gets a subdirectory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Watch = Annotated[bool, typer.Option("--watch", help="Serve a live page; see `fedtern watch`.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER",
        help="Also log to tensorboard, mlflow, wandb, csv or json; NAME:TARGET; can be repeated.",
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Module or Python file with tasks of your own; can be repeated.",
    ),
]
_TASK_DEFAULT = "from the task"
_METHOD_DEFAULT = "from the method"


@dataclass(frozen=True)
class SplitOptions:
    """Options that determine the data of each client."""

    clients: Annotated[int, typer.Option(help="Number of clients.")] = 100
    classes_per_client: Annotated[int, typer.Option(help="Classes per client.")] = 10
    gamma: Annotated[float, typer.Option(help="Balance of client sizes; 1 is balanced.")] = 1.0
    alpha: Annotated[
        float, typer.Option(help="Fraction of the data that is spread evenly over clients.")
    ] = 0.1
    split: Annotated[
        str, typer.Option(help="Kind of split: classes, iid, dirichlet or natural.")
    ] = "classes"
    concentration: Annotated[float, typer.Option(help="Concentration of the Dirichlet split.")] = (
        0.5
    )
    public: Annotated[float, typer.Option(help="Fraction of the data that every client holds.")] = (
        0.0
    )

    def environment(self, **others: Any) -> Environment:
        """Return the environment that these options describe.

        Args:
            others: Further fields of the environment.

        Raises:
            ValueError: An option is out of range or does not apply to this split.

        """
        own = {f.name: getattr(self, f.name) for f in fields(SplitOptions)}
        return Environment(**own, **others).check_options_apply()


@dataclass(frozen=True)
class TrainingOptions(SplitOptions):
    """Options that determine how a federation trains, and where its data and runs are."""

    participation: Annotated[float, fraction_option("Fraction of the clients in each round.")] = 0.1
    batch_size: Annotated[int, typer.Option(help="Examples per local iteration.")] = 20
    iterations: Annotated[
        int | None,
        typer.Option(help="Local iterations in total.", show_default=_TASK_DEFAULT),
    ] = None
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of SGD.", show_default=_TASK_DEFAULT)
    ] = None
    momentum: Annotated[
        float | None,
        typer.Option(help="Momentum of each client's SGD.", show_default=_TASK_DEFAULT),
    ] = None
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay of SGD.", show_default=_TASK_DEFAULT)
    ] = None
    evaluate_every: Annotated[
        int | None,
        typer.Option(help="Iterations between evaluations.", show_default="1/50 of all iterations"),
    ] = None
    p_up: Annotated[
        Any,
        share_option("Fraction of values in an upload, for example 1/400; stc_plus has auto."),
    ] = None
    p_down: Annotated[
        Any,
        share_option(
            "Fraction of values in a broadcast, for example 1/400; auto: about --p-up times"
            " --participation."
        ),
    ] = None
    local_steps: Annotated[
        int | None,
        typer.Option(help="Local iterations per round.", show_default=_METHOD_DEFAULT),
    ] = None
    scope: Annotated[
        str | None,
        typer.Option(
            help="Where the largest values are selected: model or tensor.",
            show_default=_METHOD_DEFAULT,
        ),
    ] = None
    codec: Annotated[
        str | None,
        typer.Option(
            help="How positions are coded: golomb or adaptive.", show_default=_METHOD_DEFAULT
        ),
    ] = None
    magnitudes: Annotated[
        str | None,
        typer.Option(
            help="The magnitude of a broadcast of STC: mean or powers (of two).",
            show_default=_METHOD_DEFAULT,
        ),
    ] = None
    delta: Annotated[
        float | None, typer.Option(help="Step size of signSGD.", show_default=_METHOD_DEFAULT)
    ] = None
    weighted: Annotated[
        bool | None,
        typer.Option(
            help="Weight clients by their number of examples.", show_default=_METHOD_DEFAULT
        ),
    ] = None
    aggregate: Annotated[
        str | None,
        typer.Option(
            help="How the server combines uploads: mean, median, trimmed-mean:SHARE, krum:LIARS or"
            " clip:NORM.",
            autocompletion=complete_aggregate,
            show_default=_METHOD_DEFAULT,
        ),
    ] = None
    dp_clip: Annotated[
        float | None,
        typer.Option(
            help="Differential privacy: largest L2 norm of a client's update.", show_default="off"
        ),
    ] = None
    dp_noise: Annotated[
        float | None,
        typer.Option(
            help="Differential privacy: standard deviation of the noise, divided by --dp-clip.",
            show_default="off",
        ),
    ] = None
    dp_delta: Annotated[
        float | None,
        typer.Option(
            help="Differential privacy: probability with which epsilon may fail.",
            show_default="1e-5",
        ),
    ] = None
    dp_budget: Annotated[
        float | None,
        typer.Option(
            help="Differential privacy: largest epsilon; training stops before it is exceeded.",
            show_default="unlimited",
        ),
    ] = None
    dp_model: Annotated[
        str | None,
        typer.Option(
            help="Differential privacy: central (the server adds noise) or local (clients do).",
            show_default="central",
        ),
    ] = None
    seed: Seed = 0
    data_dir: DataDir = None
    out: Out = Path("runs")
    threads: Annotated[
        int, typer.Option(min=1, help="Threads of torch; above 1, only one process trains.")
    ] = 1
    imports: Imports = None

    def experiment(self, task: str, method: str, *, strict: bool) -> Experiment:
        """Return the experiment that these options describe.

        Args:
            task: Name of the task.
            method: The method as typed, such as ``stc:p_up=1/100``.
            strict: Whether options that the method does not have are an error. Otherwise they are
                ignored, and a parameter in ``method`` overrides an option.

        Raises:
            ValueError: A name is unknown, a value is out of range, or two values contradict each
                other.

        """
        load_tasks(self.imports)
        environment = self.environment(**{name: getattr(self, name) for name in _PARTICIPATION})
        rest = {name: getattr(self, name) for name in _SGD}
        privacy = self.privacy_settings()
        values = self.method_values(method, _METHOD, strict=strict)
        return Experiment.of(task, values, environment, **rest, privacy=privacy)

    def method_values(self, method: str, names: Sequence[str], *, strict: bool) -> dict[str, Any]:
        """Return a method's name and the parameters that are given with it or as options.

        Args:
            method: See ``experiment``.
            names: The options to use.
            strict: See ``experiment``.

        Raises:
            ValueError: The method is unknown, or an option contradicts its text.

        """
        chosen = parse_method(method)
        known = look_up(chosen["name"], known_methods(), "method").defaults
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if strict:
            for name in given.keys() & chosen.keys():
                if given[name] != chosen[name]:
                    raise ValueError(
                        f"--{_dashed(name)} {given[name]} contradicts --method {method}:"
                        " omit one of them"
                    )
        else:
            # The aggregation protects against clients that lie, so it is never ignored silently.
            given = {n: value for n, value in given.items() if n in known or n == AGGREGATE}
        return {**given, **chosen}

    def privacy_settings(self) -> PrivacySettings | None:
        """Return the settings of differential privacy; None if it is off.

        Raises:
            ValueError: A setting is missing or out of range.

        """
        given = {
            field: getattr(self, option)
            for option, field in _PRIVACY.items()
            if getattr(self, option) is not None
        }
        if not given:
            return None
        for option in ("dp_clip", "dp_noise"):
            if getattr(self, option) is None:
                raise ValueError(
                    f"Differential privacy needs --{_dashed(option)}: pass both --dp-clip"
                    " and --dp-noise."
                )
        settings = PrivacySettings(**given)
        if settings.delta * self.clients >= 1:
            raise ValueError(
                f"--dp-delta must be less than 1/{self.clients}, one divided by the number of"
                f" clients, got {settings.delta:g}"
            )
        settings.central(clients_per_round=1)  # raises if a value is out of range
        settings.local()
        return settings


@dataclass(frozen=True)
class LocalOptions(TrainingOptions):
    """Options that determine how one machine trains all clients."""

    device: Annotated[str, typer.Option(help="Device of torch: cpu, cuda, cuda:1, ...")] = "cpu"
    memory: Annotated[
        float | None,
        typer.Option(
            help="GiB of memory for residuals and momentum; the rest is kept on disk.",
            show_default="unlimited",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that train in parallel.",
            show_default="one per core if that is faster",
        ),
    ] = None
    as_json: AsJson = False

    @property
    def memory_bytes(self) -> int | None:
        """Memory for residuals and momentum in bytes; None if it is unlimited."""
        if self.memory is None:
            return None
        if not 0 <= self.memory < math.inf:
            raise ValueError(f"--memory must be a number of GiB of at least 0, got {self.memory}")
        return int(self.memory * (1 << 30))


@dataclass(frozen=True)
class SimulationOptions(LocalOptions):
    """Options that determine how one machine simulates all clients."""

    engine: Annotated[
        str, typer.Option(help="local, or flower: Flower's simulation on Ray, with equal results.")
    ] = LOCAL_ENGINE


def _parse_list(text: Any, parse: Callable[[str], Any]) -> Any:
    """Parse values that are separated by commas; return a tuple, or the value if it is one."""
    if not isinstance(text, str):
        return text
    values = tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))
    return values if len(values) > 1 else values[0]


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"expected a whole number, got {text!r}") from None


def _sweep_option(parse: Callable[[str], Any], metavar: str, help: str) -> Any:
    return typer.Option(
        parser=lambda text: _parse_list(text, parse),
        metavar=metavar,
        help=help,
        show_default=_METHOD_DEFAULT,
    )


@dataclass(frozen=True)
class ComparisonOptions(SimulationOptions):
    """Options of a comparison: some take several values, and there can be several seeds."""

    p_up: Annotated[
        Any, _sweep_option(parse_share, "FRACTIONS", "Like in run; 1/25,1/100 compares both.")
    ] = None
    p_down: Annotated[
        Any, _sweep_option(parse_share, "FRACTIONS", "Like in run; 1/25,auto compares both.")
    ] = None
    local_steps: Annotated[
        Any, _sweep_option(_parse_integer, "NUMBERS", "Like in run; 25,100 compares both.")
    ] = None
    aggregate: Annotated[
        Any, _sweep_option(str, "TEXTS", "Like in run; mean,krum:2 compares both.")
    ] = None
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds, from --seed on; the report shows bands.")
    ] = 1

    def experiments(self, task: str, methods: Sequence[str]) -> list[Experiment]:
        """Return all experiments: each method with each value of a sweep and each seed.

        Raises:
            ValueError: See ``experiment``.

        """
        swept = {
            name: value if isinstance(value, tuple) else (value,)
            for name in (*_SWEPT, AGGREGATE)
            for value in [getattr(self, name)]
        }
        found = [
            replace(self, **dict(zip(swept, values, strict=True)), seed=seed).experiment(
                task, method, strict=False
            )
            for method in methods
            for values in product(*swept.values())
            for seed in range(self.seed, self.seed + self.seeds)
        ]
        # A method without the parameter gives the same experiment for each value.
        return list({each.digest: each for each in found}.values())


def _tuned_option(parse: Callable[[str], Any], metavar: str, help: str, default: str) -> Any:
    return typer.Option(
        parser=lambda text: _parse_list(text, parse),
        metavar=metavar,
        help=help,
        show_default=default,
    )


@dataclass(frozen=True)
class TuningOptions(LocalOptions):
    """Options of a search for the parameters of a method."""

    local_steps: Annotated[
        Any,
        _tuned_option(_parse_integer, "NUMBERS", "Local iterations per round to try.", "1,5,25"),
    ] = None
    p_up: Annotated[
        Any,
        _tuned_option(
            parse_fraction,
            "FRACTIONS",
            "Fractions of values in an upload to try.",
            "1/25,1/100,1/400",
        ),
    ] = None
    p_down: Annotated[
        Any,
        _tuned_option(
            parse_fraction,
            "FRACTIONS",
            "Fractions of values in a broadcast to try.",
            "each --p-up, and --p-up times --participation",
        ),
    ] = None
    codec: Annotated[
        str | None,
        typer.Option(
            help="How positions are coded: golomb or adaptive.",
            show_default="adaptive, if the method has it",
        ),
    ] = None
    magnitudes: Annotated[
        str | None,
        typer.Option(
            help="The magnitude of a broadcast of STC: mean or powers (of two).",
            show_default="powers, if the method has it",
        ),
    ] = None
    minimise: Annotated[
        str, typer.Option(help="What to minimise per client: bytes, bytes-up or bytes-down.")
    ] = "bytes"
    down_weight: Annotated[
        float | None,
        typer.Option(help="Factor of downloaded bytes in --minimise bytes.", show_default="1"),
    ] = None
    target: Annotated[
        float | None,
        fraction_option("Value of the metric to reach, for example 0.9.", "--within of the best"),
    ] = None
    within: Annotated[
        float | None,
        typer.Option(
            help="Distance of the target below the best accuracy, in percentage points.",
            show_default="2",
        ),
    ] = None
    budget: Annotated[
        int | None,
        typer.Option(help="Iterations of the longest runs.", show_default="half of --iterations"),
    ] = None
    rungs: Annotated[
        int | None,
        typer.Option(help="Steps of the search.", show_default="3, or 2 with a small budget"),
    ] = None
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds of the two cheapest candidates, from --seed on.")
    ] = 2
    out: Out = Path("tuning")

    def plan(self, task: str, method: str) -> Plan:
        """Return the search that these options describe.

        Raises:
            ValueError: See ``TrainingOptions.experiment`` and ``Plan.of``.

        """
        from fedtern.tuning import Grid, Plan  # imports torch

        load_tasks(self.imports)
        fixed = [name for name in _METHOD if name not in _SWEPT]
        swept = {name: getattr(self, name) for name in _SWEPT}
        return Plan.of(
            task,
            self.method_values(method, fixed, strict=True),
            Grid(**{name: _as_tuple(value) for name, value in swept.items()}),
            self.environment(**{name: getattr(self, name) for name in _PARTICIPATION}),
            **{name: getattr(self, name) for name in (*_SEARCH, *_SGD)},
            privacy=self.privacy_settings(),
        )

    def run_command(self, task: str, experiment: Experiment) -> list[str]:
        """Return the command that trains a candidate in full, from where the search stopped."""
        arguments = ["fedtern", "run", task, "--method", format_method(experiment.method)]
        for each in fields(LocalOptions):
            value = getattr(self, each.name)
            if each.name in _METHOD or each.name in ("evaluate_every", "as_json", "out"):
                continue
            if value != each.default:
                option = "--import" if each.name == "imports" else f"--{_dashed(each.name)}"
                for part in value if isinstance(value, list) else [value]:
                    arguments += [option, str(part)]
        every = str(experiment.evaluate_every)
        return [*arguments, "--evaluate-every", every, "--out", str(self.out), "--resume"]


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    return value if value is None or isinstance(value, tuple) else (value,)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


_SWEPT = ("p_up", "p_down", "local_steps")
_SEARCH = ("minimise", "down_weight", "target", "within", "budget", "rungs", "seeds")
_PARTICIPATION = ("participation", "batch_size")
_SGD = ("iterations", "learning_rate", "momentum", "weight_decay", "evaluate_every", "seed")
_METHOD = (
    "p_up",
    "p_down",
    "local_steps",
    "scope",
    "codec",
    "magnitudes",
    "delta",
    "weighted",
    AGGREGATE,
)
_PRIVACY = {
    "dp_clip": "clip",
    "dp_noise": "noise_multiplier",
    "dp_delta": "delta",
    "dp_budget": "budget",
    "dp_model": "model",
}
EXPERIMENT = (*(f.name for f in fields(SplitOptions)), *_PARTICIPATION, *_SGD, *_METHOD, *_PRIVACY)
"""Options that are part of the experiment; the others are about where and how it runs."""


def with_options(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options to a command.

    Typer reads the signature of a command. The decorated command has one keyword parameter per
    field of ``options``; the original one gets them together, as its parameter ``options``.

    Args:
        options: A dataclass whose fields are annotated as options of typer.

    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        hints = get_type_hints(options, include_extras=True)
        shared = {
            f.name: inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
            )
            for f in fields(options)
        }

        def run(**given: Any) -> None:
            together = options(**{name: given.pop(name) for name in shared})
            command(options=together, **given)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own.values()]
        kept = [p for p in parameters if p.name != "options"] + list(shared.values())
        run.__doc__ = command.__doc__
        run.__annotations__ = {p.name: p.annotation for p in kept}
        vars(run)["__signature__"] = inspect.Signature(kept)
        return run

    return decorate
