"""Least-squares ICA: squared-loss mutual information, estimated as a ratio of densities."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from sklearn.utils import check_random_state

from .._arrays import Array
from .._checks import check_integer
from ._rotations import least_dependent, random_rotation
from ._whiten import whiten

_MOST_BASIS_FUNCTIONS = 200
_FOLDS = 5
_WIDTHS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
_RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


class Ratio(NamedTuple):
    """A model of the ratio p(y) / (p(y_1) .. p(y_H)) of densities of samples y.

    It is a combination of Gaussians exp(-|y - c|^2 / (2 width^2)).

    Attributes
    ----------
    centres : array of int, shape (b,)
        The samples that are the Gaussians' centres c.
    width : float
    ridge : float
        Times half the squared norm of the coefficients, it is added to the squared loss.
    """

    centres: NDArray[np.intp]
    width: float
    ridge: float


def least_squares_ica(
    X: ArrayLike,
    n_sources: int | None = None,
    *,
    n_init: int = 3,
    random_state: int | RandomState | None = None,
) -> Array:
    """Unmixing matrix (H, D) by least-squares ICA (Suzuki and Sugiyama, 2011).

    The sources are ``(X - X.mean(0)) @ unmixing.T``, of unit variance. They are rotated until the
    estimate of their squared-loss mutual information is smallest. The estimator is the paper's.
    Ours: at most 200 Gaussians; width and regularisation chosen once, by cross-validation at all
    starts together, since no dependence is left to choose them by where the sources are separated;
    L-BFGS along the rotations. With many sources and few samples (H=10, N=500) cross-validation
    often sees no dependence in a random rotation, and the method then fails on sub-Gaussian
    sources.

    Parameters
    ----------
    X : array of shape (N, D)
    n_sources : int, default=None
        Number H of sources, at most D; the data is reduced to as many principal components. None
        means D.
    n_init : int, default=3
        Number of random rotations to start from; the smallest estimate is kept.
    random_state : int, RandomState instance or None, default=None
        Draws the starts, the Gaussians and the folds.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.baselines import least_squares_ica
    >>> X = np.random.default_rng(0).laplace(size=(200, 2)) @ [[1, 1], [1, -2]]
    >>> least_squares_ica(X, random_state=0).shape
    (2, 2)
    """
    check_integer("n_init", n_init, 1)
    rng = check_random_state(random_state)
    Z, whitener = whiten(X, n_sources)
    starts = [random_rotation(len(whitener), rng) for _ in range(n_init)]
    ratio = choose_ratio([start @ Z.T for start in starts], rng)
    contrast = partial(squared_loss_mutual_information, ratio=ratio)
    return least_dependent(contrast, Z, starts) @ whitener


def squared_loss_mutual_information(sources: Array, ratio: Ratio) -> tuple[float, Array]:
    """The estimate h' (G + ridge)^-1 h / 2 - 1 / 2 for sources (H, N), and its gradient.

    Here h are the means of the Gaussians over the samples, and G the means of their products over
    all N^H recombinations of the samples' coordinates: the products of one-dimensional means.
    The gradient leaves out h, which rotations do not change.
    """
    n_samples = sources.shape[1]
    centres, width, ridge = ratio
    gaussians = [_gaussians(source, source[centres], width) for source in sources]
    means = _joint_gaussians(sources, ratio.centres, width).mean(axis=1)
    grams = np.stack([g @ g.T for g in gaussians]) / n_samples
    system = cho_factor(grams.prod(axis=0) + ridge * np.eye(len(centres)), lower=True)
    coefficients = cho_solve(system, means)
    value = (means @ coefficients - 1) / 2

    gradient = np.zeros_like(sources)
    slopes = -np.outer(coefficients, coefficients) * _products_of_others(grams) / n_samples
    for source, gaussian, slope, along in zip(sources, gaussians, slopes, gradient, strict=True):
        weight = (slope @ gaussian) * gaussian / width**2
        at = source[centres]
        along += at @ weight - source * weight.sum(axis=0)
        along[centres] += weight @ source - at * weight.sum(axis=1)
    return float(value), gradient


def choose_ratio(examples: list[Array], rng: RandomState) -> Ratio:
    """Width and ridge with the smallest cross-validated squared loss over examples (H, N)."""
    n_samples = examples[0].shape[1]
    size = min(_MOST_BASIS_FUNCTIONS, n_samples)
    centres = rng.choice(n_samples, size, replace=False)
    folds = np.array_split(rng.permutation(n_samples), min(_FOLDS, n_samples))
    losses = np.array(
        [
            np.sum(
                [held_out_losses(sources, centres, width, folds) for sources in examples], axis=0
            )
            for width in _WIDTHS
        ]
    )
    width, ridge = np.unravel_index(losses.argmin(), losses.shape)
    return Ratio(centres, _WIDTHS[width], _RIDGES[ridge])


def held_out_losses(
    sources: Array, centres: NDArray[np.intp], width: float, folds: list[NDArray[np.intp]]
) -> Array:
    """The mean loss a' G a / 2 - h' a on the folds, of coefficients a fitted to the others, for
    every ridge.
    """
    joint = _joint_gaussians(sources, centres, width)
    sizes = np.array([len(fold) for fold in folds])
    sums = np.stack([joint[:, fold].sum(axis=1) for fold in folds])
    grams = np.empty((len(folds), len(sources), len(centres), len(centres)))
    for h, source in enumerate(sources):
        gaussian = _gaussians(source, source[centres], width)
        for k, fold in enumerate(folds):
            part = gaussian[:, fold]
            grams[k, h] = part @ part.T
    total_gram, total_sum = grams.sum(axis=0), sums.sum(axis=0)
    losses = np.zeros(len(_RIDGES))
    for gram, sum_, size in zip(grams, sums, sizes, strict=True):
        rest = sizes.sum() - size
        spectrum, vectors = np.linalg.eigh(((total_gram - gram) / rest).prod(axis=0))
        along = vectors.T @ (total_sum - sum_) / rest
        shrunk = along[:, None] / (np.maximum(spectrum, 0)[:, None] + np.array(_RIDGES))
        coefficients = vectors @ shrunk
        quadratic = (coefficients * ((gram / size).prod(axis=0) @ coefficients)).sum(axis=0)
        losses += quadratic / 2 - sum_ / size @ coefficients
    return losses / len(folds)


def _gaussians(source: Array, centres: Array, width: float) -> Array:
    """One-dimensional Gaussians (b, N) at every sample."""
    return np.exp((source - centres[:, None]) ** 2 / (-2 * width**2))


def _joint_gaussians(sources: Array, centres: NDArray[np.intp], width: float) -> Array:
    """Gaussians of all H coordinates together (b, N) at every sample."""
    squares = (sources**2).sum(axis=0)
    distances = squares[centres, None] + squares - 2 * sources[:, centres].T @ sources
    return np.exp(np.maximum(distances, 0.0) / (-2 * width**2))


def _products_of_others(factors: Array) -> Array:
    """For each factor the product of all others, without dividing."""
    before, after = np.ones_like(factors), np.ones_like(factors)
    np.cumprod(factors[:-1], axis=0, out=before[1:])
    np.cumprod(factors[:0:-1], axis=0, out=after[-2::-1])
    return before * after
