"""Kernel ICA: the kernel generalised variance as a measure of dependence."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve
from sklearn.utils import check_random_state

from .._arrays import Array
from .._checks import check_integer
from ._rotations import least_dependent, random_rotation
from ._whiten import whiten
from .jade import cumulant_matrices, diagonalise_jointly
from .peers import fast_ica


class Kernel(NamedTuple):
    """Gaussian kernel exp(-(x - y)^2 / (2 width^2)), and how much it is regularised.

    Attributes
    ----------
    width : float
    ridge : float
        kappa of the paper: N kappa / 2 is added to the eigenvalues of a Gram matrix.
    precision : float
        A factorisation may miss this much of the trace of a Gram matrix, per sample.
    """

    width: float
    ridge: float
    precision: float

    @classmethod
    def recommended(cls, n_samples: int) -> Kernel:
        """What the paper uses for so many samples."""
        width, ridge = (1.0, 2e-2) if n_samples <= 1000 else (0.5, 2e-3)
        return cls(width, ridge, 1e-2 * ridge)


def kernel_ica(
    X: ArrayLike,
    n_sources: int | None = None,
    *,
    n_init: int = 0,
    random_state: int | RandomState | None = None,
) -> Array:
    """Unmixing matrix (H, D) by kernel ICA (Bach and Jordan, 2002) with the kernel generalised
    variance.

    The sources are ``(X - X.mean(0)) @ unmixing.T``, of unit variance. Kernel width, regularisation
    and precision are the paper's. Ours: the exact gradient of the factorised contrast with L-BFGS
    along the rotations, and where to start: at the solutions of JADE and FastICA. With few samples
    for many sources the contrast has deeper minima elsewhere (five sources and more at N = 200),
    which random starts find: they are for comparison.

    Parameters
    ----------
    X : array of shape (N, D)
    n_sources : int, default=None
        Number H of sources, at most D; the data is reduced to as many principal components. None
        means D.
    n_init : int, default=0
        Number of further starts, at random rotations. The smallest contrast is kept.
    random_state : int, RandomState instance or None, default=None
        Draws the random starts, and that of FastICA.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.baselines import kernel_ica
    >>> X = np.random.default_rng(0).laplace(size=(200, 2)) @ [[1, 1], [1, -2]]
    >>> kernel_ica(X, random_state=0).shape
    (2, 2)
    """
    check_integer("n_init", n_init, 0)
    rng = check_random_state(random_state)
    Z, whitener = whiten(X, n_sources)
    contrast = partial(kernel_generalised_variance, kernel=Kernel.recommended(len(Z)))
    size = len(whitener)
    starts = [diagonalise_jointly(cumulant_matrices(Z)), fast_ica(Z, random_state=rng)]
    starts += [random_rotation(size, rng) for _ in range(n_init)]
    return least_dependent(contrast, Z, starts) @ whitener


def kernel_generalised_variance(sources: Array, kernel: Kernel) -> tuple[float, Array]:
    """The contrast of sources (H, N), near 0 where they look independent, and its gradient.

    With R_h = K_h (K_h + N ridge / 2)^-1 of the centred Gram matrix of source h, it is minus half
    the log determinant of the matrix that has identities on its diagonal and the blocks R_h R_k off
    it. Gram matrices are factorised; the gradient is that of the factorised contrast, exact as long
    as the pivots remain the same samples.
    """
    n_sources, n_samples = sources.shape
    factors, pivots, used = incomplete_cholesky(sources, kernel)
    rank = factors.shape[1]
    ridge = n_samples * kernel.ridge / 2

    # R_h = U_h' diag(shrunk_h) U_h with orthonormal rows in U_h
    centred = factors - factors.mean(axis=2, keepdims=True)
    spectrum, vectors = np.linalg.eigh(centred @ centred.transpose(0, 2, 1))
    spectrum = np.maximum(spectrum, 0.0)[:, :, None]
    damped = spectrum + ridge
    shrunk = spectrum / damped
    lengths = np.sqrt(spectrum)
    U = vectors.transpose(0, 2, 1) @ centred / np.where(lengths > 0, lengths, np.inf)

    stacked = (shrunk * U).reshape(-1, n_samples)
    block = np.arange(n_sources * rank) // rank
    same = block[:, None] == block
    correlation = np.where(same, 0.0, stacked @ stacked.T)
    np.fill_diagonal(correlation, 1.0)
    cholesky = cho_factor(correlation, lower=True)
    value = -float(np.log(np.diag(cholesky[0])).sum())

    # the differential is -sum_h trace(J_h dK_h U_h')
    inverse = np.where(same, 0.0, cho_solve(cholesky, np.eye(len(correlation))))
    others = (inverse @ stacked).reshape(U.shape)
    J = (others - others @ U.transpose(0, 2, 1) @ (shrunk * U)) / damped

    # K = C' A^-1 C with C the pivots' rows of the Gram matrix and A their columns in these:
    # from the slope in K to that in C, in which A is included
    source = np.arange(n_sources)[:, None]
    roots = np.where(used[:, :, None], factors[source, :, pivots], np.eye(rank))
    U_B = np.linalg.solve(roots.transpose(0, 2, 1), vectors * lengths.transpose(0, 2, 1))
    J_B = np.linalg.solve(roots.transpose(0, 2, 1), centred @ J.transpose(0, 2, 1))
    slope = -(U_B @ J + J_B @ U)
    both = U_B @ J_B.transpose(0, 2, 1)
    at = (source, pivots)
    np.add.at(slope.transpose(0, 2, 1), at, (both + both.transpose(0, 2, 1)) / 2)  # type: ignore[arg-type]

    # C = exp(-(y_n - y_pivot)^2 / (2 width^2))
    away = sources[:, None, :] - sources[source, pivots][:, :, None]
    slope *= (roots @ factors) * away
    gradient = -slope.sum(axis=1)
    np.add.at(gradient, at, slope.sum(axis=2))  # type: ignore[arg-type]
    return value, gradient / kernel.width**2


def incomplete_cholesky(sources: Array, kernel: Kernel) -> tuple[Array, Array, Array]:
    """Factors F (H, M, N) with F[h].T @ F[h] close to the Gram matrix of source h.

    Also the samples (H, M) that were the pivots, and which of them were needed: the factors of a
    source that is precise before the others are filled up with zeros.
    """
    n_sources, n_samples = sources.shape
    source = np.arange(n_sources)
    factors = np.empty((n_sources, min(16, n_samples), n_samples))
    pivots: list[Array] = []
    used: list[Array] = []
    residual = np.ones_like(sources)
    while True:
        needed = residual.sum(axis=1) > kernel.precision * n_samples
        rank = len(pivots)
        if not needed.any():
            return factors[:, :rank], np.stack(pivots, axis=1), np.stack(used, axis=1)
        if rank == factors.shape[1]:
            factors = np.concatenate([factors, np.empty_like(factors)], axis=1)
        pivot = residual.argmax(axis=1)
        row = np.exp(-((sources - sources[source, pivot, None]) ** 2) / (2 * kernel.width**2))
        known = factors[:, :rank]
        row -= (known[source, :, pivot][:, None, :] @ known)[:, 0]
        row *= (needed / np.sqrt(residual[source, pivot]))[:, None]
        residual = np.maximum(residual - row**2, 0.0)
        factors[:, rank] = row
        pivots.append(pivot)
        used.append(needed)
