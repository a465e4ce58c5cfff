"""Ten clients train one scikit-learn classifier: NumPy arrays in and out, no PyTorch."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from fedtern import Client, Server, stc

CLIENTS, ROUNDS = 10, 50
x, y = load_digits(return_X_y=True)
shards = np.array_split(np.random.default_rng(0).permutation(1500), CLIENTS)


def new_model() -> SGDClassifier:
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.0002, random_state=0)
    return model.partial_fit(x[:10], y[:10], classes=range(10))


def arrays_of(model: SGDClassifier) -> dict[str, np.ndarray]:
    return {"coef": model.coef_, "intercept": model.intercept_}  # float64


method = stc(p_up=1 / 20, p_down=1 / 20)
models = [new_model() for _ in range(CLIENTS)]
clients = [Client.from_arrays(i, arrays_of(model), method) for i, model in enumerate(models)]
server = Server.from_arrays(arrays_of(models[0]), method)
sent = 0
for _ in range(ROUNDS):
    for client, model, shard in zip(clients, models, shards, strict=True):
        model.coef_, model.intercept_ = client.arrays.values()
        upload = client.send_arrays(arrays_of(model.partial_fit(x[shard], y[shard]))).data
        sent += len(server.receive(client.client_id, upload).data)
    broadcast = server.finish_round().data
    for client in clients:
        client.receive(broadcast)
model.coef_, model.intercept_ = server.arrays.values()
plain = 8 * server.weights.size * CLIENTS * ROUNDS
print(f"accuracy {model.score(x[1500:], y[1500:]):.3f} after {ROUNDS} rounds")
print(f"uploads {sent:,} bytes, {plain / sent:.0f} times less than float64 arrays")
