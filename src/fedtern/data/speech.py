"""Ten keywords of Speech Commands v0.01 (Warden, 2018) as log-mel spectrograms."""

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
from fedtern.data.mel import BANDS, FRAMES, log_mel_spectrogram, read_wav
from fedtern.store.files import write_atomic

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
"""The keywords, in the order of their class numbers."""

# Exceptions of numpy.load for damaged files; TypeError if the file is a single array.
_BROKEN_NPZ = (
    OSError, EOFError, ValueError, KeyError, TypeError, NotImplementedError, RuntimeError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_FOLDER = "speech-commands"
_PREPARED = "speech-commands-10.npz"
_ARCHIVE = Download(
    "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.01.tar.gz",
    # The digest that audio libraries use. Only clips have been verified.
    "743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d",
)


@dataclass(frozen=True, eq=False)
class Clips:
    """Spectrograms of clips and the clips' names, ``word/speaker_nohash_number.wav``."""

    spectrograms: NDArray[np.uint8]
    names: tuple[str, ...]

    def dataset(self) -> Dataset:
        """Return a dataset: the published test speakers for testing, all others for training."""
        labels = np.array([WORDS.index(name.partition("/")[0]) for name in self.names], np.int64)
        speakers = np.array([_speaker(name) for name in self.names])
        test = np.array([is_test_speaker(speaker) for speaker in speakers], np.bool_)
        inputs = self.spectrograms[:, None]
        return Dataset(
            "speech-commands", inputs[~test], labels[~test], inputs[test], labels[test],
            num_classes=len(WORDS), scale=255, mean=(0.3746,), std=(0.2554,),
            groups=np.unique(speakers[~test], return_inverse=True)[1].astype(np.int64),
        )  # fmt: skip


def speech_commands(data_dir: str | Path | None = None) -> Dataset:
    """Load Speech Commands: 21,115 + 2,567 spoken keywords of 32 bands by 32 frames.

    It reads the prepared file ``speech-commands-10.npz`` or, if there is none, a folder of wav
    files for each word. ``groups`` are the speakers. The training set includes the published
    validation list.
    """
    root = data_root(data_dir)
    if root is not None:
        tree = root / _FOLDER
        if not (tree / _PREPARED).is_file() and (tree / WORDS[0]).is_dir():
            return read_tree(tree).dataset()
    return read_prepared(_SOURCE.locate(data_dir) / _PREPARED).dataset()


def is_test_speaker(speaker: str) -> bool:
    """Return whether a speaker belongs to the published testing list.

    The lists depend on a hash of the speaker's name: the first 10 % of the hash values are for
    validation, the next 10 % for testing.
    """
    value = int(hashlib.sha1(speaker.encode(), usedforsecurity=False).hexdigest(), 16)
    return 10 <= value % 2**27 * 100 / (2**27 - 1) < 20


def read_tree(folder: Path) -> Clips:
    """Read the wav files ``folder/<word>/*.wav``, ordered by word and name.

    Raises:
        DataError: a word has no wav files, or a wav file is damaged.

    """
    paths = [path for word in WORDS for path in sorted((folder / word).glob("*.wav"))]
    if absent := [word for word in WORDS if not any((folder / word).glob("*.wav"))]:
        raise DataError(f"{folder / absent[0]} has no wav files of the word {absent[0]!r}")
    spectrograms = [log_mel_spectrogram(read_wav(path, str(path))) for path in paths]
    names = tuple(f"{path.parent.name}/{path.name}" for path in paths)
    return Clips(np.stack(spectrograms), names)


def read_prepared(path: Path) -> Clips:
    """Read a prepared file: an npz file with the arrays ``features`` and ``names``.

    Raises:
        DataError: the file is damaged or has other content.

    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            spectrograms = arrays["features"]
            names = [str(name) for name in arrays["names"]]
    except _BROKEN_NPZ as error:
        raise DataError(
            f"{path} must be an npz file with arrays features and names: {error}; download it again"
        ) from None
    if spectrograms.dtype != np.uint8 or spectrograms.shape != (len(names), BANDS, FRAMES):
        raise DataError(
            f"{path} must have features of uint8 ({len(names)}, {BANDS}, {FRAMES}), but has"
            f" {spectrograms.dtype} {spectrograms.shape}"
        )
    unknown = [name for name in names if name.partition("/")[0] not in WORDS]
    if unknown:
        raise DataError(f"{path} must name clips of {', '.join(WORDS)}, but has {unknown[0]!r}")
    return Clips(spectrograms, tuple(names))


def write_prepared(path: Path, clips: Clips) -> None:
    """Write a prepared file, which ``read_prepared`` reads."""
    data = io.BytesIO()
    np.savez_compressed(data, features=clips.spectrograms, names=np.array(clips.names))
    write_atomic(path, [data.getvalue()])


def read_archive(path: Path) -> Clips:
    """Read the keywords' clips from the published archive, ordered like ``read_tree``."""
    with tarfile.open(path) as tar:
        spectrograms = dict(_clips_in(tar))
    order = sorted(spectrograms, key=lambda name: (WORDS.index(name.partition("/")[0]), name))
    return Clips(np.stack([spectrograms[name] for name in order]), tuple(order))


def _clips_in(tar: tarfile.TarFile) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    for member in tar:
        name = member.name.removeprefix("./")
        if name.endswith(".wav") and name.partition("/")[0] in WORDS:
            file = tar.extractfile(member)
            if file is not None:
                with file:
                    yield name, log_mel_spectrogram(read_wav(file, name))


def _speaker(name: str) -> str:
    return name.partition("/")[2].partition("_nohash_")[0]


def _prepare(folder: Path) -> None:
    archive = _ARCHIVE.fetch(folder)
    write_prepared(folder / _PREPARED, read_archive(archive))
    archive.unlink()


_SOURCE = Source(_FOLDER, (_PREPARED,), _prepare)
