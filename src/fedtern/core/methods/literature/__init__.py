"""Where the methods come from: citations, and which function is which equation."""

from fedtern.core.methods.literature.dense import EF_SIGNSGD, FEDAVG, QSGD, SGD, SIGNSGD, TERNGRAD
from fedtern.core.methods.literature.lowrank import ATOMO, KONECNY, POWERSGD
from fedtern.core.methods.literature.sparse import DGC, GRADIENT_DROPPING, SBC, STC, STROM, VARIANCE

__all__ = [
    "ATOMO",
    "DGC",
    "EF_SIGNSGD",
    "FEDAVG",
    "GRADIENT_DROPPING",
    "KONECNY",
    "POWERSGD",
    "QSGD",
    "SBC",
    "SGD",
    "SIGNSGD",
    "STC",
    "STROM",
    "TERNGRAD",
    "VARIANCE",
]
