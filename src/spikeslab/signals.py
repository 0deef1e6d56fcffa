"""Reading and writing signals: .wav, .flac, .csv, .npy and .mat files."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat, savemat

from ._arrays import Array
from .parameters import refusing

_DELIMITERS = ("\t", ";", ",")
_CLIPPED_RUN = 3  # so many successive samples at the very top or bottom are no peak of a wave
_LOUD = 0.25  # of full scale: quieter waves touch their extremes for want of bits


@dataclass(frozen=True, eq=False)
class Signals:
    """What a file held, and how to write other signals in the same manner.

    Attributes
    ----------
    data : array of shape (n_samples, n_channels)
        Audio is between -1 and 1.
    rate : int or None
        Samples per second, of audio.
    names : tuple of str or None
        The columns' names, where there is a header.
    suffix : str
        The file's, such as ".wav".
    """

    data: Array
    rate: int | None
    names: tuple[str, ...] | None
    suffix: str
    _writer: Callable[[Path, Array, Sequence[str]], None]

    def write(self, path: str | os.PathLike[str], data: Array, names: Sequence[str]) -> None:
        """Write signals of shape (n_samples, n_signals) in the format, encoding and rate of the
        file that was read; `names` go where it had a header.
        """
        self._writer(Path(path), data, names)


def read(path: str | os.PathLike[str]) -> Signals:
    r"""Read a file of signals; what it is is told by its suffix.

    Audio needs soundfile (``pip install 'spikeslab[app]'``). The columns of a .csv file are
    channels, a first line of names is optional. In an .npy array and in the only matrix of a .mat
    file the longer side is time.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from spikeslab.signals import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "two.csv")
    ...     _ = path.write_text("left,right\n1,2\n3,4\n5,6\n")
    ...     signals = read(path)
    >>> signals.data.shape, signals.names
    ((3, 2), ('left', 'right'))
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise ValueError(
            f"cannot read {path}: the name of a file of signals must end in {', '.join(_READERS)}"
        )
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file of signals")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if suffix in _AUDIO:
        _soundfile()
    with refusing(path):
        signals = _READERS[suffix](path)
        if signals.data.size == 0:
            raise ValueError("it holds no samples")
        wrong = np.argwhere(~np.isfinite(signals.data))
        if len(wrong):
            sample, channel = wrong[0] + 1
            raise ValueError(
                f"sample {sample} of channel {channel} is "
                f"{signals.data[sample - 1, channel - 1]:g}, not a finite number"
            )
    return signals


def clipping(signals: Signals) -> list[str]:
    """A warning for each channel of audio that was recorded too loud."""
    if signals.rate is None:
        return []
    return [
        f"channel {channel + 1} is clipped ({count} samples at its limit), so it is no linear "
        "mixture there: expect residues, or record it at a lower level"
        for channel, count in enumerate(map(clipped_samples, signals.data.T))
        if count
    ]


def clipped_samples(channel: Array) -> int:
    """Number of samples of a loud channel in runs at its largest or smallest value."""
    count = 0
    for limit in (channel.max(), channel.min()):
        if abs(limit) < _LOUD:
            continue
        borders = np.flatnonzero(np.diff(channel == limit, prepend=False, append=False))
        lengths = np.diff(borders)[::2]
        count += int(lengths[lengths >= _CLIPPED_RUN].sum())
    return count


# ---- audio ----


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError:
        raise ImportError(
            "reading and writing audio needs soundfile: pip install 'spikeslab[app]'"
        ) from None
    return soundfile


def _read_audio(path: Path) -> Signals:
    soundfile = _soundfile()
    try:
        with soundfile.SoundFile(path) as file:
            rate, promised = file.samplerate, file.frames
            data = file.read(always_2d=True)
            writer = partial(_write_audio, rate=rate, container=file.format, encoding=file.subtype)
    except soundfile.LibsndfileError as error:
        raise ValueError(error.error_string.rstrip(".")) from None
    if len(data) < promised or _riff_ends_early(path):
        raise ValueError("it was cut off")
    return Signals(data, rate, None, path.suffix.lower(), writer)


def _riff_ends_early(path: Path) -> bool:
    """Is a WAV file shorter than its header says? libsndfile reads what there is."""
    with open(path, "rb") as file:
        header = file.read(8)
    size = int.from_bytes(header[4:8], "little")
    streamed = size in (0, 0xFFFFFFFF)  # written to a pipe: the size was not known
    return header[:4] == b"RIFF" and not streamed and size + 8 > path.stat().st_size


def _write_audio(
    path: Path, data: Array, names: Sequence[str], *, rate: int, container: str, encoding: str
) -> None:
    _soundfile().write(path, data, rate, format=container, subtype=encoding)


# ---- tables ----


