"""Numbers that the paper prints, each in one place."""

from __future__ import annotations

from collections.abc import Mapping

VGG = "vgg11s-cifar10"
CNN = "cnn-kws"
LSTM = "lstm-fashion"
LOGISTIC = "logistic-mnist"

BASE_ACCURACY = {VGG: 0.8546, CNN: 0.9123, LSTM: 0.9021, LOGISTIC: 0.9231}
"""Table II: accuracy of uncompressed training."""

PAPER_TASKS = tuple(BASE_ACCURACY)
"""The paper's four tasks, in the order of Figures 13 to 16."""

COMPRESSION_VERDICTS: Mapping[str, tuple[bool, bool, bool]] = {
    "terngrad": (False, False, False),
    "qsgd": (False, False, False),
    "atomo": (False, False, False),
    "signsgd": (True, False, False),
    "gradient_dropping": (False, True, True),
    "dgc": (False, True, True),
    "variance": (False, True, True),
    "strom": (False, True, True),
    "fedavg": (True, True, False),
    "stc": (True, True, True),
}
"""Table I, by method: compresses downloads, compresses strongly, is robust to non-iid data."""

TARGETS = {VGG: 0.84, CNN: 0.90, LSTM: 0.89}
"""Table IV: the target accuracy."""

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
"""Table IV: MB up and down until the target; None where it was not reached."""

SweepPoint = tuple[str, str, float, str]  # sweep, place, value, name of the method

ACCURACY: Mapping[str, Mapping[SweepPoint, tuple[float, float | None]]] = {
    VGG: {
        ("classes", "10/10", 1, "stc"): (0.795, 0.0),
        ("classes", "10/100", 1, "stc"): (0.532, 0.0),
        ("batch", "iid", 1, "stc"): (0.638, None),
        ("batch", "iid", 1, "fedavg"): (0.392, None),
        ("participation", "iid", 400, "stc"): (0.682, 0.0),
        ("participation", "iid", 400, "fedavg"): (0.423, None),
    }
}
"""Accuracy and momentum that the text on Figures 6 to 8 gives; the figures have no numbers.

The momentum is None where the text does not say which one was used.
"""

SWEEP_NOTES: Mapping[str, str] = {
    "classes": (
        "The paper's numbers for VGG11* with one class per client: STC without momentum 79.5 % (10"
        " of 10 clients) and 53.2 % (10 of 100 clients); FedAvg and signSGD fail to converge."
    ),
    "batch": (
        "The paper's numbers for VGG11* on iid data with a batch size of 1: STC 63.8 %, FedAvg"
        " 39.2 %."
    ),
    "participation": (
        "The paper's numbers for VGG11* on iid data with 5 of 400 clients: STC without momentum"
        " 68.2 %, FedAvg 42.3 %."
    ),
    "balance": "The paper prints no numbers here. It reports no significant effect on any method.",
}
"""The same as sentences, by sweep."""

CONGRUENCE = {LOGISTIC: 0.51}
"""Section IV: alpha(1) on iid data, for the weights of the model."""

DOWNLOAD_COST = 0.03
"""Caption of Figure 4: loss of accuracy due to sparse downloads, at most."""
