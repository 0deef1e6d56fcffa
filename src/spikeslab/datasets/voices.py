"""Four synthetic voices that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from scipy.io import wavfile

from .._arrays import Array


@dataclass(frozen=True, eq=False)
class Recordings:
    """Signals of equal length, one a column.

    Attributes
    ----------
    signals : array of shape (n_samples, n_signals)
        Between -1 and 1.
    rate : int
        Samples per second.
    names : tuple of str
    """

    signals: Array
    rate: int
    names: tuple[str, ...]


def load_voices() -> Recordings:
    """Four voices that say different sentences in different languages, 4.5 seconds each.

    They were made with a speech synthesiser (``tools/make_voices.py`` in the source tree) and have
    equal power.

    Examples
    --------
    >>> from spikeslab.datasets import load_voices
    >>> voices = load_voices()
    >>> voices.signals.shape, voices.rate, voices.names
    ((36000, 4), 8000, ('english', 'french', 'german', 'spanish'))
    """
    folder = files(__package__) / "voices"
    wavs = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".wav")),
        key=lambda entry: entry.name,
    )
    columns, rates = [], []
    for wav in wavs:
        with wav.open("rb") as file:
            rate, samples = wavfile.read(file)
        columns.append(samples / 32768)
        rates.append(rate)
    names = tuple(wav.name.removesuffix(".wav") for wav in wavs)
    return Recordings(np.stack(columns, axis=1), rates[0], names)
