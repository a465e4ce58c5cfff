"""Federations of PyTorch models on one machine."""

from fedtern.transports.local.callbacks import Callback, EarlyStopping
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.launch import train_run
from fedtern.transports.local.simulation import Simulation, simulate
from fedtern.transports.local.trainers import available_cores

__all__ = [
    "Callback",
    "EarlyStopping",
    "Federation",
    "Simulation",
    "available_cores",
    "simulate",
    "train_run",
]
