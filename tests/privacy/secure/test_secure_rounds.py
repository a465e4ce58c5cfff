"""Sums, dropouts, refusals and failures of secure rounds."""

from __future__ import annotations

import hashlib
import math
import secrets

import numpy as np
import pytest
from secure_rounds import LEVELS, PHASES, Round, make_context, reseal, sample_levels

from fedtern import LocalProtocolError, RemoteProtocolError
from fedtern.privacy.secure import (
    ClientState,
    Context,
    Identity,
    SecureClient,
    SecureServer,
    ServerState,
    public_signing_key,
)
from fedtern.privacy.secure import messages as wire
from fedtern.privacy.secure.crypto import KeyPair
from fedtern.privacy.secure.states import CLIENT_TRANSITIONS, SERVER_TRANSITIONS, ServerEvent


def expected_sum(clients) -> list[int]:
    return sum(sample_levels(client) for client in clients).tolist()


@pytest.mark.parametrize("size", [3, 6, 10])
def test_the_server_learns_the_exact_sum(size):
    server = Round(size).run()
    assert server.state is ServerState.FINISHED
    assert server.result.counted == set(range(10, 10 + size))
    assert server.result.levels.tolist() == expected_sum(server.result.counted)


@pytest.mark.parametrize(("size", "phase"), [*((10, phase) for phase in PHASES), (60, "masked")])
def test_a_fifth_of_the_clients_may_leave_in_any_phase(phase, size):
    left = np.random.default_rng(size).choice(np.arange(10, 10 + size), size // 5, replace=False)
    server = Round(size, leaves=dict.fromkeys(left.tolist(), phase)).run()
    assert server.state is ServerState.FINISHED
    gone = set() if phase == "revealed" else set(left.tolist())
    assert server.result.counted == set(range(10, 10 + size)) - gone
    assert server.result.levels.tolist() == expected_sum(server.result.counted)


def test_clients_may_leave_in_different_phases():
    server = Round(15, leaves={10: "keys", 12: "shares", 17: "masked", 20: "revealed"}).run()
    assert server.result.levels.tolist() == expected_sum(set(range(10, 25)) - {10, 12, 17})


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        ("keys", "clients sent keys"),
        ("shares", "enough neighbours"),
        ("masked", "have uploaded"),
        ("revealed", "shares of client"),
    ],
)
def test_a_round_with_too_many_dropouts_is_abandoned(phase, reason):
    server = Round(6, leaves=dict.fromkeys(range(12, 16), phase)).run()
    assert server.state is ServerState.ABANDONED
    assert server.result is None
    assert reason in server.reason


@pytest.mark.parametrize("leaves", [{}, {15: "masked"}])
def test_a_wrong_share_abandons_the_round(leaves):
    def tamper(phase, client, data):
        if phase != "revealed" or client != 11:
            return data
        return reseal(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])

    server = Round(6, leaves=leaves, tamper=tamper).run()
    assert server.state is ServerState.ABANDONED
    assert server.result is None
    assert server.reason == "a share of client 15 is wrong"


def test_a_missing_share_abandons_the_round():
    server = Round(4, leaves={11: "revealed"}).run()
    assert server.state is ServerState.ABANDONED
    assert "shares of client" in server.reason


def test_a_sum_out_of_range_abandons_the_round():
    context = make_context()

    def tamper(phase, client, data):
        if (phase, client) != ("masked", 12):
            return data
        _, reader = context.open(data, wire.MASKED)
        values = wire.read_masked(reader, 21, 6)
        values[0] = (values[0] + 1) % 64
        return wire.encode_masked(context, values, 6)

    largest = np.full(20, LEVELS)
    server = Round(3, context, tamper=tamper, levels=lambda client: largest).run()
    assert server.state is ServerState.ABANDONED
    assert server.reason == "the sum of 3 clients is out of range"


def test_a_sealed_share_that_was_changed_is_refused_by_its_recipient():
    def tamper(phase, client, data):
        return reseal(data[:30] + bytes([data[30] ^ 1]) + data[31:]) if phase == "shares" else data

    with pytest.raises(RemoteProtocolError, match="share was damaged"):
        Round(4, tamper=tamper).run()


def uploaded_client(round: Round | None = None) -> tuple[Round, SecureClient]:
    round = round or Round(6)
    round.run(PHASES[:3])
    return round, round.clients[10]


