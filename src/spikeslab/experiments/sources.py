"""The benchmarks of the paper's table: ICALAB's recordings, or stand-ins for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from .._arrays import Array
from ..datasets import Speech, c5, load_icalab, load_speech, sergio7
from ..datasets.generators import standardised
from .plan import Plan

DEBIAN = Path("/usr/share/asterisk/sounds")  # where its packages of telephone prompts put them
SPEAKERS_4 = ("en", "fr", "it", "ru")
SPEAKERS_5 = ("en", "es", "fr", "it", "ru")


@dataclass(frozen=True)
class Benchmark:
    """Where sources come from, as plain values.

    Attributes
    ----------
    name : str
        In the paper's table.
    origin : "icalab", "generated", "prompts" or "voices"
        All but the first are stand-ins.
    variant : str
        How they are made, in words.
    sampling : str
        For speech, which points in time are drawn; else empty.
    folder : str
        Of recordings; else empty.
    """

    name: str
    origin: str
    variant: str
    sampling: str = ""
    folder: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)


def benchmarks(plan: Plan) -> list[Benchmark]:
    """The four of the table; the stand-in for Speech4 in three forms."""
    if plan.icalab is not None:
        folder = str(plan.icalab)
        there = _icalab(folder)
        missing = [name for name in N_SOURCES if name not in there]
        if missing:
            raise FileNotFoundError(
                f"{folder} lacks {', '.join(f'{name}.mat' for name in missing)}; it has "
                f"{', '.join(f'{name}.mat' for name in there)}"
            )
        for name in N_SOURCES:
            _check_recording(Path(folder) / f"{name}.mat", there[name])
        return [Benchmark(name, "icalab", "random time points", "", folder) for name in N_SOURCES]
    if plan.speech is not None:
        origin, folder = "prompts", str(plan.speech)
        _speech(folder, SPEAKERS_5)
        halo = "one prompt in five languages, each also played 1.07 times as fast"
        four = "prompts in four languages"
    else:
        origin, folder = "voices", ""
        halo = "only 8 signals: four synthetic voices, each also played 1.07 times as fast"
        four = "four synthetic voices"
    return [
        Benchmark("10halo", origin, f"{halo}; random time points", "iid", folder),
        Benchmark("Sergio7", "generated", "seven skewed and heavy-tailed distributions"),
        Benchmark("Speech4", origin, f"{four}; random time points", "iid", folder),
        Benchmark("Speech4", origin, f"{four}; pauses cut out", "no pauses", folder),
        Benchmark("Speech4", origin, f"{four}; consecutive samples", "contiguous", folder),
        Benchmark("c5signals", "generated", "sine, square, sawtooth, AM sine, uniform noise"),
    ]


def recorded_prompts() -> Path | None:
    """Debian's folder of prompts, if it is there and has all speakers."""
    try:
        _speech(str(DEBIAN), SPEAKERS_5)
    except (OSError, ValueError):
        return None
    return DEBIAN


SIZES = (200, 500)  # points in time of a draw

# How many sources the paper's benchmarks have.
N_SOURCES = {"10halo": 10, "Sergio7": 7, "Speech4": 4, "c5signals": 5}


def draw(benchmark: Benchmark, n_samples: int, rng: Generator) -> Array:
    """Sources, centred and of unit variance, shape (n_samples, H)."""
    if benchmark.origin == "icalab":
        return _some_times(_icalab(benchmark.folder)[benchmark.name], n_samples, rng)
    if benchmark.origin == "generated":
        generate: Callable[[int, Generator], Array] = {"Sergio7": sergio7, "c5signals": c5}[
            benchmark.name
        ]
        return generate(n_samples, rng)
    halo = benchmark.name == "10halo"
    if benchmark.origin == "prompts":
        speech = _speech(benchmark.folder, SPEAKERS_5 if halo else SPEAKERS_4)
    else:
        speech = _voices()
    how = speech.draw_halo if halo else speech.draw
    return how(n_samples, rng, benchmark.sampling)  # type: ignore[arg-type]


def _check_recording(path: Path, signals: Array) -> None:
    """Draws need enough points in time, and signals that vary."""
    if len(signals) < max(SIZES):
        raise ValueError(
            f"{path} has {len(signals)} points in time; at least {max(SIZES)} are needed"
        )
    for number, signal in enumerate(signals.T, 1):
        if np.ptp(signal) == 0:
            raise ValueError(f"row {number} of {path} is constant: there is nothing to separate")


def _some_times(signals: Array, n_samples: int, rng: Generator) -> Array:
    """Random points in time at which all signals vary."""
    while True:
        times = rng.choice(len(signals), n_samples, replace=False)
        if (signals[times].std(axis=0) > 0).all():
            return standardised(signals[times])


@lru_cache(maxsize=1)
def _icalab(folder: str) -> dict[str, Array]:
    return load_icalab(folder)


@lru_cache(maxsize=2)
def _speech(folder: str, speakers: tuple[str, ...]) -> Speech:
    return load_speech(folder, speakers)


def _voices() -> Speech:
    """The embedded voices, as a speaker each with one prompt."""
    folder = Path(str(files("spikeslab.datasets") / "voices"))
    return Speech({path.stem: {"voice": path} for path in sorted(folder.glob("*.wav"))}, 8000)
