"""What the benchmarks run on: posteriors of any size, and four data sets like the paper's."""

import wave
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from spikeslab import IsotropicNoise, Parameters, Prior

Array = NDArray[np.float64]

SPEECH = Path("/usr/share/asterisk/sounds")  # Debian: asterisk-core-sounds-{en,fr,it,ru}-wav
LANGUAGES = ("en", "fr", "it", "ru")


def mixture(
    n_latents: int, n_components: int = 2, soft: bool = False, means: bool = False
) -> Parameters:
    """Square mixture with noise 10 dB below one column; by default with the paper's prior."""
    rng = np.random.default_rng(n_latents)
    shape = (n_latents, n_components)
    weights = rng.dirichlet(np.full(n_components, 3.0), n_latents)
    variances, slab_means = np.ones(shape), np.zeros(shape)
    variances[:, 0] = 0.01 if soft else 0.0
    if n_components > 2:
        variances[:, 1:] = np.geomspace(0.3, 1.0, n_components - 1)
    if means:
        slab_means[:, 1:] = rng.standard_normal((n_latents, n_components - 1))
    mixing = rng.standard_normal((n_latents, n_latents))
    prior = Prior(weights, slab_means, variances)
    return Parameters(mixing, np.zeros(n_latents), prior, IsotropicNoise(0.1, n_latents))


class Likelihood(NamedTuple):
    """Of N points: exp(b'x - x'Ax / 2)."""

    A: Array
    b: Array


def likelihood(parameters: Parameters, n_points: int) -> Likelihood:
    Y, _ = parameters.sample(n_points, np.random.default_rng(0))
    precise = parameters.noise.solve(parameters.mixing)
    return Likelihood(parameters.mixing.T @ precise, Y @ precise)


def _orthogonal(n: int, rng: Generator) -> Array:
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def _standardised(sources: Array) -> Array:
    return (sources - sources.mean(axis=0)) / sources.std(axis=0)


def spike_and_slab4(rng: Generator, n_points: int) -> Array:
    """Four sources from the model itself, noise at 15 dB."""
    activation = rng.uniform(0.2, 0.4, 4)
    mixing = rng.standard_normal((4, 4))
    sources = rng.standard_normal((n_points, 4)) * (rng.random((n_points, 4)) < activation)
    Y = sources @ mixing.T
    return Y + np.sqrt(Y.var() * 10**-1.5) * rng.standard_normal(Y.shape)


def laplace4(rng: Generator, n_points: int) -> Array:
    """Four Laplacian sources, orthogonal mixing, a tenth of noise."""
    sources = rng.laplace(size=(n_points, 4)) / np.sqrt(2)
    mixing = _orthogonal(4, rng)
    return sources @ mixing.T + 0.1 * rng.standard_normal((n_points, 4))


def sergio7(rng: Generator, n_points: int) -> Array:
    """Seven skewed and heavy-tailed sources after ICALAB's Sergio7, orthogonal mixing, no noise."""
    left = rng.random(n_points) < 0.3
    sources = [
        rng.exponential(size=n_points),
        rng.gamma(0.5, size=n_points),
        rng.lognormal(size=n_points),
        rng.beta(1, 4, n_points),
        rng.rayleigh(size=n_points),
        np.where(left, rng.normal(2, 0.5, n_points), rng.normal(-1, 1, n_points)),
        -rng.weibull(0.7, n_points),
    ]
    return _standardised(np.stack(sources, axis=1)) @ _orthogonal(7, rng).T


def speech_files(folder: Path) -> list[list[Path]]:
    """Per language its prompts of more than a second; an empty list where there are none."""
    found = []
    for language in LANGUAGES:
        files = {path.resolve() for path in folder.glob(f"{language}*/**/*.wav")}
        found.append(sorted(path for path in files if path.stat().st_size > 16000))
    return found


def speech4(files: list[list[Path]], rng: Generator, n_points: int) -> Array:
    """Four speakers at random times in a window of 5000 samples, orthogonal mixing, no noise."""
    window, sources = 5000, []
    for prompts in files:
        samples = np.empty(0)
        while len(samples) <= window:
            with wave.open(str(prompts[rng.integers(len(prompts))])) as file:
                samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(
                    np.float64
                )
        start = rng.integers(len(samples) - window)
        sources.append(samples[start : start + window])
    chosen = rng.choice(window, n_points, replace=False)
    return _standardised(np.stack(sources, axis=1)[chosen]) @ _orthogonal(4, rng).T


def data_sets(speech: Path) -> dict[str, Callable[[Generator, int], Array]]:
    """By name; speech only where the recordings are installed."""
    sets = {"spike-slab 4": spike_and_slab4, "laplace4": laplace4, "sergio7": sergio7}
    files = speech_files(speech)
    if all(files):
        sets["speech4"] = partial(speech4, files)
    return sets
