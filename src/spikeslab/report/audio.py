"""Signals as players in a page: WAV files inside data URIs, kept to a size a browser opens."""

from __future__ import annotations

import wave
from base64 import b64encode
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO

import numpy as np
from scipy.signal import resample_poly

from .._arrays import Array

PEAK = 0.9
LOWEST_RATE = 3000.0  # below, browsers refuse to play
HIGHEST_RATE = 48_000
SPARE_RATE = 16_000  # enough for speech: the rate of recordings too large for their own
MOST_SECONDS = 60
MOST_BYTES = 12_000_000  # of a page, for all players together
_BYTES = 2 * 4 / 3  # a 16-bit sample in base64


@dataclass(frozen=True)
class Excerpt:
    """How much of recordings is embedded, and at which rate."""

    rate: int
    seconds: float
    original_rate: float
    original_seconds: float

    @classmethod
    def of(cls, n_signals: int, n_samples: int, rate: float) -> Excerpt:
        """As much as fits: first the rate is lowered, then the end is cut off."""
        seconds = n_samples / rate
        kept = min(seconds, MOST_SECONDS)
        new_rate = min(round(rate), HIGHEST_RATE)
        if n_signals * kept * new_rate * _BYTES > MOST_BYTES:
            new_rate = min(new_rate, SPARE_RATE)
            kept = min(kept, MOST_BYTES / (n_signals * new_rate * _BYTES))
        return cls(new_rate, kept, rate, seconds)

    @property
    def sentence(self) -> str:
        """What a listener should know, or nothing."""
        shortened = self.seconds < self.original_seconds
        lowered = self.rate < round(self.original_rate)
        parts = []
        if shortened:
            parts.append(f"the first {self.seconds:.0f} of {self.original_seconds:.0f} seconds")
        if lowered:
            parts.append(f"a rate of {self.rate} Hz instead of {self.original_rate:g} Hz")
        if not parts:
            return ""
        return f"To keep this page small, its players have {' and '.join(parts)}."


def wav_uri(signal: Array, excerpt: Excerpt) -> str:
    """A data URI of the excerpt, 16 bit mono, its peak at 0.9."""
    signal = signal[: round(excerpt.seconds * excerpt.original_rate)]
    if excerpt.rate < round(excerpt.original_rate):
        ratio = Fraction(excerpt.rate / excerpt.original_rate).limit_denominator(1000)
        signal = resample_poly(signal, ratio.numerator, ratio.denominator)
    signal = signal - signal.mean()
    peak = float(np.abs(signal).max())
    samples = np.round(signal * (PEAK * 32767 / peak if peak > 0 else 0.0)).astype("<i2")
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(excerpt.rate)
        writer.writeframes(samples.tobytes())
    return f"data:audio/wav;base64,{b64encode(file.getvalue()).decode('ascii')}"


def playable(rate: float | None) -> bool:
    return rate is not None and rate >= LOWEST_RATE
