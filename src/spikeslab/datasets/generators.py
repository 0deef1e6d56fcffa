"""Generated sources, and what makes data of sources."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from .._arrays import Array, as_array
from .._checks import check_integer, check_real


def standardised(sources: Array) -> Array:
    """Centred, with unit variance."""
    return (sources - sources.mean(axis=0)) / sources.std(axis=0)


def spike_and_slab(
    n_samples: int, n_sources: int, rng: Generator, activation: ArrayLike = 0.3
) -> Array:
    """Exactly zero, or Gaussian with probability `activation` (one for all sources, or one each).

    These sources keep their zeros: they have unit variance, but are not centred.
    """
    _check_shape(n_samples, n_sources)
    probability = np.broadcast_to(np.asarray(activation, np.float64), n_sources)
    if not ((probability > 0) & (probability <= 1)).all():
        raise ValueError(f"activation must be above 0 and at most 1, got {activation!r}")
    active = rng.random((n_samples, n_sources)) < probability
    return rng.standard_normal((n_samples, n_sources)) * active / np.sqrt(probability)


def laplace(n_samples: int, n_sources: int, rng: Generator) -> Array:
    """Laplacian: the usual model of sparse sources."""
    _check_shape(n_samples, n_sources)
    return standardised(rng.laplace(size=(n_samples, n_sources)))


def cauchy(n_samples: int, n_sources: int, rng: Generator) -> Array:
    """Cauchy: tails without a variance.

    Scaled to a sample variance of one. Not centred, because a Cauchy sample's mean is no estimate
    of its centre, which is zero.
    """
    _check_shape(n_samples, n_sources)
    sources = rng.standard_cauchy((n_samples, n_sources))
    return sources / sources.std(axis=0)


def uniform(n_samples: int, n_sources: int, rng: Generator) -> Array:
    """Uniform: lighter tails than a Gaussian's."""
    _check_shape(n_samples, n_sources)
    return standardised(rng.random((n_samples, n_sources)))


def exponential(n_samples: int, n_sources: int, rng: Generator) -> Array:
    """Exponential: skewed."""
    _check_shape(n_samples, n_sources)
    return standardised(rng.exponential(size=(n_samples, n_sources)))


def sergio7(n_samples: int, rng: Generator) -> Array:
    """Seven skewed and heavy-tailed sources, a stand-in for ICALAB's Sergio7.

    Exponential, gamma, log-normal, beta, Rayleigh, a lopsided mixture of two Gaussians, and a
    negative Weibull.
    """
    _check_shape(n_samples, 7)
    right = rng.random(n_samples) < 0.3
    sources = [
        rng.exponential(size=n_samples),
        rng.gamma(0.5, size=n_samples),
        rng.lognormal(size=n_samples),
        rng.beta(1, 4, n_samples),
        rng.rayleigh(size=n_samples),
        np.where(right, rng.normal(2, 0.5, n_samples), rng.normal(-1, 1, n_samples)),
        -rng.weibull(0.7, n_samples),
    ]
    return standardised(np.stack(sources, axis=1))


def c5(n_samples: int, rng: Generator) -> Array:
    """Five sources with light tails at consecutive times, a stand-in for ICALAB's c5signals.

    A sine, a square wave, a sawtooth, an amplitude-modulated sine, all with random phases, and
    uniform noise.
    """
    _check_shape(n_samples, 5)
    time = np.arange(n_samples)
    periods = (37.3, 61.7, 23.9, 13.1, 211.0)  # samples; no two are commensurable
    sine, square, sawtooth, carrier, envelope = (
        time / period + phase for period, phase in zip(periods, rng.random(5), strict=True)
    )
    sources = [
        np.sin(2 * np.pi * sine),
        np.where(square % 1 < 0.5, 1.0, -1.0),
        sawtooth % 1,
        np.sin(2 * np.pi * carrier) * (1 + np.sin(2 * np.pi * envelope)),
        rng.random(n_samples),
    ]
    return standardised(np.stack(sources, axis=1))


def orthogonal_mixing(n_sources: int, rng: Generator) -> Array:
    """A random orthogonal matrix, all rotations and reflections being equally likely."""
    check_integer("n_sources", n_sources, 1)
    q, r = np.linalg.qr(rng.standard_normal((n_sources, n_sources)))
    return q * np.sign(np.diag(r))


def mix(
    sources: ArrayLike,
    mixing: ArrayLike,
    *,
    snr_db: float | None = None,
    rng: Generator | None = None,
) -> Array:
    """Data ``sources @ mixing.T``, of shape (n_samples, n_channels), with white noise if wanted.

    Parameters
    ----------
    sources : array of shape (n_samples, n_sources)
    mixing : array of shape (n_channels, n_sources)
    snr_db : float, optional
        Mean variance of the channels over the variance of the noise, in decibels. None is no noise.
    rng : Generator, optional
        Where the noise is drawn from; needed with `snr_db`.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.datasets import laplace, mix
    >>> rng = np.random.default_rng(0)
    >>> sources = laplace(1000, 2, rng)
    >>> mix(sources, [[1.0, 0.5], [0.2, 1.0], [1.0, -1.0]], snr_db=20, rng=rng).shape
    (1000, 3)
    """
    sources = as_array("sources", sources, (None, None))
    mixing = as_array("mixing", mixing, (None, sources.shape[1]))
    data = sources @ mixing.T
    if snr_db is None:
        return data
    check_real("snr_db", snr_db, -np.inf)
    if rng is None:
        raise TypeError("rng must be a numpy.random.Generator when snr_db is given, got None")
    variance = data.var(axis=0).mean() * 10 ** (-snr_db / 10)
    return data + np.sqrt(variance) * rng.standard_normal(data.shape)


def _check_shape(n_samples: int, n_sources: int) -> None:
    check_integer("n_samples", n_samples, 2)
    check_integer("n_sources", n_sources, 1)
