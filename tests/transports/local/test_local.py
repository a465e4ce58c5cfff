from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import fedtern  # noqa: E402
from fedtern import METHODS as BY_NAME  # noqa: E402
from fedtern import Layout, Snapshot, fedavg, sgd, signsgd, stc, topk  # noqa: E402
from fedtern.data import Dataset  # noqa: E402
from fedtern.data.environment import Environment  # noqa: E402
from fedtern.data.hyperparameters import Sgd  # noqa: E402
from fedtern.runs import Evaluation  # noqa: E402
from fedtern.training import get_task  # noqa: E402
from fedtern.training.augment import CropFlip, pad  # noqa: E402
from fedtern.training.flat import FlatModel  # noqa: E402
from fedtern.transports.local.client_states import States  # noqa: E402
from fedtern.transports.local.federation import Federation, evaluations  # noqa: E402
from fedtern.transports.local.simulation import federate, simulate  # noqa: E402

TASK = get_task("mlp-digits")
SOME = Environment(clients=12, participation=0.25, classes_per_client=2)
METHODS = {
    "sgd": sgd(),
    "fedavg": fedavg(5, weighted=True),
    "signsgd": signsgd(0.002),
    "topk": topk(0.01),
    "stc": stc(0.01, 0.01),
    "stc-delay": stc(0.01, 0.01, local_steps=4, scope="tensor"),
    "sbc": BY_NAME["sbc"](local_steps=2),
    "dgc": BY_NAME["dgc"](0.01, warmup=1),
    "variance": BY_NAME["variance"](),
    "qsgd": BY_NAME["qsgd"](),
    "powersgd": BY_NAME["powersgd"](),
    "structured": BY_NAME["structured"](local_steps=3),
    "structured-rank": BY_NAME["structured"](rank=2, local_steps=2),
    "sketched": BY_NAME["sketched"](local_steps=1),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    pytest.importorskip("sklearn")
    return TASK.load()


def make(digits, method, momentum=0.9, environment=SOME, **options) -> Federation:
    return federate(TASK, digits, method, environment, Sgd(0.05, momentum, 1e-4), seed=3, **options)


def untimed(found: Evaluation) -> Evaluation:
    return replace(found, seconds={})


def play(federation: Federation, rounds: int) -> list[Evaluation]:
    for _ in range(rounds):
        federation.step()
    return [untimed(federation.evaluate())]


@every_method
def test_the_same_seed_gives_the_same_bytes(digits, method):
    one, two = make(digits, method), make(digits, method)
    assert play(one, 8) == play(two, 8)
    assert one.server.weights.tobytes() == two.server.weights.tobytes()


@every_method
def test_clients_train_on_what_they_have_decoded(digits, method):
    federation = make(digits, method)
    for _ in range(6):
        federation.step()
        assert federation.witness.weights.tobytes() == federation.server.weights.tobytes()


@every_method
def test_a_restored_federation_goes_on_to_the_same_bytes(digits, method):
    whole, first = make(digits, method), make(digits, method)
    play(whole, 7)
    play(first, 3)
    second = make(digits, method)
    second.restore(Snapshot.from_bytes(first.snapshot().to_bytes()))
    assert play(second, 4) == [untimed(whole.evaluate())]
    assert second.server.weights.tobytes() == whole.server.weights.tobytes()


@every_method
def test_states_that_do_not_fit_are_kept_on_disk_without_a_difference(digits, method):
    roomy, tight = make(digits, method), make(digits, method, memory_bytes=30_000)
    assert play(roomy, 10) == play(tight, 10)
    assert tight._states.nbytes <= 30_000
    assert tight._states.spilled or not roomy._states.nbytes > 30_000
    saved = make(digits, method)
    saved.restore(Snapshot.from_bytes(tight.snapshot().to_bytes()))
    assert play(saved, 2) == play(roomy, 2)


def test_a_snapshot_is_a_value(digits):
    federation = make(digits, METHODS["stc"])
    play(federation, 3)
    taken = federation.snapshot()
    before = taken.to_bytes()
    play(federation, 3)
    assert taken.to_bytes() == before


def test_many_spilled_clients_need_few_open_files(digits):
    import resource

    everyone = Environment(clients=300, participation=1.0)
    federation = make(digits, METHODS["stc"], environment=everyone, memory_bytes=50_000)
    play(federation, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        saved = federation.snapshot().to_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    again = make(digits, METHODS["stc"], environment=everyone, memory_bytes=50_000)
    again.restore(Snapshot.from_bytes(saved))
    assert play(again, 1) == play(federation, 1)


def test_dropout_follows_from_the_seed(digits):
    task = replace(TASK, model=lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)))
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)  # what else draws from torch's generator must not matter
        federation = federate(task, digits, stc(0.1, 0.1), SOME, Sgd(0.1), seed=3)
        results.append(play(federation, 4))
    assert results[0] == results[1]


