"""Makes the voices in src/spikeslab/datasets/voices with Debian's espeak-ng.

Four synthetic speakers say four sentences written for this purpose. Each speaks at the rate that
fills the same number of seconds; what is longer by a few milliseconds is faded out.

    python tools/make_voices.py
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.io import wavfile
from scipy.signal import resample_poly
from scipy.stats import kurtosis

FOLDER = Path(__file__).parents[1] / "src" / "spikeslab" / "datasets" / "voices"
RATE = 8000
SECONDS = 4.5
LOUDNESS = 0.09  # root mean square, full scale being 1
AUDIBLE = 0.01  # of the largest value; what is below at either end is silence
FADE = 0.02  # seconds


class Voice(NamedTuple):
    language: str
    variant: str  # espeak-ng's name
    pitch: int  # 0 to 99
    sentence: str


VOICES = (
    Voice(
        "english",
        "en-gb+m3",
        25,
        "Four people talk at once, and still a careful listener follows every word of this one.",
    ),
    Voice(
        "german",
        "de+f2",
        55,
        "Am Hafen roch es nach Teer, und die Möwen stritten laut um einen alten Fisch.",
    ),
    Voice(
        "french",
        "fr+m7",
        45,
        "Le facteur a laissé son vélo sous le tilleul, parce que la pluie commençait à tomber.",
    ),
    Voice(
        "spanish",
        "es+f4",
        75,
        "Mi abuela guarda las llaves del molino en una caja azul, detrás de los libros viejos.",
    ),
)


def spoken(voice: Voice, words_per_minute: int) -> NDArray[np.float64]:
    """What espeak-ng says, at RATE and without the silence at both ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "voice.wav")
        options = ["-v", voice.variant, "-p", str(voice.pitch), "-s", str(words_per_minute)]
        command = ["espeak-ng", *options, "-w", str(path), voice.sentence]
        subprocess.run(command, check=True)
        rate, samples = wavfile.read(path)
    divisor = np.gcd(RATE, rate)
    samples = resample_poly(samples / 32768, RATE // divisor, rate // divisor)
    audible = np.flatnonzero(np.abs(samples) > AUDIBLE * np.abs(samples).max())
    return samples[audible[0] : audible[-1] + 1]


def fitting(voice: Voice) -> tuple[NDArray[np.float64], int]:
    """SECONDS long, at the fastest rate that still fills them; and that rate."""
    n_samples = round(SECONDS * RATE)
    for words_per_minute in range(300, 79, -1):
        samples = spoken(voice, words_per_minute)
        if len(samples) >= n_samples:
            break
    else:
        raise ValueError(f"the {voice.language} sentence is too short for {SECONDS} s")
    samples = samples[:n_samples].copy()
    n_fade = round(FADE * RATE)
    samples[-n_fade:] *= np.cos(np.linspace(0, np.pi / 2, n_fade)) ** 2
    return samples - samples.mean(), words_per_minute


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    columns, paces = zip(*map(fitting, VOICES), strict=True)
    signals = np.stack(columns, axis=1)
    signals *= LOUDNESS / signals.std(axis=0)
    for voice, samples, pace in zip(VOICES, signals.T, paces, strict=True):
        wavfile.write(
            FOLDER / f"{voice.language}.wav", RATE, np.round(samples * 32767).astype(np.int16)
        )
        peak, tails = np.abs(samples).max(), kurtosis(samples)
        print(
            f"{voice.language:8} {pace} words per minute, peak {peak:.2f}, "
            f"excess kurtosis {tails:.1f}"
        )
    correlations = np.corrcoef(signals.T)[np.triu_indices(len(VOICES), 1)]
    print(f"largest correlation of two voices {np.abs(correlations).max():.3f}")


if __name__ == "__main__":
    main()
