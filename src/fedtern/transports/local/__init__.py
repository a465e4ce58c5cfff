"""Federations of PyTorch models on one machine."""

from fedtern.runs.callbacks import Callback
from fedtern.transports.local.callbacks import EarlyStopping, ModelCheckpoint
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.launch import train_run
from fedtern.transports.local.simulation import Simulation, simulate
from fedtern.transports.local.trainers import available_cores

__all__ = [
    "Callback",
    "EarlyStopping",
    "Federation",
    "ModelCheckpoint",
    "Simulation",
    "available_cores",
    "simulate",
    "train_run",
]
