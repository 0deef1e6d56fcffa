"""Starting points, in coordinates where the data's mean is zero, and the moments they need."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
from numpy.random import Generator

from ._arrays import Array
from .blocks import Rows
from .m_step import Model
from .noise import NOISES
from .parameters import Parameters
from .prior import Prior
from .statistics import block_points

_LEAST_EIGENVALUE = 1e-6  # of the mean one
_CHOSEN_FROM = 20000  # samples that directions are drawn from


def observed_covariance(rows: Rows, mean: Array) -> Array:
    """Covariance of data with missing entries (NaN).

    Each entry is that of the rows in which both features are observed. What is not positive
    definite of such a matrix is set to almost nothing.
    """
    points = block_points(rows.shape[1], 1)
    products, pairs = rows.total(partial(_observed_products, mean), points)
    values, vectors = np.linalg.eigh(products / np.maximum(pairs, 1))
    return (vectors * np.maximum(values, _LEAST_EIGENVALUE * values.mean())) @ vectors.T


def _observed_products(mean: Array, block: np.ndarray) -> Array:
    """Sums of products of two features less their mean, and in how many rows both are observed."""
    centred = np.subtract(block, mean, dtype=np.float64)
    observed = ~np.isnan(centred)
    filled, seen = np.where(observed, centred, 0.0), observed.astype(np.float64)
    return np.stack([filled.T @ filled, seen.T @ seen])


def heavy_tailed(n_latents: int, n_components: int) -> Prior:
    """Latents of unit variance, as near to Laplacian as so many Gaussians of mean zero can be."""
    weights, variances = _laplacian(n_components)
    shape = (n_latents, n_components)
    return Prior(
        np.tile(weights, (n_latents, 1)), np.zeros(shape), np.tile(variances, (n_latents, 1))
    )


@cache
def _laplacian(n_components: int) -> tuple[Array, Array]:
    """Weights and variances of the scale mixture nearest to a unit Laplacian: EM on a grid of its
    density.
    """
    squares = np.linspace(0.005, 12.0, 1200)[:, None] ** 2
    density = np.exp(-np.sqrt(2 * squares))
    density /= density.sum()
    weights = np.full(n_components, 1 / n_components)
    variances = np.geomspace(0.1, 2.5, n_components) if n_components > 1 else np.ones(1)
    for _ in range(300):
        parts = weights / np.sqrt(variances) * np.exp(-squares / (2 * variances))
        parts *= density / parts.sum(axis=1, keepdims=True)
        weights = parts.sum(axis=0)
        variances = (parts * squares).sum(axis=0) / weights
    return weights, variances / (weights @ variances)


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


def data_start(
    model: Model, rows: Rows, mean: Array, covariance: Array, n_latents: int, rng: Generator
) -> Parameters:
    """Samples as directions, drawn with probabilities proportional to their energy above the noise,
    which is that of the direction that varies least; about three latents are active at once.
    """
    n_features = len(covariance)
    size = max(_CHOSEN_FROM, 20 * n_latents)
    some = next(iter(rows.batches(size, rng)))
    X = np.asarray(some.each(np.asarray, size, (n_features,), np.float64))
    X = np.nan_to_num(X - mean)
    noise = n_features * max(float(np.linalg.eigvalsh(covariance)[0]), 0.0)
    energy = np.einsum("nd,nd->n", X, X)
    signal = np.maximum(energy - noise, 1e-3 * energy.mean())
    chosen = rng.choice(len(X), n_latents, replace=n_latents > len(X), p=signal / signal.sum())
    shrunk = np.sqrt(np.maximum(1 - noise / np.maximum(energy[chosen], 1e-300), 0.1))
    mixing = (X[chosen] * shrunk[:, None]).T
    activation = np.full(n_latents, min(3 / n_latents, 0.5))
    prior = model.prior.start(n_latents, rng, activation)
    return Parameters(mixing, np.zeros(n_features), prior, _all_noise(model, covariance))


def _all_noise(model: Model, covariance: Array):
    """Noise that explains everything."""
    root = np.linalg.cholesky(
        covariance + 1e-12 * max(covariance.trace(), 1e-300) * np.eye(len(covariance))
    )
    scatter = NOISES[model.noise].product(root, root)
    return NOISES[model.noise].from_scatter(scatter, len(covariance), 1e-300)


STARTS = {"random": random_start, "pca": pca_start}
