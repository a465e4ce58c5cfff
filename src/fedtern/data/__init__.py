"""Datasets, splits among clients and hyperparameters. Importing them does not need torch."""

from fedtern.data.catalogue import DATASETS, load
from fedtern.data.dataset import Dataset
from fedtern.data.hyperparameters import TASK_DEFAULTS, Sgd, TaskDefaults, task_defaults
from fedtern.data.metric_spec import MetricSpec
from fedtern.data.splits import (
    Split,
    by_class,
    by_group,
    dirichlet,
    iid,
    volume_fractions,
    with_public,
)

__all__ = [
    "DATASETS",
    "TASK_DEFAULTS",
    "Dataset",
    "MetricSpec",
    "Sgd",
    "Split",
    "TaskDefaults",
    "by_class",
    "by_group",
    "dirichlet",
    "iid",
    "load",
    "task_defaults",
    "volume_fractions",
    "with_public",
]
