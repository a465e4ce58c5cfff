"""Eight clients train a bfloat16 network in JAX: arrays in and out, no PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from fedtern import Client, Server, stc

CLIENTS, ROUNDS = 8, 80
x, y = (jnp.asarray(array) for array in load_digits(return_X_y=True))
rng = np.random.default_rng(0)
shards = np.array_split(rng.permutation(1500), CLIENTS)
model = {"w1": rng.standard_normal((64, 64)) / 100, "b1": np.zeros(64)}
model |= {"w2": rng.standard_normal((64, 10)) / 8, "b2": np.zeros(10)}
model = jax.tree.map(lambda array: jnp.asarray(array, jnp.bfloat16), model)


def logits(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def step(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    grads = jax.grad(lambda p: -jax.nn.log_softmax(logits(p, x))[jnp.arange(len(y)), y].mean())(p)
    return {name: p[name] - grads[name] / 50 for name in p}


train = jax.jit(step)
method = stc(p_up=1 / 20, p_down=1 / 20)
server = Server.from_arrays(model, method)
clients = [Client.from_arrays(i, model, method) for i in range(CLIENTS)]
for _ in range(ROUNDS):
    for client, shard in zip(clients, shards, strict=True):
        trained = train(client.arrays, x[shard], y[shard])
        server.receive(client.client_id, client.send_arrays(trained).data)
    broadcast = server.finish_round().data
    received = [client.receive(broadcast) for client in clients]
accuracy = (logits(server.arrays, x[1500:]).argmax(1) == y[1500:]).mean()
print(f"accuracy {accuracy:.3f} after {ROUNDS} rounds; weights are {server.arrays['w1'].dtype}")