def test_only_clients_that_took_part_have_a_residual(digits):
    federation = make(digits, stc(0.01, 0.01), momentum=0.0)
    assert not list(federation._states.items())
    play(federation, 2)
    cohorts = {i for t in (0, 1) for i in SOME.cohort(3, t)}
    assert [i for i, _ in federation._states.items()] == sorted(cohorts)


def test_flat_sgd_is_torchs_sgd(digits):
    model, (train, _) = TASK.build(0), TASK.examples(digits)
    flat = FlatModel(model)
    reference = TASK.build(0)
    optimizer = torch.optim.SGD(reference.parameters(), 0.1, 0.9, weight_decay=1e-3)
    batches = [train.batch(np.arange(20 * i, 20 * i + 20)) for i in range(12)]
    start = flat.weights
    some = flat.train(batches[:5], Sgd(0.1, 0.9, 1e-3))
    assert np.array_equal(flat.weights, start)
    flat.load(start + some.delta)
    rest = flat.train(batches[5:], Sgd(0.1, 0.9, 1e-3), some.velocity)
    for inputs, labels in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(inputs), labels).backward()
        optimizer.step()
    expected = np.concatenate([p.detach().numpy().reshape(-1) for p in reference.parameters()])
    assert np.allclose(flat.weights + rest.delta, expected, rtol=1e-5, atol=1e-6)


def test_full_participation_without_compression_is_plain_sgd_on_the_union(digits):
    """The uncompressed federation follows large-batch SGD; to float tolerance, not bit for bit."""
    everyone = Environment(clients=4, participation=1.0, batch_size=10, split="iid")
    federation = make(digits, sgd(), momentum=0.0, environment=everyone)
    plain = FlatModel(TASK.build(3))
    from fedtern.training.batches import Batches

    for t in range(5):
        federation.step()
        rows = np.concatenate(
            [
                next(Batches(c, 10, 3, i).take(t, 1))[0]
                for i, c in enumerate(federation.split.clients)
            ]
        )
        batch = TASK.examples(digits)[0].batch(rows)
        plain.load(plain.weights + plain.train([batch], Sgd(0.05, 0.0, 1e-4)).delta)
    assert np.allclose(plain.weights, federation.server.weights, atol=1e-5)


def test_bytes_are_what_was_sent(digits):
    environment = Environment(clients=6, participation=0.5, split="iid")
    federation = make(digits, sgd(), environment=environment)
    size = 4 * federation.server.terms.layout.size
    found = play(federation, 1)[0]
    assert found.down_bytes == 0  # everybody starts with the same model
    assert found.up_bytes == 3 * found.up_bytes_mean
    assert size < found.up_bytes_mean < size + 40
    found = play(federation, 3)[0]
    assert found.up_bytes_paper == 4 * size
    assert found.dense_bytes == 4 * size
    # Each download is one model, however many rounds were missed.
    assert found.down_bytes % (3 * size) < 3 * 8 * 60
    assert found.down_bytes_paper <= 3 * size


