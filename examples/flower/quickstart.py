"""Compare a Flower app with and without compression: accuracy and bytes.

`python examples/flower/quickstart.py` trains on handwritten digits with ten nodes of Flower's
simulation. The apps are in `plain` and `compressed`; `diff -r` shows the changed lines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from processes import QUIET

HERE = Path(__file__).parent
NODES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--p", type=float, help="share of values that STC sends (default: the default method)"
    )
    parser.add_argument("--app", choices=("plain", "compressed"), help="run one app and print JSON")
    options = parser.parse_args()
    if options.app:
        print(json.dumps(simulate(options.app, options.rounds, options.p)))
        return
    found = {
        app: in_another_process(app, options.rounds, options.p) for app in ("plain", "compressed")
    }
    print(f"{'':12} {'accuracy':>9} {'MB up':>10} {'MB down':>10}")
    for app, row in found.items():
        megabytes = f"{row['up'] / 1e6:>10.3f} {row['down'] / 1e6:>10.3f}"
        print(f"{app:12} {row['accuracy']:>9.2%} {megabytes}")
    fewer = [found["plain"][way] / found["compressed"][way] for way in ("up", "down")]
    print(f"{'':12} {'':9} {fewer[0]:>9.0f}x {fewer[1]:>9.0f}x fewer bytes")


def in_another_process(app: str, rounds: int, p: float | None) -> dict[str, float]:
    """Run an app in its own interpreter, because both apps are named `digits`."""
    command = [sys.executable, __file__, "--app", app, "--rounds", str(rounds)]
    command += [] if p is None else ["--p", str(p)]
    done = subprocess.run(
        command, env={**os.environ, **QUIET}, stdout=subprocess.PIPE, text=True, check=True
    )
    last: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return last


def simulate(app: str, rounds: int, p: float | None) -> dict[str, float]:
    """Run an app as `flwr run` does and count the bytes of its messages."""
    from flwr.app import Context, MetricRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    sys.path.insert(0, str(HERE / app))
    # For the processes of the simulation, which import what this process imports.
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE / app), inherited)))
    from digits import client_app, server_app

    settings = tomllib.loads((HERE / app / "pyproject.toml").read_text())
    config: dict[str, Any] = settings["tool"]["flwr"]["app"]["config"]
    config |= {"num-server-rounds": rounds, "min-nodes": NODES}
    found: dict[str, float] = {"up": 0, "down": 0}
    evaluate = server_app.evaluate

    def remember(server_round: int, arrays: Any) -> MetricRecord:
        metrics = evaluate(server_round, arrays)
        found["accuracy"] = float(str(metrics["accuracy"]))
        return metrics

    server_app.evaluate = remember
    if p is not None and app == "compressed":
        from fedtern import stc
        from fedtern.transports.flower import Compressed

        vars(server_app)["Compressed"] = partial(Compressed, method=stc(p, p))

    class Configured(ClientApp):
        def __call__(self, message: Any, context: Context) -> Any:
            own = context.run_config
            context.run_config = config
            try:
                return client_app.app(message, context)
            finally:
                context.run_config = own  # Flower checks that it is unchanged

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        context.run_config = config
        grid.send_and_receive = counted(grid.send_and_receive, found)  # type: ignore[method-assign]
        server_app.app(grid, context)

    resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, Configured(), NODES, backend_config=resources)
    return found


def counted(exchange: Callable[..., Any], found: dict[str, float]) -> Callable[..., Any]:
    """Wrap ``exchange`` to count the bytes of models, or of the messages that replace them."""

    def payload(messages: Iterable[Any]) -> int:
        total = 0
        for content in (message.content for message in messages if message.has_content()):
            for record in content.array_records.values():
                total += sum(array.numpy().nbytes for array in record.values())
            for record in content.config_records.values():
                total += sum(len(value) for value in record.values() if isinstance(value, bytes))
        return total

    def send_and_receive(messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        messages = list(messages)
        found["down"] += payload(messages)
        replies = list(exchange(messages, timeout=timeout))
        found["up"] += payload(replies)
        return replies

    return send_and_receive


if __name__ == "__main__":
    main()
