"""A server that trains all nodes in each round and evaluates after the last."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedtern import stc
from fedtern.transports.flower import Compressed

app = ServerApp()


class EvaluateLast(FedAvg):
    """Federated averaging with one evaluation, after the last round."""

    def __init__(self, rounds, nodes):
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=nodes)
        self.rounds = rounds

    def configure_evaluate(self, server_round, arrays, config, grid):
        if server_round < self.rounds:
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)


def initial():
    shapes = {"weight": (40, 50), "bias": (50,)}
    return ArrayRecord({name: Array(np.zeros(s, np.float32)) for name, s in shapes.items()})


@app.main()
def main(grid, context):
    config = context.run_config
    strategy = EvaluateLast(int(config["rounds"]), int(config["nodes"]))
    strategy = Compressed(strategy, stc(p_up=0.02, p_down=0.02), store=config["store"] or None)
    strategy.start(grid, initial(), num_rounds=int(config["rounds"]), timeout=300)
