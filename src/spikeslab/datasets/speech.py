"""Draws from recorded prompts, such as those that Debian packages for telephone systems."""

from __future__ import annotations

import os
import re
import wave
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.random import Generator
from scipy.io import wavfile
from scipy.signal import resample_poly

from .._arrays import Array
from .._checks import check_choice, check_integer
from .generators import standardised

Sampling = Literal["iid", "no pauses", "contiguous"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)

WINDOW = 5000  # samples that a draw is taken from
HALO = (100, 107)  # played 1.07 times as fast
_FRAME = 160  # samples: 20 ms at 8 kHz
_PAUSE = 0.1  # of the prompt's root mean square; a frame below is a pause
_SILENT = 0.01  # likewise: a draw this quiet holds nothing to separate
_NO_SPEECH = ("silence/", "tt-monkeys")  # part of telephone prompts, the same in every language
_ATTEMPTS = 1000
_LANGUAGE = re.compile(r"[a-z]{2}(?=[_-]|$)")

Prompts = dict[str, Path]


@dataclass(frozen=True, eq=False)
class Speech:
    """Recorded prompts of several speakers.

    Attributes
    ----------
    prompts : dict of str to dict of str to Path
        Per speaker its prompts, by their names within the speaker's folder.
    rate : int
        Samples per second, of all prompts.
    """

    prompts: dict[str, Prompts]
    rate: int

    @property
    def speakers(self) -> tuple[str, ...]:
        return tuple(self.prompts)

    def draw(self, n_samples: int, rng: Generator, sampling: Sampling = "iid") -> Array:
        """One source per speaker, each out of a random prompt: shape (n_samples, n_speakers).

        Sources are centred and have unit variance.

        Parameters
        ----------
        n_samples : int
        rng : Generator
        sampling : {"iid", "no pauses", "contiguous"}, default="iid"
            Random points in time of a window of 5000 samples, the same points for all sources; the
            same after pauses were cut out of the prompts; or consecutive samples.
        """
        return _draw(self._prompt_each, n_samples, rng, sampling)

    def draw_halo(self, n_samples: int, rng: Generator, sampling: Sampling = "iid") -> Array:
        """Two sources per speaker, shape (n_samples, 2 n_speakers): one and the same prompt said by
        all, as it is and played 1.07 times as fast. A stand-in for ICALAB's 10halo, with five
        speakers.
        """
        common = sorted(set.intersection(*(set(prompts) for prompts in self.prompts.values())))
        if not common:
            speakers = ", ".join(self.speakers)
            raise ValueError(
                f"there is no prompt that all speakers say; the speakers are {speakers}"
            )
        return _draw(partial(self._prompt_of_all, common), n_samples, rng, sampling)

    def _prompt_each(self, rng: Generator) -> list[Array]:
        return [
            _samples(list(prompts.values())[rng.integers(len(prompts))])
            for prompts in self.prompts.values()
        ]

    def _prompt_of_all(self, common: list[str], rng: Generator) -> list[Array]:
        name = common[rng.integers(len(common))]
        originals = [_samples(prompts[name]) for prompts in self.prompts.values()]
        return originals + [resample_poly(samples, *HALO) for samples in originals]


def load_speech(folder: str | os.PathLike[str], speakers: Iterable[str] | None = None) -> Speech:
    """The prompts of more than a second in the sub-folders of a folder, one for each speaker.

    A sub-folder whose name begins with a language code, such as ``en`` or ``en_US_f_Allison``, is
    the speaker ``en``; others are called by their names. Prompts are mono WAV files, at any depth.
    Debian's packages asterisk-core-sounds-{en,es,fr,it,ru}-wav install such a folder,
    ``/usr/share/asterisk/sounds``.

    Parameters
    ----------
    folder : path
    speakers : iterable of str, optional
        The speakers wanted, in this order. None means all.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder of prompts {folder} does not exist")
    if isinstance(speakers, str):
        raise TypeError(f"speakers must be a collection of names, got {speakers!r}")
    asked = None if speakers is None else tuple(dict.fromkeys(speakers))
    found: dict[str, Prompts] = {}
    rates: set[int] = set()
    for home in sorted(path for path in folder.iterdir() if path.is_dir()):
        language = _LANGUAGE.match(home.name)
        speaker = language.group() if language else home.name
        if asked is None or speaker in asked:
            prompts, of_rates = _prompts(home)
            if prompts:
                found[speaker] = found.get(speaker, {}) | prompts
            rates |= of_rates
    wanted = tuple(found) if asked is None else asked
    missing = [speaker for speaker in wanted if speaker not in found]
    if missing or not wanted:
        raise FileNotFoundError(
            f"no prompts of {', '.join(missing) or 'anybody'} of more than a second in {folder} "
            f"(found: {', '.join(found) or 'none'}); Debian's asterisk-core-sounds-*-wav "
            "packages have some"
        )
    if len(rates) > 1:
        raise ValueError(
            f"the prompts in {folder} have different sampling rates: "
            f"{', '.join(f'{rate} Hz' for rate in sorted(rates))}"
        )
    return Speech({speaker: found[speaker] for speaker in wanted}, rates.pop())


def without_pauses(samples: Array) -> Array:
    """What is left when frames of 160 samples more than 20 dB below the whole are cut out."""
    frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    loud = frames.std(axis=1) > _PAUSE * samples.std()
    return frames[loud].ravel()


def _prompts(home: Path) -> tuple[Prompts, set[int]]:
    """A speaker's prompts that are long enough, and their sampling rates."""
    prompts, rates = {}, set()
    for path in sorted(home.glob("**/*.wav")):
        name = path.relative_to(home).as_posix()
        if name.startswith(_NO_SPEECH):
            continue
        try:
            with wave.open(str(path)) as file:
                rate, n_samples, n_channels = (
                    file.getframerate(),
                    file.getnframes(),
                    file.getnchannels(),
                )
        except (wave.Error, EOFError) as error:
            raise ValueError(f"cannot read {path}: {str(error) or 'it ends too early'}") from None
        if n_channels != 1:
            raise ValueError(f"a prompt must have one channel, but {path} has {n_channels}")
        if n_samples > max(rate, WINDOW):
            prompts[name] = path.resolve()
            rates.add(rate)
    return prompts, rates


def _samples(path: Path) -> Array:
    return wavfile.read(path)[1].astype(np.float64)


def _draw(
    prompts: Callable[[Generator], list[Array]], n_samples: int, rng: Generator, sampling: Sampling
) -> Array:
    check_choice("sampling", sampling, SAMPLINGS)
    check_integer("n_samples", n_samples, 2)
    if n_samples > WINDOW:
        raise ValueError(
            f"n_samples must be at most {WINDOW}, the window of a draw, got {n_samples}"
        )
    for _ in range(_ATTEMPTS):
        columns = prompts(rng)
        if sampling == "no pauses":
            columns = [without_pauses(samples) for samples in columns]
        if min(map(len, columns)) < WINDOW:
            continue
        loudness = np.array([samples.std() for samples in columns])
        starts = [rng.integers(len(samples) - WINDOW + 1) for samples in columns]
        window = np.stack(
            [samples[i : i + WINDOW] for samples, i in zip(columns, starts, strict=True)], axis=1
        )
        if sampling == "contiguous":
            first = rng.integers(WINDOW - n_samples + 1)
            sources = window[first : first + n_samples]
        else:
            sources = window[rng.choice(WINDOW, n_samples, replace=False)]
        if (sources.std(axis=0) > _SILENT * loudness).all():
            return standardised(sources)
    raise ValueError(f"no draw in {_ATTEMPTS} has {WINDOW} audible samples of every speaker")
