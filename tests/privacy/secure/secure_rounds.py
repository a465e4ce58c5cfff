"""Secure rounds without a transport, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from fedtern import Layout
from fedtern.core.protocol.terms import Terms
from fedtern.privacy.secure import Context, SecureClient, SecureServer, secure_topk
from fedtern.privacy.secure.states import ClientState

LAYOUT = Layout.flat(400)
LEVELS = 7
PHASES = ("keys", "shares", "masked", "revealed")


def make_context(positions: str = "random", round: int = 5, levels: int = LEVELS) -> Context:
    method = secure_topk(1 / 20, 1 / 20, positions, levels)
    return Context(Terms(LAYOUT, method), b"abc", round)


def sample_levels(client: int, count: int = 20, levels: int = LEVELS) -> np.ndarray:
    return np.random.default_rng([client, 3]).integers(-levels, levels + 1, count)


@dataclass
class Round:
    """A server and its clients, which exchange real messages."""

    size: int = 6
    context: Context = field(default_factory=make_context)
    leaves: dict[int, str] = field(default_factory=dict)  # the phase that a client does not answer
    tamper: Callable[[str, int, bytes], bytes] = lambda phase, client, data: data
    levels: Callable[[int], np.ndarray] = sample_levels
    sent: dict[str, dict[int, bytes]] = field(default_factory=lambda: {p: {} for p in PHASES})
    received: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = SecureServer(self.context, range(10, 10 + self.size), 0.5)
        self.clients = {
            i: SecureClient(i, self.context, data) for i, data in self.server.invitations().items()
        }

    def answer(self, client: SecureClient, data: bytes) -> bytes:
        if client.state is ClientState.INVITED:
            return client.advertise()
        answer = client.receive(data)
        if answer is None:
            answer = client.mask(self.levels(client.client_id), 0)
        return answer

    def run(self, phases: Iterable[str] = PHASES) -> SecureServer:
        outgoing = self.server.invitations()
        for phase in phases:
            self.received[phase] = outgoing
            for i, data in outgoing.items():
                left = self.leaves.get(i)
                if left is not None and PHASES.index(phase) >= PHASES.index(left):
                    continue
                answer = self.tamper(phase, i, self.answer(self.clients[i], data))
                self.sent[phase][i] = answer
                self.server.receive(i, answer)
            outgoing = self.server.advance()
            if not outgoing:
                break
        return self.server


def reseal(data: bytes) -> bytes:
    """Correct the checksum of a message that was changed."""
    import zlib

    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")