def test_a_client_never_reveals_both_secrets_of_a_neighbour():
    round, client = uploaded_client()
    one = wire.encode_survivors(round.context, [True] * 5)
    first = client.receive(one)
    assert client.receive(one) == first
    for other in ([False] + [True] * 4, [True] * 4 + [False]):
        with pytest.raises(RemoteProtocolError, match="expected no message"):
            client.receive(wire.encode_survivors(round.context, other))
    assert client.state is ClientState.REVEALED


def test_a_client_reveals_nothing_if_too_few_neighbours_are_said_to_survive():
    round, client = uploaded_client()
    with pytest.raises(RemoteProtocolError, match="only 3 neighbours have uploaded"):
        client.receive(wire.encode_survivors(round.context, [True] * 3 + [False] * 2))
    assert client.state is ClientState.UPLOADED


def test_a_client_masks_nothing_for_too_few_neighbours():
    round = Round(6)
    round.run(PHASES[:2])
    client = round.clients[10]
    sealed = [bytes(wire.SEALED_BYTES), *[None] * 4]
    with pytest.raises(RemoteProtocolError):
        client.receive(wire.encode_delivery(round.context, sealed))
    with pytest.raises(RemoteProtocolError, match="only 0 neighbours take part"):
        client.receive(wire.encode_delivery(round.context, [None] * 5))
    assert client.state is ClientState.SHARED


def test_an_upload_is_masked_only_once():
    _, client = uploaded_client()
    with pytest.raises(LocalProtocolError, match="UPLOADED"):
        client.mask(sample_levels(10), 0)


def test_messages_of_another_round_are_refused():
    round = Round(6)
    other = Round(6, make_context(round=6))
    with pytest.raises(RemoteProtocolError, match="message is for round 6"):
        round.server.receive(10, other.clients[10].advertise())


def test_clients_outside_of_the_cohort_are_refused():
    round = Round(6)
    with pytest.raises(RemoteProtocolError, match="client 99 is not expected"):
        round.server.receive(99, round.clients[10].advertise())


def test_the_same_message_again_changes_nothing():
    round = Round(4)
    data = round.clients[10].advertise()
    round.server.receive(10, data)
    round.server.receive(10, data)
    assert round.server.awaited == {11, 12, 13}
    second = SecureClient(10, round.context, round.server.invitations()[10]).advertise()
    with pytest.raises(RemoteProtocolError, match="not expected"):
        round.server.receive(10, second)


def test_a_cohort_of_two_is_refused():
    with pytest.raises(ValueError, match="needs from 3"):
        SecureServer(make_context(), [1, 2], 0.5)


def test_the_leader_changes_with_the_round():
    leaders = [
        SecureServer(make_context("leader", round), range(5), 0.5).leader for round in range(5)
    ]
    assert leaders == [0, 1, 2, 3, 4]


def test_positions_of_a_client_that_does_not_lead_are_refused():
    round = Round(6, make_context("leader", 0))
    keys = wire.PublicKeys(bytes(32), bytes(32))
    data = wire.encode_keys(round.context, keys, bytes(16), np.array([1, 2]))
    with pytest.raises(RemoteProtocolError, match="does not lead"):
        round.server.receive(11, data)
    with pytest.raises(ValueError, match="not the leader"):
        round.clients[11].advertise(np.array([1, 2]))


def test_without_the_leader_positions_are_pseudorandom():
    context = make_context("leader", 0)
    server = Round(6, context, leaves={10: "keys"}).run()
    assert server.state is ServerState.FINISHED
    assert server.result.positions.size == 20


def test_all_values_of_the_leaders_positions_arrive():
    context = make_context("leader", 0)
    round = Round(4, context)
    chosen = np.arange(3, 40, 2)[:12]
    round.levels = lambda client: sample_levels(client, 12)
    original = round.answer

    def answer(client, data):
        if client.is_leader and client.state is ClientState.INVITED:
            return client.advertise(chosen)
        return original(client, data)

    round.answer = answer
    server = round.run()
    assert server.result.positions.tolist() == chosen.tolist()
    mean = server.result.mean(400)
    assert np.flatnonzero(mean).tolist() == chosen[server.result.levels != 0].tolist()


def sign_keys(clients) -> tuple[dict[int, bytes], dict[int, bytes]]:
    private = {i: secrets.token_bytes(32) for i in clients}
    return private, {i: public_signing_key(key) for i, key in private.items()}


def signed_round(private, known) -> Round:
    round = Round(4)
    invitations = round.server.invitations()
    round.clients = {
        i: SecureClient(i, round.context, invitations[i], identity=Identity(private[i], known))
        for i in range(10, 14)
    }
    return round


