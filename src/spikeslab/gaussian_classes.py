"""Classes of points that are nothing but background: mixtures of Gaussians, from observed entries.

A point belongs to class r with probability a_r, and given its class it is ``y = z + e``, with z ~
N(0, C_r) and white noise e. It has channels, which share the class and are independent given it.
Missing entries (NaN) are integrated out, of each point those that it misses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from ._arrays import Array, as_array, frozen, unchecked
from ._checks import check_real
from ._kernel import gaussian_densities, gaussian_moments
from .class_statistics import NEGLIGIBLE


class Completed(NamedTuple):
    """The posterior of every entry of N points without its noise."""

    mean: Array  # (N, channels, D)
    variance: Array  # the same


class GaussianStatistics(NamedTuple):
    """Sums over points, for each class weighted by its probability given the point.

    `bound` is a lower bound on the log density of the observed entries: it counts what is lost by
    classes that were left out.
    """

    bound: float
    n: Array  # (R,)
    zz: Array  # (R, channels, D, D)


@dataclass(frozen=True, eq=False)
class GaussianClasses:
    """Parameters of R classes, and inference with them; points are given as Y, (N, channels, D).

    Parameters
    ----------
    shares : array of shape (R,)
        Probabilities a of the classes.
    covariances : array of shape (R, channels, D, D)
        C, which may be singular.
    noise_variance : float
    """

    shares: Array
    covariances: Array
    noise_variance: float

    def __post_init__(self) -> None:
        shares = as_array("shares", self.shares, (None,))
        size = np.shape(self.covariances)[-1:] * 2
        covariances = as_array("covariances", self.covariances, (len(shares), None, *size))
        check_real("noise_variance", self.noise_variance, 0.0, above=True)
        if shares.min() <= 0 or abs(shares.sum() - 1) > 1e-6:
            raise ValueError(f"shares must be positive and add up to 1, got {shares}")
        frozen(self, shares=shares, covariances=covariances)

    def responsibilities(self, Y: Array) -> tuple[Array, Array]:
        """Probabilities of the classes of each point, (N, R), the negligible ones 0; and with them
        the lower bound on the log density of its observed entries, (N,).
        """
        order = _by_count(Y)
        joint = np.tile(np.log(self.shares), (len(Y), 1))
        for channel in range(Y.shape[1]):
            C = np.ascontiguousarray(self.covariances[:, channel])
            rows = np.ascontiguousarray(Y[order, channel])
            joint[order] += gaussian_densities(rows, C, self.noise_variance)
        q: Array = softmax(joint, axis=1)
        q[q < NEGLIGIBLE] = 0
        q /= q.sum(axis=1, keepdims=True)
        terms = joint - np.log(q, out=np.zeros_like(q), where=q > 0)
        return q, np.einsum("nr,nr->n", q, terms)

    def statistics(self, Y: Array) -> GaussianStatistics:
        """Sums over the points."""
        q, bound = self.responsibilities(Y)
        zz = np.zeros(self.covariances.shape)
        for r, C, rows, weights in self._members(Y, q):
            for channel, one in enumerate(C):
                y = np.ascontiguousarray(Y[rows, channel])
                lower = gaussian_moments(y, one, self.noise_variance, weights)[2]
                zz[r, channel] = np.tril(lower) + np.tril(lower, -1).T
        return GaussianStatistics(float(bound.sum()), q.sum(axis=0), zz)

    def complete(self, Y: Array) -> Completed:
        """What every entry is, observed or not, without its noise."""
        q, _ = self.responsibilities(Y)
        mean, square = np.zeros((2, *Y.shape))
        for _, C, rows, weights in self._members(Y, q):
            for channel, one in enumerate(C):
                y = np.ascontiguousarray(Y[rows, channel])
                z, variance, _ = gaussian_moments(y, one, self.noise_variance)
                mean[rows, channel] += weights[:, None] * z
                square[rows, channel] += weights[:, None] * (z**2 + variance)
        return Completed(mean, np.maximum(square - mean**2, 0.0))

    def learned(self, s: GaussianStatistics, pull: float) -> GaussianClasses:
        """The M-step: classes with which the bound is no lower.

        Covariances keep `pull` pseudo-points of what they were, so that a class that few points are
        in does not learn them by heart.
        """
        known = (s.n + pull)[:, None, None, None]
        covariances = (s.zz + pull * self.covariances) / known
        shares = s.n + pull
        return unchecked(
            GaussianClasses,
            shares=shares / shares.sum(),
            covariances=covariances,
            noise_variance=self.noise_variance,
        )

    def _members(self, Y: Array, q: Array):
        """For each class its number and covariances, the rows that may belong to it, and with what
        probabilities.
        """
        order = _by_count(Y)
        for r, C in enumerate(self.covariances):
            rows = order[q[order, r] > 0]
            if len(rows):
                yield r, C, rows, np.ascontiguousarray(q[rows, r])


def _by_count(Y: Array) -> np.ndarray:
    """Rows in the order of how much of them is observed, as the kernel likes them best."""
    return np.argsort(np.isnan(Y).sum(axis=(1, 2)), kind="stable")