def test_signs_that_were_missed_cost_log2_of_2s_plus_1_bits_in_the_paper(digits):
    from fedtern.core.analytic import bits

    method = signsgd()
    assert bits(method.up, Layout.flat(1000)) == 1000
    assert bits(method.down, Layout.flat(1000), rounds=10) == pytest.approx(1000 * np.log2(21))
    assert bits(stc(0.01).up, Layout.flat(100_000)) == pytest.approx(1000 * 9.108, rel=1e-3)
    assert bits(topk(0.01).up, Layout.flat(100_000)) == pytest.approx(1000 * 40.108, rel=1e-3)
    assert bits(topk(0.01).down, Layout.flat(100_000), rounds=3) == 3_200_000


def test_a_plain_module_and_arrays_can_be_simulated():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((600, 8)).astype(np.float32)
    labels = (inputs.sum(axis=1) > 0).astype(np.int64)
    data = Dataset("own", inputs[:500], labels[:500], inputs[500:], labels[500:], num_classes=2)
    model = nn.Sequential(nn.Linear(8, 2))
    before = model[0].weight.detach().clone()
    simulation = fedtern.simulate(
        model,
        data,
        stc(0.2, 0.2),
        environment=Environment(clients=5, participation=0.4, classes_per_client=1),
        iterations=60,
        learning_rate=0.2,
        evaluate_every=25,
    )
    np.testing.assert_array_equal(simulation.weights["0.weight"], before)
    rounds = list(simulation)
    assert [r.iteration for r in rounds] == [25, 50, 60]
    assert rounds[-1].accuracy > 0.85
    assert torch.equal(model[0].weight, before)
    trained = {name: torch.from_numpy(weight) for name, weight in simulation.weights.items()}
    model.load_state_dict(trained)
    right = model(torch.from_numpy(inputs[500:])).argmax(1).numpy() == labels[500:]
    assert right.mean() == pytest.approx(rounds[-1].accuracy)


def test_delay_does_not_split_rounds(digits):
    federation = make(digits, fedavg(7))
    assert [r.iteration for r in evaluations(federation, 30, 10)] == [14, 21, 35]


def test_what_cannot_be_federated_is_refused_in_a_sentence(digits):
    with pytest.raises(ValueError, match=r"has a buffer 1.running_mean: statistics like those of"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(ValueError, match=r"parameter weight is torch.float64; only float32"):
        FlatModel(nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="no parameters to train"):
        FlatModel(nn.Flatten())
    with pytest.raises(ValueError, match="needs a Dataset as data"):
        simulate(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="needs iterations and learning_rate"):
        simulate(nn.Linear(2, 2), digits)
    with pytest.raises(ValueError, match="has a dataset of its own"):
        simulate("mlp-digits", digits)
    untested = replace(
        digits, test_inputs=digits.test_inputs[:0], test_labels=digits.test_labels[:0]
    )
    with pytest.raises(ValueError, match="dataset 'digits' has no test examples: hold some of"):
        simulate(TASK.build(0), untested, iterations=1, learning_rate=0.1)
    with pytest.raises(ValueError, match=r"data of task 'mlp-digits' must be the directory .*sgd"):
        simulate("mlp-digits", sgd())
    with pytest.raises(ValueError, match="transform is for a module and its Dataset, task 'mlp"):
        simulate("mlp-digits", transform=pad(32))
    with pytest.raises(ValueError, match="augment is for a module and its Dataset, task 'mlp"):
        simulate("mlp-digits", augment=CropFlip())
    with pytest.raises(ValueError, match=r"such as fedtern.METHODS\['topk'\]\(\), got 'topk'"):
        simulate("mlp-digits", method="topk")
    with pytest.raises(ValueError, match=r"must be a fedtern.Environment, got {}"):
        simulate("mlp-digits", environment={})
    with pytest.raises(ValueError, match="model must be a module or the name of a task, got None"):
        simulate(None, digits)
    with pytest.raises(ValueError, match="must be at least 1, got 0 and None"):
        simulate("mlp-digits", iterations=0)
    with pytest.raises(ValueError, match="weight_decay must not be negative, got -1"):
        Sgd(0.1, 0.0, -1.0)


def test_impossible_environments_are_refused_in_a_sentence(digits):
    with pytest.raises(ValueError, match=r"participation 0.01 of 20 clients selects no client"):
        Environment(clients=20, participation=0.01)
    for wrong, match in (
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"participation": 0.0}, r"participation must be in \(0, 1\], got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"split": "odd"}, "split must be one of classes, iid, dirichlet, natural, got 'odd'"),
        ({"public": 1.0}, r"public must be in \[0, 1\), got 1"),
    ):
        with pytest.raises(ValueError, match=match):
            Environment(**wrong)
    for wrong, match in (
        ({"classes_per_client": 11}, "between 1 and the number of classes, 10, got 11"),
        ({"clients": 5000}, "would get none of the 1500 examples; use fewer clients"),
        ({"split": "natural"}, "needs the groups of examples"),
        ({"split": "natural", "public": 0.1}, "cannot be combined"),
    ):
        with pytest.raises(ValueError, match=match):
            Environment(**wrong).split_dataset(digits, 0)


