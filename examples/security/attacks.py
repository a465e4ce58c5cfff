"""One client of a federation lies: accuracy with and without the server's cap.

Softmax regression on MNIST with STC. All messages are those of a real server and of real clients;
the attacker changes its own upload and seals it again. `python examples/security/attacks.py` prints
a table for docs/security.md. `--ratios` prints how far honest uploads are from the typical norm.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtern import METHODS, Client, Environment, Method, Server, stc
from fedtern.core.layout import Layout
from fedtern.core.protocol import NormCap, Sent, Terms, Upload
from fedtern.core.updates import Ternary, norm
from fedtern.data import load

Vector = NDArray[np.float32]

RATE = 0.04  # learning rate and batch size of the task logistic-mnist
BATCH = 20
COHORT = 10


@dataclass(frozen=True)
class Problem:
    """Examples with a constant feature, and the number of classes."""

    train: Vector
    train_labels: NDArray[np.int64]
    test: Vector
    test_labels: NDArray[np.int64]
    classes: int

    @property
    def layout(self) -> Layout:
        """One matrix and one vector of biases."""
        features = self.train.shape[1] - 1
        return Layout(("weight", "bias"), ((features, self.classes), (self.classes,)))

    def gradient(self, weights: Vector, batch: NDArray[np.int64]) -> Vector:
        """Gradient of the cross-entropy of a batch."""
        inputs = self.train[batch]
        logits = inputs @ weights.reshape(-1, self.classes)
        logits -= logits.max(axis=1, keepdims=True)
        errors = np.exp(logits)
        errors /= errors.sum(axis=1, keepdims=True)
        errors[np.arange(batch.size), self.train_labels[batch]] -= 1
        gradient: Vector = (inputs.T @ errors).reshape(-1) / np.float32(batch.size)
        return gradient

    def accuracy(self, weights: Vector) -> float:
        """Share of test examples that are classified correctly."""
        with np.errstate(all="ignore"):  # the weights of a ruined model can be anything
            predicted = (self.test @ weights.reshape(-1, self.classes)).argmax(axis=1)
        return float((predicted == self.test_labels).mean())


def load_mnist(data_dir: Path | None) -> tuple[Problem, Callable[..., list[NDArray[np.int64]]]]:
    """Return MNIST, and a function that splits it among clients."""
    dataset = load("mnist", data_dir)

    def with_bias(inputs: NDArray[np.uint8]) -> Vector:
        flat = dataset.normalise(inputs).reshape(len(inputs), -1)
        return np.hstack([flat, np.ones((len(flat), 1), np.float32)])

    problem = Problem(
        with_bias(dataset.train_inputs),
        np.asarray(dataset.train_labels, np.int64),
        with_bias(dataset.test_inputs),
        np.asarray(dataset.test_labels, np.int64),
        10,
    )

    def split(clients: int, classes_per_client: int, seed: int) -> list[NDArray[np.int64]]:
        environment = Environment(clients=clients, classes_per_client=classes_per_client)
        return list(environment.split_dataset(dataset, seed).clients)

    return problem, split


# An attack changes one of a client's uploads, given its number, and the claimed examples.
Attack = Callable[[Ternary, int], tuple[Ternary, float]]


def honest(update: Ternary, turn: int) -> tuple[Ternary, float]:
    """Send what the method makes."""
    return update, 600


def flip(update: Ternary, times: float, examples: float = 600) -> tuple[Ternary, float]:
    """Send the opposite update, longer."""
    flipped = replace(update, signs=~update.signs, mus=update.mus * np.float32(times))
    return flipped, examples


def huge_once(update: Ternary, turn: int) -> tuple[Ternary, float]:
    """Send a magnitude of 2**63 in the tenth upload."""
    if turn == 10:
        return replace(update, mus=np.full_like(update.mus, 2.0**63)), 600
    return update, 600


def one_coordinate(update: Ternary, turn: int) -> tuple[Ternary, float]:
    """Push the bias of one class in every round."""
    length = np.float32(1000 * norm(update))
    bias = np.array([update.size - 1])
    return Ternary(update.size, bias, np.array([True]), np.array([length])), 600


ATTACKS: dict[str, Attack] = {
    "sign flip x10": lambda update, turn: flip(update, 10),
    "sign flip x1000": lambda update, turn: flip(update, 1000),
    "mu = 2^63 once": huge_once,
    "one coordinate": one_coordinate,
    "weight 2^53 - 1": lambda update, turn: flip(update, 1, 2.0**53 - 1),
}


def lie(sent: Sent, update: Ternary, stamp: bytes, terms: Terms) -> bytes:
    """Seal another update in the place of an upload."""
    payload = terms.method.up.codec.encode(update, terms.layout)
    return Upload.seal(stamp, sent.round, payload, terms)


@dataclass
class Outcome:
    """Result of a federation.

    Attributes:
        accuracy: accuracy on the test set.
        uploads: number of uploads.
        capped: number of honest uploads that the server capped.
        ratios: norm of each upload relative to the typical norm of its round.

    """

    accuracy: float
    uploads: int
    capped: int
    ratios: list[float]


def run(
    problem: Problem,
    split: list[NDArray[np.int64]],
    method: Method,
    rounds: int,
    *,
    attack: Attack | None = None,
    absent: bool = False,
    cap: NormCap | None = None,
    seed: int = 0,
) -> Outcome:
    """Train a federation in which client 0 attacks.

    Args:
        problem: the examples.
        split: the training examples of each client.
        method: how updates are compressed.
        rounds: number of rounds.
        attack: what client 0 sends; None if it is honest.
        absent: whether client 0 does not take part.
        cap: the cap of the server.
        seed: random seed.

    """
    layout = problem.layout
    start = np.zeros(layout.size, np.float32)
    server = Server(start, method, layout, cap=cap, seed=seed)
    clients = [Client(i, method, layout, start, seed=seed) for i in range(len(split))]
    rng = np.random.default_rng(seed)
    outcome = Outcome(0.0, 0, 0, [])
    first = 1 if absent else 0
    turn = 0  # uploads of the attacker
    for round in range(rounds):
        size = min(COHORT, len(split) - first)
        cohort = first + rng.choice(len(split) - first, size, replace=False)
        for i in sorted(cohort.tolist()):
            client = clients[i]
            if client.round < round:
                client.receive(server.catch_up(i, client.round).data)
            batch = rng.choice(split[i], BATCH)
            delta = -np.float32(RATE) * problem.gradient(client.weights, batch)
            sent = client.send_delta(delta)
            data, examples = sent.data, 600.0
            if i == 0 and attack is not None and isinstance(sent.update, Ternary):
                turn += 1
                update, examples = attack(sent.update, turn)
                data = lie(sent, update, client.stamp, client.terms)
            server.receive(i, data, examples)
            outcome.uploads += 1
        typical = server.typical_norm
        if typical:
            outcome.ratios += [upload.norm / typical for upload in server.uploads()]
        broadcast = server.finish_round()
        outcome.capped += len(broadcast.capped.keys() - ({0} if attack else set()))
    outcome.accuracy = problem.accuracy(server.weights)
    return outcome


def print_attacks(
    problem: Problem,
    split: Callable[..., list[NDArray[np.int64]]],
    rounds: int,
    cap: NormCap,
    seed: int,
) -> None:
    """Print the accuracy of each attack, without and with the cap."""
    print("| clients | data | attack | no cap | default cap | honest uploads capped |")
    print("|---|---|---|---:|---:|---:|")
    for clients, classes in ((10, 10), (100, 10), (10, 1), (100, 1)):
        data = "iid" if classes == 10 else "1 class per client"
        indices = split(clients, classes, seed)
        plain = stc()
        name = f"1 of {clients}"
        for row, absent in (("none", False), ("none, client absent", True)):
            results = [
                run(problem, indices, plain, rounds, absent=absent, cap=c, seed=seed)
                for c in (None, cap)
            ]
            _print_row(name, data, row, results)
        for row, attack in ATTACKS.items():
            method = stc(weighted=True) if row.startswith("weight") else plain
            results = [
                run(problem, indices, method, rounds, attack=attack, cap=c, seed=seed)
                for c in (None, cap)
            ]
            _print_row(name, data, row, results)


def _print_row(name: str, data: str, row: str, results: list[Outcome]) -> None:
    without, capped = results
    share = capped.capped / capped.uploads
    print(
        f"| {name} | {data} | {row} | {without.accuracy:.1%} | {capped.accuracy:.1%} |"
        f" {capped.capped} of {capped.uploads} ({share:.2%}) |",
        flush=True,
    )


def print_ratios(
    problem: Problem,
    split: Callable[..., list[NDArray[np.int64]]],
    rounds: int,
    names: list[str],
    seed: int,
) -> None:
    """Print how far honest uploads of each method are above the typical norm of their round."""
    print("| method | clients | data | 99 % | 99.9 % | largest | above 4 |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for name in names:
        for clients, classes in ((10, 10), (100, 10), (10, 1), (100, 1)):
            indices = split(clients, classes, seed)
            data = "iid" if classes == 10 else "1 class"
            outcome = run(problem, indices, METHODS[name](), rounds, seed=seed)
            ratios = np.array(outcome.ratios or [math.nan])
            high, higher = np.quantile(ratios, [0.99, 0.999])
            print(
                f"| {name} | {clients} | {data} | {high:.2f} | {higher:.2f} | {ratios.max():.2f} |"
                f" {(ratios > 4).mean():.2%} |",
                flush=True,
            )


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="Directory of the datasets.")
    parser.add_argument("--rounds", type=int, default=1000, help="Number of rounds.")
    parser.add_argument("--factor", type=float, default=NormCap().factor, help="Factor of the cap.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    parser.add_argument("--ratios", nargs="*", metavar="METHOD", help="Print norms of methods.")
    options = parser.parse_args()
    problem, split = load_mnist(options.data_dir)
    if options.ratios is not None:
        names = options.ratios or sorted(METHODS)
        print_ratios(problem, split, options.rounds, names, options.seed)
    else:
        print_attacks(problem, split, options.rounds, NormCap(options.factor), options.seed)


if __name__ == "__main__":
    main()
