"""Where a dataset's files are, and how they get there.

A data directory holds one folder for each dataset. It is the one passed in, else the one that
``FEDTERN_DATA`` names, else a cache of this user's, which downloads what it lacks.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedtern.core.errors import DataError, MissingDataError
from fedtern.core.extras import require
from fedtern.store.files import write_atomic

VARIABLE = "FEDTERN_DATA"
"""The environment variable that names a data directory."""


@dataclass(frozen=True)
class Download:
    """A file's public home, and the only bytes that are accepted from it."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rpartition("/")[2]

    def fetch(self, folder: Path) -> Path:
        """The file inside ``folder``, downloaded with a progress bar unless it is there."""
        pooch = require("pooch", "torch", f"downloading {self.name}")
        require("tqdm", "torch", "a progress bar")  # pooch's, which it does not install by itself
        try:
            path = pooch.retrieve(
                self.url, f"sha256:{self.sha256}", self.name, folder, progressbar=True
            )
        except OSError as error:
            raise MissingDataError(
                f"{self.name} could not be downloaded from {self.url} ({type(error).__name__}):"
                f" fetch it yourself and save it as {folder / self.name}"
            ) from error
        except ValueError as error:
            raise DataError(
                f"{self.name} from {self.url} must have SHA-256 {self.sha256}, but has not: it was"
                " damaged on its way or has changed at its home"
            ) from error
        return Path(path)


@dataclass(frozen=True)
class Source:
    """The files of one dataset and what makes them in an empty folder."""

    folder: str
    files: tuple[str, ...]
    fill: Callable[[Path], None]

    def locate(self, data_dir: str | Path | None) -> Path:
        """The folder that holds every file, or an error naming the first that is absent."""
        root = data_root(data_dir)
        folder = (root or _cache()) / self.folder
        missing = [name for name in self.files if not (folder / name).is_file()]
        if not missing:
            return folder
        if root is not None:
            where = "data_dir" if data_dir is not None else VARIABLE
            raise MissingDataError(
                f"{self.folder} has no file {folder / missing[0]}: put it there, or leave {where}"
                " unset to have it downloaded"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.fill(folder)
        return folder


def data_root(data_dir: str | Path | None) -> Path | None:
    """The data directory that the user names, if any."""
    named = data_dir if data_dir is not None else os.environ.get(VARIABLE) or None
    return None if named is None else Path(named)


def download_each(*downloads: Download) -> Callable[[Path], None]:
    """Fills a folder with files that are published one by one."""

    def fill(folder: Path) -> None:
        for download in downloads:
            download.fetch(folder)

    return fill


def download_members(archive: Download, *members: str) -> Callable[[Path], None]:
    """Fills a folder with members of a tar archive, which is removed afterwards."""

    def fill(folder: Path) -> None:
        path = archive.fetch(folder)
        with tarfile.open(path) as tar:
            for member in members:
                file = tar.extractfile(member)
                if file is None:  # a pinned archive has them all
                    raise MissingDataError(f"{path} has no member {member}")
                with file:
                    _write_member(folder / member, file.read())
        path.unlink()

    return fill


def _write_member(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, [data])


def _cache() -> Path:
    pooch = require("pooch", "torch", f"downloading a dataset (where {VARIABLE} is not set)")
    return Path(pooch.os_cache("fedtern"))
