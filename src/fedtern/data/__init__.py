"""Datasets, and functions that split them among clients. Importing them does not need torch."""

from fedtern.data.catalogue import DATASETS as DATASETS
from fedtern.data.catalogue import load as load
from fedtern.data.dataset import Dataset as Dataset
from fedtern.data.splits import Split as Split
from fedtern.data.splits import by_class as by_class
from fedtern.data.splits import by_group as by_group
from fedtern.data.splits import dirichlet as dirichlet
from fedtern.data.splits import iid as iid
from fedtern.data.splits import volume_fractions as volume_fractions
from fedtern.data.splits import with_public as with_public
