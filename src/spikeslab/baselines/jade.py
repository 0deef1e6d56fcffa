"""JADE: joint approximate diagonalisation of fourth-order cumulant matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .._arrays import Array
from ._whiten import whiten


def jade(X: ArrayLike, n_sources: int | None = None) -> Array:
    """Unmixing matrix (H, D) by JADE (Cardoso and Souloumiac, 1993).

    The sources are ``(X - X.mean(0)) @ unmixing.T``, of unit variance.

    Parameters
    ----------
    X : array of shape (N, D)
    n_sources : int, default=None
        Number H of sources, at most D; the data is reduced to as many principal components. None
        means D.

    Examples
    --------
    >>> import numpy as np
    >>> from spikeslab.baselines import jade
    >>> X = np.random.default_rng(0).laplace(size=(500, 2)) @ [[1, 1], [1, -2]]
    >>> jade(X).shape
    (2, 2)
    """
    Z, whitener = whiten(X, n_sources)
    return diagonalise_jointly(cumulant_matrices(Z)) @ whitener


def cumulant_matrices(Z: Array) -> Array:
    """An orthonormal set of cumulant matrices of whitened data, (H (H + 1) / 2, H, H).

    Matrix (i, j) has the elements cum(z_i, z_j, z_k, z_l); those with i < j count twice, as (j, i).
    """
    n_samples, n_sources = Z.shape
    i, j = np.triu_indices(n_sources)
    products = Z[:, i] * Z[:, j]
    moments = (products.T @ products) / n_samples
    cumulants = np.empty((len(i), n_sources, n_sources))
    cumulants[:, i, j] = cumulants[:, j, i] = moments
    unit = np.eye(n_sources)
    cumulants -= unit[i, j][:, None, None] * unit
    cumulants -= unit[i][:, :, None] * unit[j][:, None, :]
    cumulants -= unit[j][:, :, None] * unit[i][:, None, :]
    return np.where(i == j, 1.0, np.sqrt(2.0))[:, None, None] * cumulants


def diagonalise_jointly(matrices: Array, tol: float = 1e-9, max_sweeps: int = 100) -> Array:
    """Orthogonal R for which all ``R @ matrix @ R.T`` are as diagonal as possible.

    Jacobi rotations with closed-form angles; pairs that share no axis turn together.
    """
    size = matrices.shape[1]
    rotation = np.eye(size)
    rounds = _disjoint_pairs(size)
    for _ in range(max_sweeps):
        largest = 0.0
        for p, q in rounds:
            angles = _jacobi_angles(matrices, p, q)
            largest = max(largest, np.abs(angles).max(initial=0.0))
            turn = np.eye(size)
            turn[p, p] = turn[q, q] = np.cos(angles)
            turn[p, q] = np.sin(angles)
            turn[q, p] = -turn[p, q]
            matrices = turn @ matrices @ turn.T
            rotation = turn @ rotation
        if largest < tol:
            break
    return rotation


def _jacobi_angles(matrices: Array, p: Array, q: Array) -> Array:
    """For each pair of axes the angle that leaves least off the diagonal in that plane."""
    difference = matrices[:, p, p] - matrices[:, q, q]
    twice = 2 * matrices[:, p, q]
    across = 2 * (difference * twice).sum(axis=0)
    along = (difference**2 - twice**2).sum(axis=0)
    return np.arctan2(across, along + np.hypot(along, across)) / 2


def _disjoint_pairs(size: int) -> list[tuple[Array, Array]]:
    """All pairs of axes, in rounds where each axis comes once: the circle method of tournaments."""
    players = np.arange(size + size % 2)
    rounds = []
    for _ in range(len(players) - 1):
        p, q = np.sort(
            [players[: len(players) // 2], players[: len(players) // 2 - 1 : -1]], axis=0
        )
        rounds.append((p[q < size], q[q < size]))
        players = np.concatenate([players[:1], np.roll(players[1:], 1)])
    return rounds
