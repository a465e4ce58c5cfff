"""The exceptions of this package."""

from __future__ import annotations


class FedternError(Exception):
    """Base class of the exceptions of this package."""


class DecodeError(FedternError, ValueError):
    """The bytes are not a message of the declared format."""


class NonFiniteError(FedternError, ValueError):
    """A value to be sent is NaN, infinite or beyond 2**100."""


class LocalProtocolError(FedternError):
    """A method of a server or client was called out of order."""


class BudgetExceeded(LocalProtocolError):
    """An upload or a round would exceed the privacy budget."""


class RemoteProtocolError(FedternError):
    """The peer sent a message that the protocol forbids."""


class DuplicateUpload(RemoteProtocolError):
    """This client's upload of this round has already been accepted."""


class UploadDenied(RemoteProtocolError):
    """The operator's ``on_upload`` function refuses an upload, for example of a banned client."""


class LateUpload(RemoteProtocolError):
    """The upload is for a round that is over; the client will add it to its residual."""


class MissedRounds(RemoteProtocolError):
    """A message starts from a later round than the client's, which has to catch up first.

    Attributes:
        leads_to: the round that the message leads to.

    """

    def __init__(self, message: str, leads_to: int) -> None:
        super().__init__(message)
        self.leads_to = leads_to


class MisdeliveredMessage(RemoteProtocolError):
    """A message is addressed to another client."""


class StoreError(FedternError, OSError):
    """The directory of a store cannot be read or written."""


class DamagedStoreError(StoreError):
    """Recorded data of a store is missing or unreadable; the message says what is lost."""


class RunError(StoreError, ValueError):
    """A directory is not a run directory, or one of its files is damaged."""


class LockedError(StoreError):
    """The directory is locked by another process."""


class DataError(FedternError, ValueError):
    """The file of a dataset does not have the expected format."""


class MissingDataError(FedternError):
    """The file of a dataset was not found and cannot be downloaded."""


class MissingExtraError(FedternError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""


class KernelsError(FedternError, ImportError):
    """The kernels that the variable FEDTERN_KERNELS names do not exist or are not installed."""


def format_error(error: Exception) -> str:
    """Format an error as one line; unexpected errors include where they were raised.

    >>> format_error(ValueError("seeds must be at least 1, got 0"))
    'seeds must be at least 1, got 0'
    >>> format_error(FileNotFoundError(2, "No such file or directory", "here"))
    'here: No such file or directory'
    >>> format_error(KeyError("loss"))
    "KeyError: 'loss'"
    """
    if isinstance(error, FedternError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'the disk'}: {error.strerror or error}"
    if isinstance(error, ValueError):
        return str(error)
    location = ""
    trace = error.__traceback__
    while trace is not None:
        location = f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{location}"


__all__ = [
    "DamagedStoreError",
    "DataError",
    "DecodeError",
    "DuplicateUpload",
    "FedternError",
    "KernelsError",
    "LateUpload",
    "LocalProtocolError",
    "LockedError",
    "MisdeliveredMessage",
    "MissedRounds",
    "MissingDataError",
    "MissingExtraError",
    "NonFiniteError",
    "RemoteProtocolError",
    "RunError",
    "StoreError",
    "UploadDenied",
    "format_error",
]
