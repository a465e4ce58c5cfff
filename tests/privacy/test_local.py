"""The local model: noise before compression, on each client."""

from __future__ import annotations

import numpy as np
import pytest

from checks import LAYOUT, METHODS
from fedtern import METHODS as BY_NAME
from fedtern import Client, DurableClient, Server, Store, fedavg, stc
from fedtern.core.errors import BudgetExceeded
from fedtern.privacy import LocalPrivacy, privacy_loss

pytest.importorskip("dp_accounting")
SIZE = LAYOUT.size
STC = METHODS["stc"]


def make_client(privacy, method=STC) -> Client:
    return Client(0, method, LAYOUT, np.zeros(SIZE), privacy=privacy)


def test_the_noise_on_a_delta_has_the_stated_variance():
    size = 200_000
    noised = LocalPrivacy(clip=0.5, noise_multiplier=3.0).privatize(np.zeros(size), 0, 0)
    assert abs(noised.std() / 1.5 - 1) < 5 / (2 * size) ** 0.5


def test_a_delta_is_clipped_before_the_noise():
    small = LocalPrivacy(clip=0.5, noise_multiplier=3.0, seed=1)
    noise = small.privatize(np.zeros(SIZE, np.float32), 0, 0)
    delta = np.full(SIZE, 7.0, np.float32)
    moved = small.privatize(delta, 0, 0).astype(np.float64) - noise
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-5)


def test_upload_and_residual_together_are_the_noised_delta():
    privacy = LocalPrivacy(clip=0.5, noise_multiplier=3.0, seed=1)
    client = make_client(privacy)
    delta = np.linspace(-1, 1, SIZE, dtype=np.float32)
    sent = client.send_delta(delta)
    noised = privacy.privatize(delta, 0, 0)
    np.testing.assert_allclose(sent.update.to_dense() + client.residual, noised, rtol=1e-5)


def test_the_noise_of_clients_and_rounds_differs():
    privacy = LocalPrivacy(clip=0.5, noise_multiplier=3.0, seed=1)
    drawn = [privacy.privatize(np.zeros(SIZE), *key)[0] for key in ((0, 0), (0, 1), (1, 0))]
    assert len(set(drawn)) == 3


def test_a_client_refuses_uploads_beyond_its_budget():
    privacy = LocalPrivacy(1.0, 4.0, budget=privacy_loss(2.0, 2, 1e-5))
    client = make_client(privacy)
    server = Server(np.zeros(SIZE), STC, LAYOUT)
    for _ in range(2):
        server.receive(0, client.send_delta(np.ones(SIZE)).data)
        client.receive(server.finish_round().data)
    with pytest.raises(BudgetExceeded, match="leave the federation"):
        client.send_delta(np.ones(SIZE))
    assert client.pending is None
    assert client.privacy_spent.epsilon == privacy.budget


def test_a_durable_client_keeps_its_account(tmp_path):
    privacy = LocalPrivacy(1.0, 4.0)
    with Store(tmp_path) as store:
        DurableClient(make_client(privacy), store).send_delta(np.ones(SIZE))
    with Store(tmp_path) as store:
        client = DurableClient(make_client(privacy), store)
        assert client.pending is not None
        assert client.privacy_spent.participations == 1


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (fedavg(weighted=True), "does not support weighted=True"),
        (fedavg(weighted=True, aggregate="clip:1"), "does not support weighted=True"),
        (BY_NAME["variance"](), "variance of a client's examples"),
    ],
    ids=["weighted", "weighted-clip", "variance"],
)
def test_methods_that_send_other_statistics_are_refused(method, message):
    with pytest.raises(ValueError, match=message):
        make_client(LocalPrivacy(1.0, 4.0), method)


def test_a_client_without_privacy_has_no_privacy_loss():
    assert make_client(None, stc()).privacy_spent is None
