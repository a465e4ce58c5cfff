"""Deploy a federation: a SuperLink and three SuperNodes, with TLS and node keys.

`python examples/flower/deployment.py` creates certificates and keys, starts four processes on the
loopback interface, runs the compressed app, prints the results and stops all processes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from certificates import Certificates, node_key
from processes import Processes

from fedtern.runs import load_run

APP = Path(__file__).parent / "compressed"
NODES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--directory", type=Path, help="directory for all files (default: a temporary one)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        deploy((options.directory or Path(scratch)).resolve(), options.rounds)


def deploy(directory: Path, rounds: int) -> None:
    """Run the app and print the metrics of each round."""
    certificates = Certificates.make(directory / "certificates")
    with Processes(directory, certificates) as here:
        here.superlink()
        for number in range(NODES):
            key = node_key(directory / f"key-{number}")
            here.flwr("supernode", "register", f"{key}.pub", "here")
            here.supernode(number, NODES, key)
        print(f"SuperLink on port {here.port}, {NODES} SuperNodes with keys; logs in {directory}")
        store = directory / "federation"
        run = here.run(
            APP,
            "run",
            store=str(store),
            min_nodes=NODES,
            num_server_rounds=rounds,
            fraction_evaluate=1.0,
        )
        here.wait("the run to end", lambda: run.poll() is not None, 60 + 90 * rounds)
        if "Final results" not in here.said("run"):
            raise RuntimeError(here.said("run"))
    ways = f"{'payload up':>11} {'down':>9} {'on the wire up':>15} {'down':>9}"
    print(f"{'round':>8} {'accuracy':>9} {ways}")
    for row in load_run(store).evaluations:
        payload = f"{row['up_bytes']:>11,} {row['down_bytes']:>9,}"
        wire = f"{row['wire_up_bytes']:>15,} {row['wire_down_bytes']:>9,}"
        print(f"{row['round']:>8} {row['accuracy']:>9.2%} {payload} {wire}")
    print("all processes have ended")


if __name__ == "__main__":
    main()
