"""Ten keywords of Speech Commands v0.01 (Warden, 2018) as log-mel pictures."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import DataError
from fedtern.data.dataset import Dataset
from fedtern.data.files import Download, Source, data_root
from fedtern.data.mel import BANDS, FRAMES, features, read_wav
from fedtern.store.files import write_atomic

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
"""The ten keywords, in the order of their class numbers."""

# Whatever reading a damaged zip of arrays can end in; a single array is no context manager.
_BROKEN_NPZ = (
    OSError, EOFError, ValueError, KeyError, TypeError, NotImplementedError, RuntimeError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_FOLDER, _PREPARED = "speech-commands", "speech-commands-10.npz"
_ARCHIVE = Download(
    "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.01.tar.gz",
    # As audio libraries publish it; we have verified clips, not the archive.
    "743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d",
)


@dataclass(frozen=True, eq=False)
class Clips:
    """Pictures of clips and the clips' names, ``word/speaker_nohash_number.wav``."""

    pictures: NDArray[np.uint8]
    names: tuple[str, ...]

    def dataset(self) -> Dataset:
        """The clips of the published test speakers to test on, all others to train on."""
        labels = np.array([WORDS.index(name.partition("/")[0]) for name in self.names], np.int64)
        speakers = np.array([_speaker(name) for name in self.names])
        test = np.array([is_test_speaker(speaker) for speaker in speakers], np.bool_)
        inputs = self.pictures[:, None]
        return Dataset(
            "speech-commands", inputs[~test], labels[~test], inputs[test], labels[test],
            num_classes=len(WORDS), scale=255, mean=(0.3746,), std=(0.2554,),
            groups=np.unique(speakers[~test], return_inverse=True)[1].astype(np.int64),
        )  # fmt: skip


def speech_commands(data_dir: str | Path | None = None) -> Dataset:
    """About 21,100 + 2,570 spoken keywords of 32 mel bands by 32 frames, grouped by speaker.

    Reads ``speech-commands-10.npz`` where there is one, else a folder of wavs for each word.
    Training includes the published validation list.
    """
    root = data_root(data_dir)
    if root is not None:
        tree = root / _FOLDER
        if not (tree / _PREPARED).is_file() and (tree / WORDS[0]).is_dir():
            return read_tree(tree).dataset()
    return read_prepared(_SOURCE.locate(data_dir) / _PREPARED).dataset()


def is_test_speaker(speaker: str) -> bool:
    """Whether the dataset's testing list has this speaker, by the rule that made the list.

    A speaker's place is a hash of their name, so that the lists stay as they are when clips are
    added: the first 10 % validate, the next 10 % test.
    """
    value = int(hashlib.sha1(speaker.encode(), usedforsecurity=False).hexdigest(), 16)
    return 10 <= value % 2**27 * 100 / (2**27 - 1) < 20


def read_tree(folder: Path) -> Clips:
    """Every clip in ``folder/<word>/*.wav``, words in their order, clips by name."""
    paths = [path for word in WORDS for path in sorted((folder / word).glob("*.wav"))]
    if absent := [word for word in WORDS if not any((folder / word).glob("*.wav"))]:
        raise DataError(f"{folder / absent[0]} must hold wav files of the word {absent[0]!r}")
    pictures = [features(read_wav(path, str(path))) for path in paths]
    names = tuple(f"{path.parent.name}/{path.name}" for path in paths)
    return Clips(np.stack(pictures), names)


def read_prepared(path: Path) -> Clips:
    """Clips whose pictures were made before: arrays ``features`` and ``names``."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            pictures, names = arrays["features"], [str(name) for name in arrays["names"]]
    except _BROKEN_NPZ as error:
        raise DataError(
            f"{path} must be an npz file with arrays features and names: {error}; fetch it again"
        ) from None
    if pictures.dtype != np.uint8 or pictures.shape != (len(names), BANDS, FRAMES):
        raise DataError(
            f"{path} must have features of uint8 ({len(names)}, {BANDS}, {FRAMES}), but has"
            f" {pictures.dtype} {pictures.shape}"
        )
    unknown = [name for name in names if name.partition("/")[0] not in WORDS]
    if unknown:
        raise DataError(f"{path} must name clips of {', '.join(WORDS)}, but has {unknown[0]!r}")
    return Clips(pictures, tuple(names))


def write_prepared(path: Path, clips: Clips) -> None:
    """Write what ``read_prepared`` reads."""
    data = io.BytesIO()
    np.savez_compressed(data, features=clips.pictures, names=np.array(clips.names))
    write_atomic(path, [data.getvalue()])


def read_archive(path: Path) -> Clips:
    """The keywords' clips inside the published archive, in the order of ``read_tree``."""
    with tarfile.open(path) as tar:
        found = dict(_clips_in(tar))
    order = sorted(found, key=lambda name: (WORDS.index(name.partition("/")[0]), name))
    return Clips(np.stack([found[name] for name in order]), tuple(order))


def _clips_in(tar: tarfile.TarFile) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    for member in tar:
        name = member.name.removeprefix("./")
        if name.endswith(".wav") and name.partition("/")[0] in WORDS:
            file = tar.extractfile(member)
            if file is not None:
                with file:
                    yield name, features(read_wav(file, name))


def _speaker(name: str) -> str:
    return name.partition("/")[2].partition("_nohash_")[0]


def _prepare(folder: Path) -> None:
    archive = _ARCHIVE.fetch(folder)
    write_prepared(folder / _PREPARED, read_archive(archive))
    archive.unlink()


_SOURCE = Source(_FOLDER, (_PREPARED,), _prepare)
