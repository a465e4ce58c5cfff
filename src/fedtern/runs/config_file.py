"""A run's ``config.json``: what is run, and what became of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtern.core.errors import StoreError
from fedtern.store.files import write_atomic


class Configuration:
    """The file, whether it is there or not; one process at a time may add to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """What it says; nothing where it is not there."""
        try:
            found = json.loads(self.path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            raise self._damaged(getattr(error, "strerror", None) or error) from error
        if not isinstance(found, dict):
            raise self._damaged(f"it should hold an object, not {json.dumps(found)[:20]}")
        return found

    def add(self, **values: Any) -> None:
        """Write down something else."""
        text = json.dumps({**self.read(), **values}, indent=2)
        write_atomic(self.path, [f"{text}\n".encode()])

    def _damaged(self, why: object) -> StoreError:
        return StoreError(f"{self.path} is damaged ({why}): move its directory away")
