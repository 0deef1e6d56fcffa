"""Starting points, in coordinates where the data's mean is zero."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from ._arrays import Array
from .m_step import Model
from .noise import NOISES
from .parameters import Parameters
from .prior import Prior


def heavy_tailed(n_latents: int, n_components: int) -> Prior:
    """Latents of unit variance, about as heavy-tailed as a Laplacian: Gaussians of equal weight
    whose variances are a geometric series.
    """
    shape = (n_latents, n_components)
    variances = np.geomspace(0.1, 2.5, n_components)
    variances = np.tile(variances / variances.mean(), (n_latents, 1))
    return Prior(np.full(shape, 1 / n_components), np.zeros(shape), variances)


def random_rotations(n_runs: int, size: int, rng: Generator) -> Array:
    """Orthogonal matrices of shape (n_runs, size, size)."""
    return np.linalg.qr(rng.standard_normal((n_runs, size, size)))[0]


def random_start(model: Model, covariance: Array, n_latents: int, rng: Generator) -> Parameters:
    """The paper's start: W ~ N(0, 1) in units of the data's standard deviation, activations in
    U(.05, 1), and the data's own covariance as that of the noise.
    """
    n_features = len(covariance)
    scale = np.sqrt(covariance.trace() / n_features)
    mixing = scale * rng.standard_normal((n_features, n_latents))
    prior = model.prior.start(n_latents, rng, rng.uniform(0.05, 1.0, n_latents))
    return Parameters(mixing, np.zeros(n_features), prior, _all_noise(model, covariance))


def pca_start(model: Model, covariance: Array, n_latents: int, rng: Generator) -> Parameters:
    """The principal subspace, in which a random rotation chooses the directions.

    With more latents than features they are a random tight frame of the whitened space.
    """
    n_features = len(covariance)
    values, vectors = np.linalg.eigh(covariance)
    used = min(n_latents, n_features)
    scaled = vectors[:, -used:] * np.sqrt(np.maximum(values[-used:], 0.0))
    frame, _ = np.linalg.qr(rng.standard_normal((n_latents, used)))
    mixing = scaled @ frame.T * np.sqrt(n_latents / used)
    prior = model.prior.start(n_latents, rng)
    mixing = mixing / np.sqrt(prior.variance + prior.mean**2)
    return Parameters(mixing, np.zeros(n_features), prior, _all_noise(model, covariance))


def _all_noise(model: Model, covariance: Array):
    """Noise that explains everything."""
    root = np.linalg.cholesky(
        covariance + 1e-12 * max(covariance.trace(), 1e-300) * np.eye(len(covariance))
    )
    scatter = NOISES[model.noise].product(root, root)
    return NOISES[model.noise].from_scatter(scatter, len(covariance), 1e-300)


STARTS = {"random": random_start, "pca": pca_start}
