"""The numbers that the paper prints, each in one place."""

from __future__ import annotations

from collections.abc import Mapping

VGG, CNN, LSTM = "vgg11s-cifar10", "cnn-kws", "lstm-fashion"

BASE_ACCURACY = {VGG: 0.8546, CNN: 0.9123, LSTM: 0.9021, "logistic-mnist": 0.9231}
"""Table II."""

TARGETS = {VGG: 0.84, CNN: 0.90, LSTM: 0.89}
"""Table IV: the accuracy to reach."""

TRAFFIC: Mapping[str, Mapping[str, tuple[float, float] | None]] = {
    "sgd": {VGG: (36696, 36696), CNN: (5191, 5191), LSTM: (2422, 2422)},
    "signsgd": {VGG: (1579.5, 6937.6), CNN: (925.17, 4063.6), LSTM: (123.31, 541.6)},
    "fedavg:local_steps=25": {
        VGG: (3572.7, 3572.7),
        CNN: (301.67, 301.67),
        LSTM: (174.79, 174.79),
    },
    "fedavg:local_steps=100": {VGG: (1606.3, 1606.3), CNN: (617.3, 617.3), LSTM: (83.94, 83.94)},
    "fedavg:local_steps=400": {VGG: None, CNN: (350.78, 350.78), LSTM: (86.53, 86.53)},
    "stc:p_up=1/25,p_down=1/25": {VGG: (118.43, 1184.3), CNN: (43.57, 435.7), LSTM: (8.84, 88.4)},
    "stc:p_up=1/100,p_down=1/100": {VGG: (202.2, 2022), CNN: (31.0, 310), LSTM: (12.1, 121)},
    "stc:p_up=1/400,p_down=1/400": {VGG: (183.9, 1839), CNN: (14.8, 148), LSTM: (7.9, 79)},
}
"""Table IV: MB up and down until then; None where the target was not reached."""

Spot = tuple[str, str, float, str]  # what varies, where, its value, and the method's name

ACCURACY: Mapping[str, Mapping[Spot, tuple[float, float | None]]] = {
    VGG: {
        ("classes", "10/10", 1, "stc"): (0.795, 0.0),
        ("classes", "10/100", 1, "stc"): (0.532, 0.0),
        ("batch", "iid", 1, "stc"): (0.638, None),
        ("batch", "iid", 1, "fedavg"): (0.392, None),
        ("participation", "iid", 400, "stc"): (0.682, 0.0),
        ("participation", "iid", 400, "fedavg"): (0.423, None),
    }
}
"""What the text says of Figures 6 to 8, and with which momentum if it says that; the figures
themselves have no numbers."""

WORDS: Mapping[str, str] = {
    "classes": (
        "The paper prints, for VGG11* with one class for each client: STC without momentum 79.5 %"
        " (10 of 10 clients) and 53.2 % (10 of 100); FedAvg and signSGD fail to converge."
    ),
    "batch": "The paper prints, for VGG11* on iid data with batches of 1: STC 63.8 %,"
    " FedAvg 39.2 %.",
    "participation": (
        "The paper prints, for VGG11* on iid data with 5 of 400 clients: STC without momentum"
        " 68.2 %, FedAvg 42.3 %."
    ),
    "balance": "The paper prints no numbers here; it sees no significant effect on any method.",
}
"""The same in words, by what varies."""

CONGRUENCE = 0.51
"""Section IV: alpha(1), for the weights of logistic regression on MNIST."""
