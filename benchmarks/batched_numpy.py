"""The E-step in NumPy with all 2^H supports side by side: the elimination tree's opponent.

The prior is the paper's: x_h is exactly zero, or with probability activation[h] a unit Gaussian.
Given the support s, the posterior of the active latents is N(Lam_s b, Lam_s) with
Lam_s = (I + A_s)^-1, where A_s is A restricted to s, and

    log weight = sum_h log P(s_h) - log|I + A_s| / 2 + b' Lam_s b / 2.

Three ways, each faster and less obvious than the one before:

by_solving   one numpy.linalg call for all supports, all points at once
by_supports  matrices no larger than the support, and points in blocks that stay in the cache
by_products  the posterior means are never formed: all that is needed of the points is linear in
             their products b_i b_j, which leaves three matrix products
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Moments(NamedTuple):
    log_evidence: Array  # (N,)
    mean: Array  # (N, H), <x>
    active: Array  # (H,), the probabilities of being active, summed over the points
    outer: Array  # (H, H), <xx'> summed


class Supports:
    """All subsets of H latents, by size. They do not depend on the parameters: made once."""

    def __init__(self, n_latents: int) -> None:
        self.by_size = [
            np.array(list(combinations(range(n_latents), size)), int)
            for size in range(n_latents + 1)
        ]
        self.active = np.concatenate(
            [np.eye(n_latents)[members].sum(axis=1) for members in self.by_size[1:]]
        )
        self.active = np.concatenate([np.zeros((1, n_latents)), self.active])

    def log_prior(self, activation: Array) -> Array:
        return self.active @ np.log(activation) + (1 - self.active) @ np.log(1 - activation)

    def posteriors(self, A: Array, activation: Array) -> tuple[Array, Array]:
        """Return Lam_s, padded with zeros, (2^H, H, H), and the log weights without b."""
        covariance = np.zeros((len(self.active), *A.shape))
        constant = self.log_prior(activation)
        first = 1  # the empty support has neither
        for members in self.by_size[1:]:
            rows = np.arange(first, first + len(members))
            first += len(members)
            across, down = members[:, None, :], members[:, :, None]
            precision = A[down, across] + np.eye(members.shape[1])
            covariance[rows[:, None, None], down, across] = np.linalg.inv(precision)
            constant[rows] -= np.linalg.slogdet(precision)[1] / 2
        return covariance, constant


def _normalise(log_weights: Array) -> Array:
    """Log weights (states, N) become probabilities, in place; returns the log evidence (N,)."""
    top = log_weights.max(axis=0)
    log_weights -= top
    np.maximum(
        log_weights, -700, out=log_weights
    )  # NumPy's exp is ten times slower where it underflows
    np.exp(log_weights, out=log_weights)
    total = log_weights.sum(axis=0)
    log_weights /= total
    return np.log(total) + top


def _joined(blocks: list[tuple[Array, Array, Array, Array]], active: Array) -> Moments:
    log_evidence, mean, mass, outer = zip(*blocks, strict=True)
    return Moments(
        np.concatenate(log_evidence),
        np.concatenate(mean),
        np.sum(mass, axis=0) @ active,
        np.sum(outer, axis=0),
    )


def by_solving(supports: Supports, A: Array, activation: Array, b: Array) -> Moments:
    active, eye = supports.active, np.eye(len(A))
    precision = eye + active[:, :, None] * A * active[:, None, :]
    means = np.linalg.solve(precision, active[:, :, None] * b.T)  # (2^H, H, N)
    weights = np.einsum("shn,nh->sn", means, b)
    weights *= 0.5
    weights += (supports.log_prior(activation) - np.linalg.slogdet(precision)[1] / 2)[:, None]
    log_evidence = _normalise(weights)
    mass = weights.sum(axis=1)
    covariance = np.linalg.inv(precision) * active[:, :, None] * active[:, None, :]
    weighted = means * weights[:, None, :]
    outer = (mass @ covariance.reshape(len(mass), -1)).reshape(A.shape)
    outer += np.matmul(weighted, means.transpose(0, 2, 1)).sum(axis=0)
    return Moments(log_evidence, weighted.sum(axis=0).T, mass @ active, outer)


def by_supports(
    supports: Supports, A: Array, activation: Array, b: Array, block_points: int = 24
) -> Moments:
    covariance, constant = supports.posteriors(A, activation)
    flat = covariance.reshape(len(constant), -1)

    def block(b: Array) -> tuple[Array, Array, Array, Array]:
        means = (b @ covariance.reshape(-1, len(A)).T).reshape(len(b), *supports.active.shape)
        weights = np.matmul(means, b[:, :, None])[:, :, 0]
        weights *= 0.5
        weights += constant
        log_evidence = _normalise(weights.T)
        mean = np.matmul(weights[:, None, :], means)[:, 0]
        mass = weights.sum(axis=0)
        weighted = (means * weights[:, :, None]).reshape(-1, len(A))
        outer = (mass @ flat).reshape(A.shape) + weighted.T @ means.reshape(-1, len(A))
        return log_evidence, mean, mass, outer

    blocks = [block(b[i : i + block_points]) for i in range(0, len(b), block_points)]
    return _joined(blocks, supports.active)


def by_products(
    supports: Supports, A: Array, activation: Array, b: Array, block_points: int = 512
) -> Moments:
    covariance, constant = supports.posteriors(A, activation)
    i, j = np.tril_indices(len(A))
    packed = covariance[:, i, j]
    quadratic = packed * np.where(i == j, 0.5, 1.0)
    scatter = np.zeros((len(constant), len(i)))  # sum_n p(s | n) b b', of every support

    def block(b: Array) -> tuple[Array, Array, Array, Array]:
        products = b[:, i] * b[:, j]
        weights = quadratic @ products.T
        weights += constant[:, None]
        log_evidence = _normalise(weights)
        gain = np.empty((len(b), *A.shape))  # sum_s p(s | n) Lam_s, of every point
        gain[:, i, j] = gain[:, j, i] = weights.T @ packed
        mean = np.matmul(gain, b[:, :, None])[:, :, 0]
        nonlocal scatter
        scatter += weights @ products
        return log_evidence, mean, weights.sum(axis=1), gain.sum(axis=0)

    blocks = [block(b[k : k + block_points]) for k in range(0, len(b), block_points)]
    moments = _joined(blocks, supports.active)
    square = np.empty_like(covariance)
    square[:, i, j] = square[:, j, i] = scatter
    spread = np.matmul(np.matmul(covariance, square), covariance).sum(axis=0)
    return moments._replace(outer=moments.outer + spread)
