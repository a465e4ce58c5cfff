"""Locate and download the files of datasets.

A data directory holds one folder for each dataset. It is the ``data_dir`` argument, else the
directory in the environment variable ``FEDTERN_DATA``, else the user's cache directory. Missing
files are downloaded only into the cache directory.
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
"""Environment variable with the path of the data directory."""


@dataclass(frozen=True)
class Download:
    """A file to download, accepted only with the given SHA-256 digest."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """The file name."""
        return self.url.rpartition("/")[2]

    def fetch(self, folder: Path) -> Path:
        """Download the file into a folder, with a progress bar, unless it is already there.

        Returns:
            The path of the file.

        Raises:
            MissingDataError: the download failed.
            DataError: the file has another digest.
            MissingExtraError: pooch or tqdm is not installed.

        """
        pooch = require("pooch", "torch", f"downloading {self.name}")
        require("tqdm", "torch", "a progress bar")  # an optional dependency of pooch
        try:
            path = pooch.retrieve(
                self.url, f"sha256:{self.sha256}", self.name, folder, progressbar=True
            )
        except OSError as error:
            raise MissingDataError(
                f"Cannot download {self.name} from {self.url} ({type(error).__name__});"
                f" download it yourself and save it as {folder / self.name}"
            ) from error
        except ValueError as error:
            raise DataError(
                f"{self.name} from {self.url} does not have SHA-256 {self.sha256}; the download is"
                " damaged or the published file has changed"
            ) from error
        return Path(path)


@dataclass(frozen=True)
class Source:
    """The files of one dataset.

    Args:
        folder: name of the dataset's folder in the data directory.
        files: paths of the files in the folder.
        fill: creates the files in an empty folder.

    """

    folder: str
    files: tuple[str, ...]
    fill: Callable[[Path], None]

    def locate(self, data_dir: str | Path | None) -> Path:
        """Return the folder with the files; download missing files into the cache directory.

        Raises:
            MissingDataError: a file is missing in a directory that the user named, or a download
                failed.

        """
        root = data_root(data_dir)
        folder = (root or _cache()) / self.folder
        missing = [name for name in self.files if not (folder / name).is_file()]
        if not missing:
            return folder
        if root is not None:
            where = "data_dir" if data_dir is not None else VARIABLE
            raise MissingDataError(
                f"{self.folder}: missing file {folder / missing[0]}; put it there, or leave"
                f" {where} unset to download it"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.fill(folder)
        return folder


def data_root(data_dir: str | Path | None) -> Path | None:
    """Return the data directory that the user named, or None."""
    if data_dir is not None:
        return Path(data_dir)
    variable = os.environ.get(VARIABLE)
    return Path(variable) if variable else None


def download_each(*downloads: Download) -> Callable[[Path], None]:
    """Return a function that downloads separate files into a folder."""

    def fill(folder: Path) -> None:
        for download in downloads:
            download.fetch(folder)

    return fill


def download_members(archive: Download, *members: str) -> Callable[[Path], None]:
    """Return a function that downloads a tar archive, extracts members and removes the archive."""

    def fill(folder: Path) -> None:
        path = archive.fetch(folder)
        with tarfile.open(path) as tar:
            for member in members:
                file = tar.extractfile(member)
                if file is None:  # impossible: the digest of the archive is pinned
                    raise MissingDataError(f"{path} has no member {member}")
                with file:
                    _write_member(folder / member, file.read())
        path.unlink()

    return fill


def _write_member(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, [data])


def _cache() -> Path:
    pooch = require("pooch", "torch", f"downloading a dataset ({VARIABLE} is not set)")
    return Path(pooch.os_cache("fedtern"))
