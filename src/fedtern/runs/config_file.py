"""A run's ``config.json``: the experiment, the command that started it, and its final state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtern.core.errors import RunError, StoreError
from fedtern.store.files import write_atomic


class ConfigFile:
    """Reader and writer of a ``config.json``, which does not have to exist yet.

    Only one process at a time may write: hold the lock of the run directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Return the content; empty if there is no file.

        Raises:
            RunError: The file cannot be read or does not hold a JSON object.

        """
        try:
            return read_json_object(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def replace(self, values: Mapping[str, Any]) -> None:
        """Replace the whole content.

        Raises:
            StoreError: The file cannot be written; the old one is unchanged.

        """
        text = json.dumps(values, indent=2)
        try:
            write_atomic(self.path, [f"{text}\n".encode()])
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from error

    def update(self, values: Mapping[str, Any]) -> None:
        """Set these values and keep the others."""
        self.replace({**self.read(), **values})


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run directory.

    Raises:
        FileNotFoundError: There is no file.
        NotADirectoryError: A parent of ``path`` is a file.
        RunError: The file cannot be read or does not hold a JSON object.

    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise damaged_file(path, error) from error
    if not isinstance(found, dict):
        raise damaged_file(path, f"expected a JSON object, got {json.dumps(found)[:20]}")
    return found


def damaged_file(path: Path, reason: object) -> RunError:
    """Return the error for a file of a run directory whose content is unusable."""
    return RunError(f"{path} is damaged ({reason}); move {path.parent} away")
