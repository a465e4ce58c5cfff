"""Datasets and the ways to split them among clients; needs neither torch nor a network."""

from fedtern.data.catalogue import DATASETS as DATASETS
from fedtern.data.catalogue import load as load
from fedtern.data.dataset import Dataset as Dataset
