"""Federated learning in a thousandth of the bandwidth."""

from typing import TYPE_CHECKING

from fedtern.core.errors import MissingExtraError
from fedtern.core.extras import require
from fedtern.core.lazy import import_on_first_use
from fedtern.core.version import __version__ as __version__

if TYPE_CHECKING:
    from fedtern.core.arrays import compress, decompress
    from fedtern.core.errors import (
        BudgetExceeded,
        DamagedStoreError,
        DataError,
        DecodeError,
        DuplicateUpload,
        FedternError,
        LateUpload,
        LocalProtocolError,
        MisdeliveredMessage,
        MissedRounds,
        MissingDataError,
        NonFiniteError,
        RemoteProtocolError,
        StoreError,
        UploadDenied,
    )
    from fedtern.core.layout import Carried, Layout
    from fedtern.core.methods import (
        METHODS,
        Link,
        Method,
        fedavg,
        register_method,
        sgd,
        signsgd,
        stc,
        stc_plus,
        topk,
    )
    from fedtern.core.protocol import Broadcast, Client, NormCap, Server
    from fedtern.core.snapshot import Snapshot
    from fedtern.core.template import Template
    from fedtern.data.environment import Environment
    from fedtern.privacy import CentralPrivacy, LocalPrivacy, PrivacySettings
    from fedtern.runs.callbacks import Callback
    from fedtern.store import DurableClient, DurableServer, Store
    from fedtern.training.objective import Metric
    from fedtern.transports.local.callbacks import EarlyStopping, ModelCheckpoint
    from fedtern.transports.local.simulation import simulate
    from fedtern.tuning.search import tune

# A process that only needs the codec imports neither the protocol nor the datasets.
_MODULES = {
    "METHODS": "fedtern.core.methods",
    "Broadcast": "fedtern.core.protocol",
    "BudgetExceeded": "fedtern.core.errors",
    "Callback": "fedtern.runs.callbacks",
    "Carried": "fedtern.core.layout",
    "CentralPrivacy": "fedtern.privacy",
    "Client": "fedtern.core.protocol",
    "DataError": "fedtern.core.errors",
    "DamagedStoreError": "fedtern.core.errors",
    "DecodeError": "fedtern.core.errors",
    "DuplicateUpload": "fedtern.core.errors",
    "DurableClient": "fedtern.store",
    "DurableServer": "fedtern.store",
    "EarlyStopping": "fedtern.transports.local.callbacks",
    "Environment": "fedtern.data.environment",
    "FedternError": "fedtern.core.errors",
    "LateUpload": "fedtern.core.errors",
    "Layout": "fedtern.core.layout",
    "Link": "fedtern.core.methods",
    "LocalPrivacy": "fedtern.privacy",
    "LocalProtocolError": "fedtern.core.errors",
    "Method": "fedtern.core.methods",
    "Metric": "fedtern.training.objective",
    "MisdeliveredMessage": "fedtern.core.errors",
    "MissedRounds": "fedtern.core.errors",
    "MissingDataError": "fedtern.core.errors",
    "ModelCheckpoint": "fedtern.transports.local.callbacks",
    "NonFiniteError": "fedtern.core.errors",
    "NormCap": "fedtern.core.protocol",
    "PrivacySettings": "fedtern.privacy",
    "RemoteProtocolError": "fedtern.core.errors",
    "Server": "fedtern.core.protocol",
    "Snapshot": "fedtern.core.snapshot",
    "Store": "fedtern.store",
    "StoreError": "fedtern.core.errors",
    "Template": "fedtern.core.template",
    "UploadDenied": "fedtern.core.errors",
    "compress": "fedtern.core.arrays",
    "decompress": "fedtern.core.arrays",
    "fedavg": "fedtern.core.methods",
    "register_method": "fedtern.core.methods",
    "sgd": "fedtern.core.methods",
    "signsgd": "fedtern.core.methods",
    "simulate": "fedtern.transports.local.simulation",
    "stc": "fedtern.core.methods",
    "stc_plus": "fedtern.core.methods",
    "topk": "fedtern.core.methods",
    "tune": "fedtern.tuning.search",
}
_NEED_TORCH = ("EarlyStopping", "Metric", "ModelCheckpoint", "simulate", "tune")
_import = import_on_first_use(__name__, _MODULES)


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name in _NEED_TORCH:
        try:
            require("torch", "torch", f"fedtern.{name}")
        except MissingExtraError as error:
            return _unavailable(name, str(error))
    return _import(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _unavailable(name: str, message: str) -> object:
    """Return a function that raises when it is called.

    Without torch, ``from fedtern import *`` and ``hasattr`` should still work.
    """

    def unavailable(*_arguments: object, **_options: object) -> None:
        raise MissingExtraError(message)

    unavailable.__name__ = unavailable.__qualname__ = name
    return unavailable


__all__ = [
    "METHODS",
    "Broadcast",
    "BudgetExceeded",
    "Callback",
    "Carried",
    "CentralPrivacy",
    "Client",
    "DamagedStoreError",
    "DataError",
    "DecodeError",
    "DuplicateUpload",
    "DurableClient",
    "DurableServer",
    "EarlyStopping",
    "Environment",
    "FedternError",
    "LateUpload",
    "Layout",
    "Link",
    "LocalPrivacy",
    "LocalProtocolError",
    "Method",
    "Metric",
    "MisdeliveredMessage",
    "MissedRounds",
    "MissingDataError",
    "MissingExtraError",
    "ModelCheckpoint",
    "NonFiniteError",
    "NormCap",
    "PrivacySettings",
    "RemoteProtocolError",
    "Server",
    "Snapshot",
    "Store",
    "StoreError",
    "Template",
    "UploadDenied",
    "compress",
    "decompress",
    "fedavg",
    "register_method",
    "sgd",
    "signsgd",
    "simulate",
    "stc",
    "stc_plus",
    "topk",
    "tune",
]