def test_defaults_never_do_nothing():
    for split in ("classes", "iid", "dirichlet", "natural"):
        plain = Environment(split=split)
        assert plain.check_options_apply() is plain
    Environment(gamma=0.9, alpha=0.2, classes_per_client=2, public=0.1).check_options_apply()
    Environment(gamma=0.9, alpha=0.2, split="iid").check_options_apply()
    Environment(gamma=0.9, alpha=0.2, concentration=2, split="dirichlet").check_options_apply()


@pytest.mark.parametrize("kind", ["classes", "iid", "dirichlet"])
@pytest.mark.parametrize("public", [0.0, 0.1])
def test_every_split_can_be_trained_on(digits, kind, public):
    environment = replace(SOME, split=kind, public=public)
    assert play(make(digits, stc(0.05, 0.05), environment=environment), 2)[0].round == 2
    first, second = (environment.split_dataset(digits, seed) for seed in (1, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first.clients, second.clients, strict=True))


def test_states_forget_what_is_replaced():
    states = States(limit=100)
    for client in range(5):
        states.put(client, {"residual": np.full(10, client, np.float32)})
    assert (states.nbytes, states.spilled) == (80, 3)
    assert states.get(0)["residual"].tolist() == [0] * 10
    states.put(0, {})
    assert states.get(0) == {}
    assert [client for client, _ in states.items()] == [1, 2, 3, 4]


def test_training_keeps_to_the_subspace_it_is_given():
    def only_ten(step: np.ndarray) -> None:
        step[10:] = 0

    flat = FlatModel(TASK.build(0))
    batches = [(torch.randn(8, 64), torch.arange(8)) for _ in range(3)]
    moved = flat.train(batches, Sgd(0.1, 0.9, 1e-3), restrict=only_ten).delta != 0
    assert moved[:10].any()
    assert not moved[10:].any()


def test_looking_at_each_example_gives_the_same_gradient_and_its_second_moments():
    torch.manual_seed(0)
    batch = torch.randn(6, 64), torch.tensor([0, 1, 2, 3, 4, 0])
    model = FlatModel(TASK.build(0))
    whole = model.train([batch], Sgd(0.1))
    assert whole.moments is None
    single = model.train([batch], Sgd(0.1), observe=True)
    assert np.allclose(whole.delta, single.delta, atol=1e-6)
    each = []
    for i in range(6):
        alone = model.train([(batch[0][i : i + 1], batch[1][i : i + 1])], Sgd(0.1))
        each.append(alone.delta / 6)
    assert np.allclose(single.moments, np.square(each).sum(axis=0), atol=1e-9)


def test_momentum_is_kept_masked_or_left_to_the_feedback_rule(digits):
    everyone = Environment(clients=4, participation=1.0, classes_per_client=2)
    velocity = "training.velocity"
    kept, masked, own = (
        make(digits, method, environment=everyone)
        for method in (stc(0.5, 0.5), BY_NAME["sbc"](0.5, local_steps=1), BY_NAME["dgc"](0.5))
    )
    for federation in (kept, masked, own):
        federation.step()
    assert np.count_nonzero(kept._states.get(0)[velocity] == 0) < 2000
    assert np.count_nonzero(masked._states.get(0)[velocity] == 0) > 400
    assert velocity not in own._states.get(0)
    assert own._states.get(0)["feedback.velocity"].any()
