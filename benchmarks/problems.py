"""What the benchmarks run on: posteriors of any size, and four data sets like the paper's."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from spikeslab import IsotropicNoise, Parameters, Prior
from spikeslab.datasets import (
    Speech,
    laplace,
    load_speech,
    mix,
    orthogonal_mixing,
    sergio7,
    spike_and_slab,
)

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


def spike_and_slab4(rng: Generator, n_points: int) -> Array:
    """Four sources from the model itself, noise at 15 dB."""
    activation = rng.uniform(0.2, 0.4, 4)
    mixing = rng.standard_normal((4, 4)) * np.sqrt(activation)
    return mix(spike_and_slab(n_points, 4, rng, activation), mixing, snr_db=15, rng=rng)


def laplace4(rng: Generator, n_points: int) -> Array:
    """Four Laplacian sources, orthogonal mixing, a tenth of noise."""
    sources = laplace(n_points, 4, rng)
    return mix(sources, orthogonal_mixing(4, rng), snr_db=20, rng=rng)


def sergio7_rotated(rng: Generator, n_points: int) -> Array:
    """Seven skewed and heavy-tailed sources, orthogonal mixing, no noise."""
    return mix(sergio7(n_points, rng), orthogonal_mixing(7, rng))


def speech4(speech: Speech, rng: Generator, n_points: int) -> Array:
    """Four speakers at random times in a window of 5000 samples, orthogonal mixing, no noise."""
    return mix(speech.draw(n_points, rng), orthogonal_mixing(4, rng))


def data_sets(folder: Path) -> dict[str, Callable[[Generator, int], Array]]:
    """By name; speech only where the recordings are installed."""
    sets = {"spike-slab 4": spike_and_slab4, "laplace4": laplace4, "sergio7": sergio7_rotated}
    with suppress(FileNotFoundError):
        sets["speech4"] = partial(speech4, load_speech(folder, LANGUAGES))
    return sets