def test_signed_keys_are_accepted():
    server = signed_round(*sign_keys(range(10, 14))).run()
    assert server.result.levels.tolist() == expected_sum(range(10, 14))


def test_keys_that_the_server_invented_are_refused():
    private, known = sign_keys(range(10, 14))
    invented, _ = sign_keys(range(10, 14))
    with pytest.raises(RemoteProtocolError, match="client 13 have no valid signature"):
        signed_round({**private, 13: invented[13]}, known).run()


def test_a_public_key_of_low_order_is_refused():
    def tamper(phase, client, data):
        return (
            reseal(data[:49] + bytes(32) + data[81:]) if (phase, client) == ("keys", 12) else (data)
        )

    with pytest.raises(RemoteProtocolError, match="public key"):
        Round(4, tamper=tamper).run()
    with pytest.raises(RemoteProtocolError, match="public key"):  # a client refuses it, too
        KeyPair.from_private(b"1" * 32).agree(bytes(32))


@pytest.mark.parametrize(("first", "second"), [(12, 12), (11, 12)])
def test_a_public_key_that_is_known_already_is_refused_by_the_server(first, second):
    def tamper(phase, client, data):
        if (phase, client) != ("keys", second):
            return data
        mask_key = round.sent["keys"].get(first, data)[17:49]
        return reseal(data[:49] + mask_key + data[81:])

    round = Round(4, tamper=tamper)
    with pytest.raises(RemoteProtocolError, match="client 12 sends a public key that is known"):
        round.run()


def chi_square(values: np.ndarray, bins: int) -> float:
    """Distance of values from the uniform distribution, in standard deviations."""
    counts = np.bincount(values, minlength=bins)
    expected = values.size / bins
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (bins - 1)) / math.sqrt(2 * (bins - 1))


def masked_values(rounds: int, levels) -> np.ndarray:
    """All masked values of client 10 in a number of rounds."""
    found = []
    for number in range(rounds):
        round = Round(4, make_context(round=number), levels=levels)
        round.run(PHASES[:3])
        _, reader = round.context.open(round.sent["masked"][10], wire.MASKED)
        found.append(wire.read_masked(reader, 21, (2 * LEVELS * 4).bit_length()))
    return np.concatenate(found).astype(np.int64)


def test_masked_uploads_are_indistinguishable_from_uniform_numbers():
    """A chi-square test: the same value in every upload gives uniform residues."""
    values = masked_values(40, lambda client: np.full(20, LEVELS))
    assert values.size == 40 * 21
    assert abs(chi_square(values, 64)) < 5
    plain = np.full(values.size, LEVELS)
    assert chi_square(plain, 64) > 100  # the test does find what is not uniform


def test_masked_uploads_of_the_same_levels_share_nothing():
    one, other = (masked_values(20, lambda client: np.full(20, LEVELS)) for _ in range(2))
    assert abs(chi_square((one - other) % 64, 64)) < 5


def test_every_transition_leads_to_a_known_state():
    assert set(SERVER_TRANSITIONS) == set(ServerState)
    assert set(CLIENT_TRANSITIONS) == set(ClientState)
    events = {event for events in SERVER_TRANSITIONS.values() for event in events}
    assert events == set(ServerEvent)


def test_a_finished_round_cannot_advance():
    server = Round(3).run()
    with pytest.raises(LocalProtocolError, match="finished"):
        server.advance()


def test_carried_tensors_are_refused():
    from fedtern.core.protocol.terms import Terms
    from fedtern.core.template import Template

    template = Template.of({"w": np.zeros(9, np.float32), "bn.running_mean": np.zeros(3)})
    terms = Terms(template.layout, make_context().terms.method)
    with pytest.raises(ValueError, match='carry="local"'):
        SecureServer(Context(terms, b"abc", 0), range(4), 0.5)


def entropy_of(client: int):
    """Random bytes that are always the same, for messages that can be compared."""
    count = 0

    def entropy(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{client} {count}".encode()).digest(size)

    return entropy


def test_messages_are_those_of_the_documented_format():
    """The bytes of a round never change, unless the version of the format does."""
    round = Round(6, leaves={13: "masked"})
    invitations = round.server.invitations()
    round.clients = {
        i: SecureClient(i, round.context, data, entropy=entropy_of(i))
        for i, data in invitations.items()
    }
    assert round.run().state is ServerState.FINISHED
    digest = hashlib.sha256()
    for phase in PHASES:
        for messages in (round.received[phase], round.sent[phase]):
            for client in sorted(messages):
                digest.update(messages[client])
    assert digest.hexdigest()[:16] == "27d3dcfc972846fb"
