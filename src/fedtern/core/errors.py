"""Every error this package raises on purpose, in one tree."""

from __future__ import annotations


class FedternError(Exception):
    """Base class of every error this package raises on purpose."""


class DecodeError(FedternError, ValueError):
    """The bytes are not a message of the declared format."""


class NonFiniteError(FedternError, ValueError):
    """A value to be sent is NaN, infinite or beyond 2**100."""


class LocalProtocolError(FedternError):
    """Our own side called the core out of order."""


class RemoteProtocolError(FedternError):
    """The peer sent something the protocol forbids."""


class DuplicateUpload(RemoteProtocolError):
    """This client's upload of this round has already been accepted."""


class LateUpload(RemoteProtocolError):
    """The upload starts from a round that is over; the client will take it back by itself."""


class MissedRounds(RemoteProtocolError):
    """A message starts from a later round than the client's: catch up first.

    ``leads_to`` is the round that the message leads to.
    """

    def __init__(self, message: str, leads_to: int) -> None:
        super().__init__(message)
        self.leads_to = leads_to


class StoreError(FedternError, OSError):
    """The directory that keeps a state durable cannot be read or written."""


class RunError(StoreError, ValueError):
    """A directory is not a run directory, or one of its files is damaged."""


class LockedError(StoreError):
    """The directory is locked by another process."""


class DataError(FedternError, ValueError):
    """A dataset's file is not what its format says."""


class MissingDataError(FedternError):
    """A dataset's file is not where it was looked for, and cannot be fetched."""


class MissingExtraError(FedternError, ImportError):
    """An optional dependency is not installed; the message holds the line that installs it."""


def format_error(error: Exception) -> str:
    """What to tell a person about an error; one that nobody foresaw says where it was raised.

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
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"


__all__ = [
    "DataError",
    "DecodeError",
    "DuplicateUpload",
    "FedternError",
    "LateUpload",
    "LocalProtocolError",
    "LockedError",
    "MissedRounds",
    "MissingDataError",
    "MissingExtraError",
    "NonFiniteError",
    "RemoteProtocolError",
    "RunError",
    "StoreError",
    "format_error",
]