def _read_csv(path: Path) -> Signals:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError("it is not a text file in UTF-8") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ValueError("it is empty")
    body = numbered[1:] or numbered
    delimiter = next((mark for mark in _DELIMITERS if mark in body[0][1]), " ")
    first = _cells(numbered[0][1].lstrip("#"), delimiter)
    names = None
    if not any(map(_is_number, first)):
        names, numbered = tuple(first), numbered[1:]
        if not numbered:
            raise ValueError("it has a header and nothing below")
    try:
        data = np.loadtxt(
            [line for _, line in numbered],
            delimiter=delimiter.strip(" ") or None,
            comments=None,
            quotechar='"',
            ndmin=2,
        )
    except ValueError:
        raise ValueError(_what_is_wrong(numbered, delimiter)) from None
    if names is not None and len(names) != data.shape[1]:
        raise ValueError(f"the header has {len(names)} names for {data.shape[1]} columns")
    writer = partial(_write_csv, delimiter=delimiter, header=names is not None)
    return Signals(data, None, names, ".csv", writer)


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        line = " ".join(line.split())
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _what_is_wrong(numbered: list[tuple[int, str]], delimiter: str) -> str:
    """The first line that is no row of numbers like the first."""
    first, width = numbered[0][0], len(_cells(numbered[0][1], delimiter))
    for number, line in numbered:
        cells = _cells(line, delimiter)
        for column, cell in enumerate(cells, 1):
            if not _is_number(cell):
                held = f"holds {cell!r}, which is not a number" if cell else "is empty"
                return f"line {number}, column {column} {held}"
        if len(cells) != width:
            return f"line {number} has {len(cells)} values, line {first} has {width}"
    return "it is not a table of numbers"


def _write_csv(
    path: Path, data: Array, names: Sequence[str], *, delimiter: str, header: bool
) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        if header:
            csv.writer(file, delimiter=delimiter, lineterminator="\n").writerow(names)
        np.savetxt(file, data, fmt="%.10g", delimiter=delimiter)


# ---- arrays ----


def _read_npy(path: Path) -> Signals:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise ValueError("it is no .npy array of numbers, or was cut off") from None
    if not isinstance(array, np.ndarray):
        raise ValueError("it is no .npy array but an archive")
    data, upright = _samples_by_channels(array)
    dtype = np.float32 if array.dtype == np.float32 else np.float64
    return Signals(data, None, None, ".npy", partial(_write_npy, dtype=dtype, upright=upright))


def _write_npy(
    path: Path, data: Array, names: Sequence[str], *, dtype: type, upright: bool
) -> None:
    np.save(path, (data if upright else data.T).astype(dtype))


def _read_mat(path: Path) -> Signals:
    try:
        content = loadmat(path)
    except NotImplementedError:
        raise ValueError("it has MATLAB's format 7.3; save it with '-v7'") from None
    except Exception:
        raise ValueError("it is no .mat file, or was cut off") from None
    found = {name: value for name, value in content.items() if not name.startswith("__")}
    matrices = [
        name
        for name, value in found.items()
        if isinstance(value, np.ndarray)
        and value.dtype.kind in "biufc"
        and value.ndim == 2
        and min(value.shape) > 1
    ]
    if len(matrices) != 1:
        listed = ", ".join(
            f"{name} ({' x '.join(map(str, np.shape(value)))})" for name, value in found.items()
        )
        raise ValueError(
            f"it must hold one matrix of numbers, but has {len(matrices)}; "
            f"its variables are {listed or 'none'}"
        )
    data, upright = _samples_by_channels(found[matrices[0]])
    return Signals(
        data, None, None, ".mat", partial(_write_mat, variable=matrices[0], upright=upright)
    )


def _write_mat(
    path: Path, data: Array, names: Sequence[str], *, variable: str, upright: bool
) -> None:
    savemat(path, {variable: data if upright else data.T})


def _samples_by_channels(array: NDArray[Any]) -> tuple[Array, bool]:
    """As float64 with time along the first axis, and whether it was so."""
    if array.dtype.kind == "c":
        raise ValueError("it holds complex numbers; signals are real")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it holds {array.dtype.name}, not numbers")
    if array.ndim not in (1, 2):
        raise ValueError(f"it has {array.ndim} dimensions; signals have two, time and channels")
    columns = (array if array.ndim == 2 else array[:, None]).astype(np.float64)
    upright = columns.shape[0] >= columns.shape[1]
    return (columns if upright else np.ascontiguousarray(columns.T)), upright


_AUDIO = (".wav", ".flac")
_READERS: dict[str, Callable[[Path], Signals]] = {
    **dict.fromkeys(_AUDIO, _read_audio),
    ".csv": _read_csv,
    ".npy": _read_npy,
    ".mat": _read_mat,
}
