"""Options that several commands share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fedtern.cli.numbers import rate
from fedtern.data.environment import Environment
from fedtern.runs import LOCAL_ENGINE, Experiment, complete_method, parse_method

Task = Annotated[str, typer.Argument(help="What to learn: see `fedtern tasks`.")]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where datasets are. [default: $FEDTERN_DATA, or downloaded once]"),
]
Out = Annotated[Path, typer.Option(help="Where runs are kept, one directory each.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
_Rate = Annotated[
    float | None, typer.Option(parser=rate, help="Share of values that is sent, like 1/400.")
]


@dataclass(frozen=True)
class Splitting:
    """Options that say who holds which data."""

    clients: Annotated[int, typer.Option(help="How many there are in all.")] = 100
    classes_per_client: Annotated[int, typer.Option(help="Classes that each client holds.")] = 10
    gamma: Annotated[float, typer.Option(help="Concentration of the data; 1 is balanced.")] = 1.0
    alpha: Annotated[float, typer.Option(help="Share of the data that is spread evenly.")] = 0.1
    split: Annotated[str, typer.Option(help="classes, iid, dirichlet or natural.")] = "classes"
    concentration: Annotated[float, typer.Option(help="Of the Dirichlet split.")] = 0.5
    public: Annotated[float, typer.Option(help="Share of the data that every client holds.")] = 0.0

    def environment(self, **others: Any) -> Environment:
        """The environment that these options describe."""
        own = {f.name: getattr(self, f.name) for f in fields(Splitting)}
        return Environment(**own, **others).check_options_apply()


@dataclass(frozen=True)
class Training(Splitting):
    """Options that say how a federation trains, with which data, and where that is kept."""

    participation: Annotated[
        float, typer.Option(parser=rate, help="Share of clients in each round.")
    ] = 0.1
    batch_size: Annotated[int, typer.Option(help="Examples in each local iteration.")] = 20
    iterations: Annotated[
        int | None, typer.Option(help="Local iterations in all. [default: the task's]")
    ] = None
    learning_rate: Annotated[float | None, typer.Option(help="Of SGD. [default: the task's]")] = (
        None
    )
    momentum: Annotated[
        float | None, typer.Option(help="Of each client's SGD. [default: the task's]")
    ] = None
    weight_decay: Annotated[float | None, typer.Option(help="Of SGD. [default: the task's]")] = None
    evaluate_every: Annotated[
        int | None, typer.Option(help="Iterations between tests. [default: a fiftieth of all]")
    ] = None
    p_up: _Rate = None
    p_down: _Rate = None
    local_steps: Annotated[int | None, typer.Option(help="Iterations between messages.")] = None
    scope: Annotated[str | None, typer.Option(help="Rank values in the model or a tensor.")] = None
    delta: Annotated[float | None, typer.Option(help="Step of signSGD.")] = None
    weighted: Annotated[bool | None, typer.Option(help="Weight clients by their examples.")] = None
    seed: Seed = 0
    data_dir: DataDir = None
    out: Out = Path("runs")
    threads: Annotated[int, typer.Option(min=1, help="Of torch, where there is one process.")] = 1

    def experiment(self, task: str, method: str, *, strict: bool) -> Experiment:
        """The experiment with a method as typed; flags it has no use for are an error if strict."""
        chosen = parse_method(method)
        known = complete_method({"name": chosen["name"]})
        given = {name: getattr(self, name) for name in _METHOD if getattr(self, name) is not None}
        for name in given.keys() & chosen if strict else ():
            if given[name] != chosen[name]:
                raise ValueError(
                    f"--{name.replace('_', '-')} {given[name]} contradicts --method {method}: leave"
                    " one of them out"
                )
        fitting = given if strict else {k: v for k, v in given.items() if k in known}
        environment = self.environment(**{name: getattr(self, name) for name in _TAKING_PART})
        rest = {name: getattr(self, name) for name in _SGD}
        return Experiment.of(task, {**fitting, **chosen}, environment, **rest)


@dataclass(frozen=True)
class Simulating(Training):
    """Options that say how all clients are simulated on one machine."""

    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu"
    memory: Annotated[
        float | None, typer.Option(help="GiB for residuals and momentum before they go to disk.")
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Processes that train at the same time. [default: one a core, if faster]"
        ),
    ] = None
    engine: Annotated[
        str, typer.Option(help="local, or flower: its simulation on Ray, to the same bytes.")
    ] = LOCAL_ENGINE
    as_json: AsJson = False

    @property
    def memory_bytes(self) -> int | None:
        """What residuals and momentum may take."""
        if self.memory is None:
            return None
        if not 0 <= self.memory < math.inf:
            raise ValueError(f"--memory must be a number of GiB of at least 0, got {self.memory}")
        return int(self.memory * (1 << 30))


_TAKING_PART = ("participation", "batch_size")
_SGD = ("iterations", "learning_rate", "momentum", "weight_decay", "evaluate_every", "seed")
_METHOD = ("p_up", "p_down", "local_steps", "scope", "delta", "weighted")
EXPERIMENT = (*(f.name for f in fields(Splitting)), *_TAKING_PART, *_SGD, *_METHOD)
"""The options that say what is trained; the others say where."""


def takes(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options; it gets them together, as its parameter ``options``."""

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
