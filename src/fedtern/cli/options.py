"""Options that several commands share, and the settings of commands that train."""

from __future__ import annotations

import inspect
import math
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fedtern.core.numbers import parse_number
from fedtern.data.environment import Environment
from fedtern.runs import LOCAL_ENGINE, Experiment, complete_method, parse_method

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


Task = Annotated[str, typer.Argument(help="Task; see `fedtern tasks`.")]
TaskOption = Annotated[str, typer.Option(help="Task; see `fedtern tasks`.")]
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
        float | None,
        fraction_option("Fraction of values in an upload, for example 1/400.", _METHOD_DEFAULT),
    ] = None
    p_down: Annotated[
        float | None,
        fraction_option("Fraction of values in a broadcast, for example 1/400.", _METHOD_DEFAULT),
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
    delta: Annotated[
        float | None, typer.Option(help="Step size of signSGD.", show_default=_METHOD_DEFAULT)
    ] = None
    weighted: Annotated[
        bool | None,
        typer.Option(
            help="Weight clients by their number of examples.", show_default=_METHOD_DEFAULT
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
        chosen = parse_method(method)
        known = complete_method({"name": chosen["name"]})
        given = {name: getattr(self, name) for name in _METHOD if getattr(self, name) is not None}
        if strict:
            for name in given.keys() & chosen.keys():
                if given[name] != chosen[name]:
                    raise ValueError(
                        f"--{name.replace('_', '-')} {given[name]} contradicts --method {method}:"
                        " omit one of them"
                    )
        else:
            given = {name: value for name, value in given.items() if name in known}
        environment = self.environment(**{name: getattr(self, name) for name in _PARTICIPATION})
        rest = {name: getattr(self, name) for name in _SGD}
        return Experiment.of(task, {**given, **chosen}, environment, **rest)


@dataclass(frozen=True)
class SimulationOptions(TrainingOptions):
    """Options that determine how one machine simulates all clients."""

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
    engine: Annotated[
        str, typer.Option(help="local, or flower: Flower's simulation on Ray, with equal results.")
    ] = LOCAL_ENGINE
    as_json: AsJson = False

    @property
    def memory_bytes(self) -> int | None:
        """Memory for residuals and momentum in bytes; None if it is unlimited."""
        if self.memory is None:
            return None
        if not 0 <= self.memory < math.inf:
            raise ValueError(f"--memory must be a number of GiB of at least 0, got {self.memory}")
        return int(self.memory * (1 << 30))


_PARTICIPATION = ("participation", "batch_size")
_SGD = ("iterations", "learning_rate", "momentum", "weight_decay", "evaluate_every", "seed")
_METHOD = ("p_up", "p_down", "local_steps", "scope", "delta", "weighted")
EXPERIMENT = (*(f.name for f in fields(SplitOptions)), *_PARTICIPATION, *_SGD, *_METHOD)
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
